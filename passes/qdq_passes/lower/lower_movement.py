"""lower-movement"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.plans.movement import Movement, movement, padding, rearrangement, resized
from qdq_passes.analysis.plans.operands import stored_integers
from qdq_passes.analysis.plans.tables import looked_up
from qdq_passes.analysis.units import Operand, Unit
from qdq_passes.analysis.uses import is_standard
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement
from qdq_passes.lower._lowering import Lowering
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerMovement(Lowering):
    """Let operators that only move elements move integers, with a table where the encoding behind is another.

    Graph: ``DQ(x) → Transpose → Q`` → ``x → Transpose → ai.qdqtool::Lookup``, without the Lookup where the encodings are one;
    ``DQ(a), DQ(b) → Concat → Q`` → ``a → Lookup; b → Lookup; Concat``. Resize to the nearest element becomes a Gather per axis,
    DepthToSpace and SpaceToDepth Reshape, Transpose, Reshape. A Pad writes its number as an integer of its input.
    Requires: assign-targets; constant shapes, pads and bounds.
    Keeps: inputs, outputs and all names; numerics become the target's, bit-exact where the encodings are one.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "movement"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One operator."""
        if is_standard(unit.core, "Resize"):
            return _resize(unit, arithmetic, into)
        if is_standard(unit.core, "DepthToSpace", "SpaceToDepth"):
            return _rearrange(unit, arithmetic, into)
        plan = movement(unit, arithmetic)
        if is_standard(unit.core, "Pad"):
            return _pad(unit, plan, into)
        if is_standard(unit.core, "Split"):
            return _split(unit, plan, into)
        node = unit.core
        data = [_before(operand, plan, number, into) for number, operand in enumerate(plan.data)]
        dtype = plan.outputs[0].dtype if is_standard(node, "Concat") else _type(plan)
        moved = into.node(
            f"::{node.op_type}",
            [*data, *node.inputs[len(data) :]],
            dtype=dtype,
            attributes=list(node.attributes.values()),
            like=unit.results[0].value,
        )
        return into.done(into.table(moved, plan.after[0]))


def _type(plan: Movement) -> ir.DataType:
    assert plan.data[0].encoding is not None
    return plan.data[0].encoding.dtype


def _before(operand: Operand, plan: Movement, number: int, into: Replacement) -> ir.Value:
    """The integers of ``operand`` in the encoding of the output, where that is another; of a constant at once."""
    table = plan.before[number]
    if table is not None and operand.constant:
        return into.constant(f"constant_{number}", looked_up(stored_integers(operand), table))
    return into.table(into.integers(operand), table)


def _pad(unit: Unit, plan: Movement, into: Replacement) -> Change:
    """Pads of all axes and the number as constants, whatever the form they had."""
    found, value = padding(unit)
    dtype = _type(plan)
    inputs = [into.integers(plan.data[0]), into.constant("pads", np.array([*found.before, *found.after], np.int64))]
    if found.mode == "constant":
        inputs.append(into.constant("value", np.array(value, dtype.numpy())))
    mode = [ir.AttrString("mode", found.mode)]
    moved = into.node("::Pad", inputs, dtype=dtype, attributes=mode, like=unit.results[0].value)
    return into.done(into.table(moved, plan.after[0]))


def _split(unit: Unit, plan: Movement, into: Replacement) -> Change:
    """Every output has a name, read or not."""
    node = unit.core
    inputs = [into.integers(plan.data[0]), *node.inputs[1:]]
    parts = into.nodes(
        "::Split", inputs, count=len(node.outputs), dtype=_type(plan), attributes=list(node.attributes.values())
    )
    for part, old in zip(parts, node.outputs, strict=True):
        part.shape = old.shape.copy() if old.shape is not None else None
    read = [parts[node.outputs.index(result.value)] for result in unit.results]
    return into.done(*(into.table(part, table) for part, table in zip(read, plan.after, strict=True)))


def _resize(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    taken, plan = resized(unit), movement(unit, arithmetic)
    value = into.integers(plan.data[0])
    for axis, indices in taken.items():
        shape = None if value.shape is None else value.shape.copy()
        if shape is not None:
            shape[axis] = len(indices)
        inputs = [value, into.constant(f"indices_{axis}", indices)]
        value = into.node("::Gather", inputs, dtype=_type(plan), attributes=[ir.AttrInt64("axis", axis)], shape=shape)
    if not taken:
        value = into.node("::Identity", [value], dtype=_type(plan), like=value)
    return into.done(into.table(value, plan.after[0]))


def _rearrange(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    steps, plan = rearrangement(unit), movement(unit, arithmetic)
    value, dtype = into.integers(plan.data[0]), _type(plan)
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
    return into.done(into.table(value, plan.after[0]))
