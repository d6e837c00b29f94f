"""lower-movement"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.plans.movement import Movement, movement, padding, rearrangement
from qdq_passes.analysis.plans.operands import same, stored_integers, zero
from qdq_passes.analysis.plans.resizing import interpolates, resized
from qdq_passes.analysis.plans.tables import brought
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.graph.uses import constant_array, integer_of, is_standard
from qdq_passes.lower._lowering import Lowering
from qdq_passes.lower._resampling import resampled
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerMovement(Lowering):
    """Let operators that only move elements move integers, with a table where the encoding behind is another.

    Graph: ``DQ(x) → Transpose → Q`` → ``x → Transpose → ai.qdqtool::Lookup``, without the Lookup where the encodings are one, and
    with a Requantize in its place where one of them has 16 bits; ``DQ(a), DQ(b) → Concat → Q`` → ``a → Lookup; b → Lookup;
    Concat``, Where and what scatters likewise. Resize to the nearest element becomes a Gather per axis, one that interpolates an
    ai.qdqtool::Resize; DepthToSpace and SpaceToDepth become Reshape, Transpose, Reshape. A Pad writes its number as an integer of
    its input. Pad on 16 bits, Where on all but uint8, and Trilu are those of ai.qdqtool: onnxruntime's CPU provider has no such
    kernels.
    Requires: assign-targets; constant shapes, pads and bounds.
    Keeps: inputs, outputs and all names; numerics become the target's, bit-exact where the encodings are one.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "movement"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One operator."""
        if interpolates(unit):
            return resampled(unit, arithmetic, into)
        if is_standard(unit.core, "Resize"):
            return _resize(unit, arithmetic, into)
        if is_standard(unit.core, "DepthToSpace", "SpaceToDepth"):
            return _rearrange(unit, arithmetic, into)
        plan = movement(unit, arithmetic)
        if is_standard(unit.core, "Pad"):
            return _pad(unit, plan, arithmetic, into)
        if is_standard(unit.core, "Split"):
            return _split(unit, plan, arithmetic, into)
        node, dtype = unit.core, plan.moves.dtype
        inputs, attributes = list(node.inputs), list(node.attributes.values())
        for place, operand in zip(plan.places, plan.data, strict=True):
            inputs[place] = _taken(operand, plan, place, arithmetic, into)
        kind = f"::{node.op_type}"
        if is_standard(node, "Where") and dtype != _CHOSEN:
            kind = "Where"
        elif is_standard(node, "Trilu"):
            kind, inputs = "Trilu", inputs[:1]
            attributes = attributes_of(
                {"fill": zero(plan.moves), "k": _diagonal(node), "upper": integer_of(node, "upper", 1)}
            )
        moved = into.node(kind, inputs, dtype=dtype, attributes=attributes, like=unit.results[0].value)
        return into.done(into.requantized(moved, plan.moves, plan.outputs[0], arithmetic))


#: What onnxruntime's CPU provider pads in no version up to 1.31.
_TWO_BYTES = (ir.DataType.INT16, ir.DataType.UINT16)
#: The one narrow type from which it chooses in every version: 1.23.2 has no Where on int8, 1.31 none on 16 bits.
_CHOSEN = ir.DataType.UINT8


def _taken(operand: Operand, plan: Movement, place: int, arithmetic: Arithmetic, into: Replacement) -> ir.Value:
    """The integers of ``operand`` in the encoding that moves; of a constant at once, 4 bits in a byte each."""
    encoding = operand.encoding
    assert encoding is not None
    if operand.constant and (encoding.dtype != plan.moves.dtype or not same(encoding, plan.moves)):
        return into.constant(f"constant_{place}", brought(stored_integers(operand), encoding, plan.moves, arithmetic))
    return into.requantized(into.integers(operand), encoding, plan.moves, arithmetic)


def _diagonal(node: ir.Node) -> int:
    """``k`` of a Trilu."""
    given = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    return 0 if given is None else int(given.item())


def _pad(unit: Unit, plan: Movement, arithmetic: Arithmetic, into: Replacement) -> Change:
    """Pads of all axes and the number as constants, whatever the form they had."""
    found, value = padding(unit)
    dtype, pads = plan.moves.dtype, [*found.before, *found.after]
    inputs, attributes = [_taken(plan.data[0], plan, 0, arithmetic, into)], [ir.AttrString("mode", found.mode)]
    if dtype in _TWO_BYTES:
        attributes.append(ir.AttrInt64s("pads", pads))
    else:
        inputs.append(into.constant("pads", np.array(pads, np.int64)))
    if found.mode == "constant":
        inputs.append(into.constant("value", np.array(value, dtype.numpy())))
    kind = "Pad" if dtype in _TWO_BYTES else "::Pad"
    moved = into.node(kind, inputs, dtype=dtype, attributes=attributes, like=unit.results[0].value)
    return into.done(into.requantized(moved, plan.moves, plan.outputs[0], arithmetic))


def _split(unit: Unit, plan: Movement, arithmetic: Arithmetic, into: Replacement) -> Change:
    """Every output has a name, read or not."""
    node = unit.core
    inputs = [_taken(plan.data[0], plan, 0, arithmetic, into), *node.inputs[1:]]
    parts = into.nodes(
        "::Split", inputs, count=len(node.outputs), dtype=plan.moves.dtype, attributes=list(node.attributes.values())
    )
    for part, old in zip(parts, node.outputs, strict=True):
        part.shape = old.shape.copy() if old.shape is not None else None
    read = [parts[node.outputs.index(result.value)] for result in unit.results]
    return into.done(
        *(
            into.requantized(part, plan.moves, output, arithmetic)
            for part, output in zip(read, plan.outputs, strict=True)
        )
    )


def _resize(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    taken, plan = resized(unit), movement(unit, arithmetic)
    value = _taken(plan.data[0], plan, 0, arithmetic, into)
    for axis, indices in taken.items():
        shape = None if value.shape is None else value.shape.copy()
        if shape is not None:
            shape[axis] = len(indices)
        inputs = [value, into.constant(f"indices_{axis}", indices)]
        value = into.node(
            "::Gather", inputs, dtype=plan.moves.dtype, attributes=[ir.AttrInt64("axis", axis)], shape=shape
        )
    if not taken:
        value = into.node("::Identity", [value], dtype=plan.moves.dtype, like=value)
    return into.done(into.requantized(value, plan.moves, plan.outputs[0], arithmetic))


def _rearrange(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    steps, plan = rearrangement(unit), movement(unit, arithmetic)
    value, dtype = _taken(plan.data[0], plan, 0, arithmetic, into), plan.moves.dtype
    batch = value.shape[0] if value.shape is not None else None
    inner = [batch, *steps.inner[1:]]
    turned = [inner[axis] for axis in steps.permutation]
    value = into.node(
        "::Reshape",
        [value, into.constant("inner_shape", np.array(steps.inner, np.int64))],
        dtype=dtype,
        shape=ir.Shape(inner),
    )
    value = into.node(
        "::Transpose",
        [value],
        dtype=dtype,
        attributes=[ir.AttrInt64s("perm", list(steps.permutation))],
        shape=ir.Shape(turned),
    )
    value = into.node(
        "::Reshape",
        [value, into.constant("shape", np.array(steps.outer, np.int64))],
        dtype=dtype,
        shape=ir.Shape([batch, *steps.outer[1:]]),
    )
    return into.done(into.requantized(value, plan.moves, plan.outputs[0], arithmetic))
