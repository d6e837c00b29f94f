"""lower-pools

Means: y = clamp(round(m·Σ(x − z_x) / (n·2^k)) + z_y), with m·2^-k for s_x·factor / s_y and n the elements averaged, no reciprocal
rounded; a sum is a mean with n = 1. The largest of integers is the integer of the largest number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.analysis.plans.movement import max_pool
from qdq_passes.analysis.plans.operands import step, zero
from qdq_passes.analysis.plans.pools import Mean, mean, reduced_extremes
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.graph.uses import integer_of, is_standard
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import is_wide


@dataclass(frozen=True)
class LowerPools(Lowering):
    """Turn pools, means, sums and extremes over axes between QDQ pairs into those of integers.

    Graph: ``DQ(x) → AveragePool → Q`` → ``x → ai.qdqtool::AveragePool``, with the Pad before it and the DPU's factor behind it;
    ``DQ(x) → GlobalAveragePool → Q`` → ``x → ai.qdqtool::ReduceMean``, ReduceMean likewise; ``DQ(x) → MaxPool → Q`` → ``x →
    MaxPool → ai.qdqtool::Lookup``, GlobalMaxPool likewise, without the Lookup where the encodings are one; of 16 bits ``x →
    ai.qdqtool::MaxPool → ai.qdqtool::Requantize``. ReduceSum becomes ``ai.qdqtool::ReduceSum``, ReduceMax and ReduceMin
    ``ai.qdqtool::ReduceMax`` and ``ReduceMin``, and a Lookup or Requantize as behind a MaxPool.
    Requires: assign-targets; pads in numbers, or sizes that are known.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "pools"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One pool."""
        if is_standard(unit.core, "MaxPool", "GlobalMaxPool"):
            return _largest(unit, arithmetic, into)
        if is_standard(unit.core, "ReduceMax", "ReduceMin"):
            return _extremes(unit, arithmetic, into)
        plan = mean(unit, arithmetic)
        attributes = attributes_of(_attributes(plan, arithmetic))
        kind = "AveragePool" if plan.window is not None else "ReduceMean"
        kind = "ReduceSum" if is_standard(unit.core, "ReduceSum") else kind
        return into.done(into.node(kind, [into.integers(plan.x)], dtype=plan.output.dtype, attributes=attributes))


def _attributes(plan: Mean, arithmetic: Arithmetic) -> Attributes:
    assert plan.x.encoding is not None
    found: Attributes = {
        **output_attributes(plan.output, plan.tail, arithmetic, wide=is_wide(plan.x.encoding.dtype)),
        "x_zero_point": zero(plan.x.encoding),
    }
    if plan.multiplier is not None:
        found |= {"multiplier": int(plan.multiplier.value[0]), "shift": int(plan.multiplier.shift[0])}
    else:
        found |= {"scale": step(plan.x.encoding), "factor": plan.tail.factor}
    if plan.window is None:
        return {**found, "axes": list(plan.axes), "keepdims": int(plan.keepdims)}
    return {
        **found,
        "kernel_shape": list(plan.window.kernel),
        "strides": list(plan.window.strides),
        "pads": list(plan.window.pads),
        "dilations": list(plan.window.dilations),
        "ceil_mode": int(plan.ceil_mode),
        "count_include_pad": int(plan.count_include_pad),
    }


def _largest(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    plan, window = max_pool(unit, arithmetic)
    x, encoding = into.integers(plan.data[0]), plan.data[0].encoding
    assert encoding is not None
    lists = {
        "kernel_shape": window.kernel, "strides": window.strides, "pads": window.pads, "dilations": window.dilations,
    }  # fmt: skip
    attributes = [ir.AttrInt64s(name, list(data)) for name, data in lists.items()]
    attributes.append(ir.AttrInt64("ceil_mode", integer_of(unit.core, "ceil_mode", 0)))
    kind = "MaxPool" if is_wide(encoding.dtype) else "::MaxPool"
    pooled = into.node(kind, [x], dtype=encoding.dtype, attributes=attributes, like=unit.results[0].value)
    return into.done(into.requantized(pooled, plan.moves, plan.outputs[0], arithmetic))


def _extremes(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    plan = reduced_extremes(unit)
    x, encoding = into.integers(plan.x), plan.x.encoding
    assert encoding is not None
    attributes = attributes_of({"axes": list(plan.axes), "keepdims": int(plan.keepdims)})
    like = unit.results[0].value
    found = into.node(unit.core.op_type, [x], dtype=encoding.dtype, attributes=attributes, like=like)
    return into.done(into.requantized(found, encoding, plan.output, arithmetic))
