"""lower-rotary-embeddings

y₁ = round(((x₁ − z_x)(c − z_c)·m_c − (x₂ − z_x)(s − z_s)·m_s)·2^-k) + z_y, with m_c·2^-k for s_x·s_c / s_y and m_s·2^-k for
s_x·s_s / s_y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.plans.operands import step, zero
from qdq_passes.analysis.plans.rotary import Rotary, rotary
from qdq_passes.analysis.plans.tails import Tail
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerRotaryEmbeddings(Lowering):
    """Turn RotaryEmbedding between QDQ pairs, that of onnx and that of com.microsoft, into sums of products of integers.

    Graph: ``DQ(x), positions, DQ(cos), DQ(sin) → RotaryEmbedding → Q`` → ``cos, positions → Gather; sin, positions → Gather; x,
    … → ai.qdqtool::RotaryEmbedding``; x [B, S, heads·size] between two Reshapes; elements that are not turned go round it,
    through what requantizes them.
    Requires: assign-targets; sizes of heads and angles.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "rotary-embeddings"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One embedding."""
        plan = rotary(unit, arithmetic)
        x, heads = into.integers(plan.x), plan.heads
        batch = x.shape[0] if x.shape is not None else None
        around = [batch, heads.length, heads.count] if heads.is_flat else [batch, heads.count, heads.length]
        if heads.is_flat:
            x = _reshaped(x, [0, 0, heads.count, heads.size], [*around, heads.size], "heads_shape", into)
        parts = [x]
        if heads.rotated < heads.size:
            parts = [
                _sliced(x, begin, end, [*around, end - begin], into)
                for begin, end in ((0, heads.rotated), (heads.rotated, heads.size))
            ]
        angles = [_angles(operand, plan, into, what) for operand, what in ((plan.cos, "cos"), (plan.sin, "sin"))]
        turned = into.node(
            "RotaryEmbedding",
            [parts[0], *angles],
            dtype=plan.output.dtype,
            attributes=attributes_of(_attributes(plan, arithmetic)),
            like=parts[0],
        )
        if len(parts) > 1:
            assert plan.x.encoding is not None
            rest = into.requantized(parts[1], plan.x.encoding, plan.output, arithmetic)
            turned = into.node(
                "::Concat", [turned, rest], dtype=plan.output.dtype, attributes=[ir.AttrInt64("axis", -1)],
                shape=ir.Shape([*around, heads.size]), helps=True,
            )  # fmt: skip
        if heads.is_flat:
            shape = [0, 0, heads.count * heads.size]
            turned = _reshaped(turned, shape, [*around[:2], heads.count * heads.size], "shape", into)
        return into.done(turned)


def _attributes(plan: Rotary, arithmetic: Arithmetic) -> Attributes:
    x, cos, sin = plan.x.encoding, plan.cos.encoding, plan.sin.encoding
    assert x is not None
    assert cos is not None
    assert sin is not None
    found: Attributes = {
        **output_attributes(plan.output, Tail(), arithmetic, sums=False),
        "x_zero_point": zero(x),
        "cos_zero_point": zero(cos),
        "sin_zero_point": zero(sin),
        "interleaved": int(plan.heads.is_interleaved),
        "head_axis": 2 if plan.heads.is_flat else 1,
    }
    if plan.sum is None:
        return {**found, "cos_scale": step(x) * step(cos), "sin_scale": step(x) * step(sin)}
    return {**found, "cos_multiplier": plan.sum.first, "sin_multiplier": plan.sum.second, "shift": plan.sum.shift}


def _angles(operand: Operand, plan: Rotary, into: Replacement, what: str) -> ir.Value:
    """The integers of the cosines or sines at their positions."""
    table = into.integers(operand)
    rows = plan.heads.rows
    positions = plan.heads.positions if rows is None else into.constant(f"{what}_positions", rows)
    if positions is None:
        return table
    assert operand.encoding is not None
    known = positions.shape
    shape = None if known is None else ir.Shape([*known, plan.heads.rotated // 2])
    return into.node(
        "::Gather", [table, positions], dtype=operand.encoding.dtype, attributes=[ir.AttrInt64("axis", 0)], shape=shape,
        helps=True,
    )  # fmt: skip


def _reshaped(
    x: ir.Value, shape: list[int], known: list[int | ir.SymbolicDim | None], what: str, into: Replacement
) -> ir.Value:
    inputs = [x, into.constant(what, np.array(shape, np.int64))]
    assert x.dtype is not None
    return into.node("::Reshape", inputs, dtype=x.dtype, shape=ir.Shape(known), helps=True)


def _sliced(x: ir.Value, begin: int, end: int, known: list[int | ir.SymbolicDim | None], into: Replacement) -> ir.Value:
    """Elements [begin, end) of the last axis."""
    numbers = {"starts": begin, "ends": end, "axes": -1}
    constants = [into.constant(f"{name}_{begin}", np.array([number], np.int64)) for name, number in numbers.items()]
    assert x.dtype is not None
    return into.node("::Slice", [x, *constants], dtype=x.dtype, shape=ir.Shape(known), helps=True)
