"""What only moves elements: the operator itself on integers, requantized before or behind where encodings differ.

What joins several (Concat, Where, what scatters into a cache) has all of them in the encoding of its output first. Pad on 16
bits, Where on all but uint8, and Trilu are those of ai.qdqtool: onnxruntime's CPU provider has no such kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.pads import Padding, padding_of
from qdq_passes.graph.uses import constant_array, integer_of, is_constant, text_of
from qdq_passes.npu.formulas.functions import quantized
from qdq_passes.npu.program.edit import Replacement
from qdq_passes.npu.program.operands import (
    DATA,
    WEIGHTS,
    NotComputable,
    brought,
    check_condition,
    check_index,
    constant_floats,
    encoded,
    encoding_of_result,
    no_references,
    no_tail,
    operand_at,
    opset_of,
    rank_of,
    same,
    source,
    stored_integers,
    zero,
)
from qdq_passes.npu.program.operator import Names, ProgramOperator, Row
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding

#: Operators that stay what they are, and the inputs of each that steer it and decide shapes.
MOVING = {
    "Concat": (), "Expand": (1,), "Flatten": (), "Gather": (), "GatherElements": (), "GatherND": (), "Identity": (),
    "Pad": (1, 3), "Reshape": (1,), "ScatterElements": (), "ScatterND": (), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,),
    "TensorScatter": (), "Tile": (1,), "Transpose": (), "Trilu": (1,), "Unsqueeze": (1,), "Where": (),
}  # fmt: skip
#: Operators that join elements of several inputs, and which these are; a Concat joins all of them.
JOINING: dict[str, tuple[int, ...]] = {
    "Concat": (),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "TensorScatter": (0, 1),
    "Where": (1, 2),
}
#: Inputs that say where elements come from or go to, which need not be constant.
INDICES = {
    "Gather": 1,
    "GatherElements": 1,
    "GatherND": 1,
    "ScatterElements": 1,
    "ScatterND": 1,
    "TensorScatter": 2,
    "Where": 0,
}
#: What onnxruntime's CPU provider pads in no version up to 1.31.
_TWO_BYTES = (ir.DataType.INT16, ir.DataType.UINT16)
#: The one narrow type from which it chooses in every version: 1.23.2 has no Where on int8, 1.31 none on 16 bits.
_CHOSEN = ir.DataType.UINT8


@dataclass(frozen=True, eq=False, kw_only=True)
class Moved:
    """Elements that move.

    Args:
        data: the operands whose elements move, and the inputs of the operator that they are.
        places: these inputs.
        moves: the encoding that they have while they move; what has another is requantized before.
        outputs: encodings of the results that are read; where one is not ``moves``, it is requantized behind.
    """

    data: tuple[Operand, ...]
    places: tuple[int, ...]
    moves: Encoding
    outputs: tuple[Encoding, ...]

    def taken(self, index: int, into: Replacement) -> ir.Value:
        """The integers of operand ``index`` in the encoding that moves; of a constant at once, 4 bits in a byte each."""
        operand, place = self.data[index], self.places[index]
        encoding = encoded(operand)
        if operand.constant and (encoding.dtype != self.moves.dtype or not same(encoding, self.moves)):
            data = brought(stored_integers(operand), encoding, self.moves, into.arithmetic)
            return into.constant(f"constant_{place}", data)
        return into.requantized(into.integers(operand), encoding, self.moves)

    def behind(self, moved: ir.Value, into: Replacement) -> ir.Value:
        """``moved`` in the encoding of the first output."""
        return into.requantized(moved, self.moves, self.outputs[0])


def move_of(unit: Unit) -> Moved:
    """What moves in a unit of an operator of `MOVING`, or of another that moves elements of its first input.

    Raises:
        NotComputable: there is no plan.
    """
    node = unit.core
    no_references(node)
    no_tail(unit)
    check_steering(node)
    joins = node.op_type in JOINING
    places = JOINING.get(node.op_type, (0,)) or tuple(range(len(unit.operands)))
    data = tuple(_moving(unit, index) for index in places)
    outputs = tuple(encoding_of_result(result) for result in unit.results)
    if not outputs:
        raise NotComputable("nothing reads what it writes")
    return Moved(data=data, places=places, moves=outputs[0] if joins else widened(encoded(data[0])), outputs=outputs)


class Move(ProgramOperator[Moved]):
    """An operator that stays what it is, and reads and writes integers."""

    family = "movement"
    takes: ClassVar[Names] = (
        "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "ScatterElements",
        "ScatterND", "Slice", "Squeeze", "TensorScatter", "Tile", "Transpose", "Unsqueeze",
    )  # fmt: skip
    standard: ClassVar[Names] = takes
    renaming: ClassVar[Names] = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Moved:
        """What moves."""
        return move_of(unit)

    def write(self, plan: Moved, into: Replacement) -> ir.Value | Sequence[ir.Value]:
        """``x → Transpose``; ``a → Lookup; b → Lookup; Concat``; and what requantizes behind."""
        node = into.unit.core
        inputs = list(node.inputs)
        for index, place in enumerate(plan.places):
            inputs[place] = plan.taken(index, into)
        kind, attributes = self.kind(plan.moves.dtype, node), list(node.attributes.values())
        like = into.unit.results[0].value
        return plan.behind(into.node(kind, inputs, dtype=plan.moves.dtype, attributes=attributes, like=like), into)

    def kind(self, dtype: ir.DataType, node: ir.Node) -> str:
        """The operator that moves elements of ``dtype``."""
        return f"::{node.op_type}"


class Where(Move):
    """A choice of elements."""

    takes = ("Where",)
    rows = (Row("Where", (3, 3)),)
    standard = ("Where",)
    operations: ClassVar[Mapping[str, int]] = {"Where": 1}
    renaming = ()

    def kind(self, dtype: ir.DataType, node: ir.Node) -> str:
        """That of ai.qdqtool on all but uint8."""
        return "::Where" if dtype == _CHOSEN else "Where"


class Split(Move):
    """A Split; every output has a name, read or not."""

    takes = ("Split",)
    standard = ("Split",)
    renaming = ()

    def write(self, plan: Moved, into: Replacement) -> list[ir.Value]:
        """``x → Split``, and what requantizes behind each output that is read."""
        node, attributes = into.unit.core, list(into.unit.core.attributes.values())
        inputs = [plan.taken(0, into), *node.inputs[1:]]
        parts = into.nodes("::Split", inputs, count=len(node.outputs), dtype=plan.moves.dtype, attributes=attributes)
        for part, old in zip(parts, node.outputs, strict=True):
            part.shape = old.shape.copy() if old.shape is not None else None
        read = [parts[node.outputs.index(result.value)] for result in into.unit.results]
        return [into.requantized(part, plan.moves, y) for part, y in zip(read, plan.outputs, strict=True)]


class Trilu(Move):
    """A triangle of a matrix."""

    takes = ("Trilu",)
    rows = (Row("Trilu", (1, 1), {"upper": int, "k": int, "fill": int}),)
    standard = ()
    renaming = ()

    def write(self, plan: Moved, into: Replacement) -> ir.Value:
        """``x → ai.qdqtool::Trilu``, and what requantizes behind."""
        node = into.unit.core
        given = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
        diagonal = 0 if given is None else int(given.item())
        attributes = {"fill": zero(plan.moves), "k": diagonal, "upper": integer_of(node, "upper", 1)}
        like, inputs = into.unit.results[0].value, [plan.taken(0, into)]
        return plan.behind(into.node("Trilu", inputs, dtype=plan.moves.dtype, attributes=attributes, like=like), into)


@dataclass(frozen=True, eq=False, kw_only=True)
class Padded(Moved):
    """Elements that move, and others around them.

    Args:
        padding: how many of these.
        value: the integer that is added, where it is not taken from the data.
    """

    padding: Padding
    value: int


class Pad(ProgramOperator[Padded]):
    """A Pad; it writes its number as an integer of its input."""

    family = "movement"
    takes = ("Pad",)
    rows = (Row("Pad", (1, 2), {"pads": list, "mode": str}),)
    standard = ("Pad",)
    #: First opset whose Pad takes integers, and pads as an input.
    opset_of_integers: ClassVar[int] = 11

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Padded:
        """What is added; it survives in the encoding of the input, where that of the output is another."""
        moved, x, opset = move_of(unit), source(unit), opset_of(unit.core)
        if opset < self.opset_of_integers:
            raise NotComputable(f"Pad of opset {opset} takes no integers; run convert-opset")
        padding, number = padding_with(unit.core, rank_of(x))
        value = zero(encoded(x)) if number is None else int(quantized(number, encoded(x))[0])
        for output in moved.outputs if number is not None else ():
            if same(moved.moves, output):
                continue
            behind = brought(np.array([value]), moved.moves, output, arithmetic)
            if number is not None and behind[0] != quantized(number, output, arithmetic.rounding)[0]:
                raise NotComputable(
                    f"pads with {number[0]:g}, which the encoding of what it pads does not hold, and requantizes"
                )
        return Padded(
            data=moved.data, places=moved.places, moves=moved.moves, outputs=moved.outputs, padding=padding, value=value
        )

    def write(self, plan: Padded, into: Replacement) -> ir.Value:
        """``x, pads, value → Pad``, of all axes, whatever the form they had; and what requantizes behind."""
        dtype, pads = plan.moves.dtype, [*plan.padding.before, *plan.padding.after]
        inputs, attributes = [plan.taken(0, into)], {"mode": plan.padding.mode}
        ours = dtype in _TWO_BYTES
        if not ours:
            inputs.append(into.constant("pads", np.array(pads, np.int64)))
        if plan.padding.mode == "constant":
            inputs.append(into.constant("value", np.array(plan.value, dtype.numpy())))
        more = {"pads": pads} if ours else {}
        moved = into.node(
            "Pad" if ours else "::Pad", inputs, dtype=dtype, attributes={**attributes, **more},
            like=into.unit.results[0].value,
        )  # fmt: skip
        return plan.behind(moved, into)


def _moving(unit: Unit, index: int) -> Operand:
    """Operand ``index``, whose elements move: 4 bits only where they are stored."""
    found = operand_at(unit, index)
    return source(unit, index, types=WEIGHTS if found.constant else DATA)


def widened(encoding: Encoding) -> Encoding:
    """``encoding`` with 8 bits where it has 4: the same integers in a byte each."""
    wide = {ir.DataType.INT4: ir.DataType.INT8, ir.DataType.UINT4: ir.DataType.UINT8}.get(encoding.dtype)
    return encoding if wide is None else replace(encoding, dtype=wide)


def check_steering(node: ir.Node) -> None:
    """Nothing where what steers ``node``, an operator that moves, is what its kernel takes.

    Raises:
        NotComputable: a shape or bound is computed, or an attribute of an old opset; it reduces, or has indices of another type.
    """
    if node.op_type == "Slice" and len(node.inputs) < 3:
        raise NotComputable("Slice before opset 10 takes attributes; run convert-opset")
    for index in MOVING.get(node.op_type, ()):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and not is_constant(value):
            raise NotComputable(f"{value.name}, which decides its shape, is computed")
    if node.op_type in INDICES:
        _check_indices(node)


def _check_indices(node: ir.Node) -> None:
    """Nothing where what tells ``node`` the places is what its kernel reads.

    Raises:
        NotComputable: it reduces, or has indices of another type.
    """
    if text_of(node, "reduction", "none") != "none":
        raise NotComputable(f"reduces ({text_of(node, 'reduction', 'none')}); the simulator replaces elements")
    index = INDICES[node.op_type]
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is not None:
        (check_condition if node.op_type == "Where" else check_index)(value)


def padding_with(node: ir.Node, rank: int) -> tuple[Padding, npt.NDArray[np.float32] | None]:
    """What a Pad adds to data of ``rank``, and the number that it adds it with, float32 [1], None where that is an edge.

    Raises:
        NotComputable: it is not known, or goes round.
    """
    found = padding_of(node, rank)
    if isinstance(found, str):
        raise NotComputable(found)
    if found.mode not in ("constant", "reflect", "edge"):
        raise NotComputable(
            f"pads in mode {found.mode}; the simulator pads with a constant, by reflecting, with the edge"
        )
    if found.mode != "constant":
        return found, None
    given = node.inputs[2] if len(node.inputs) > 2 else None
    value = constant_floats(given) if given is not None else None if found.value is None else np.array(found.value)
    if value is None:
        raise NotComputable("what it pads with is computed")
    return found, value.astype(np.float32).reshape(-1)[:1]
