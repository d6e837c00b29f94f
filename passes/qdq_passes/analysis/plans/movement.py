"""Plans of what only moves elements: the operator itself on integers, requantized before or behind where encodings differ.

What joins several (Concat, Where, what scatters into a cache) has all of them in the encoding of its output first. DepthToSpace
and SpaceToDepth are Reshape, Transpose, Reshape; a GlobalMaxPool is a MaxPool over all there is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.analysis.plans.operands import (
    DATA,
    WEIGHTS,
    NotComputable,
    check_condition,
    check_index,
    constant_floats,
    encoding_of_result,
    no_other_output,
    no_references,
    operand_at,
    opset_of,
    rank_of,
    same,
    sizes_of,
    source,
    zero,
)
from qdq_passes.analysis.plans.tables import brought
from qdq_passes.analysis.plans.windows import Window, window_of
from qdq_passes.analysis.program_operators import why_no_kernel
from qdq_passes.graph.operators.pads import Padding, padding_of
from qdq_passes.graph.uses import integer_of, integers_of, is_constant, text_of
from qdq_passes.npu.formulas.functions import quantized
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding, is_wide

#: Operators that stay what they are, and the inputs of each that steer it and decide shapes.
MOVING = {
    "Concat": (), "Expand": (1,), "Flatten": (), "Gather": (), "GatherElements": (), "GatherND": (), "Identity": (),
    "Pad": (1, 3), "Reshape": (1,), "ScatterElements": (), "ScatterND": (), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,),
    "TensorScatter": (), "Tile": (1,), "Transpose": (), "Trilu": (1,), "Unsqueeze": (1,), "Where": (),
}  # fmt: skip
#: Operators that join elements of several inputs, and which these are; a Concat joins all of them.
JOINING = {"ScatterElements": (0, 2), "ScatterND": (0, 2), "TensorScatter": (0, 1), "Where": (1, 2)}
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
#: First opset whose Pad takes integers, and pads as an input.
OPSET_OF_INTEGER_PAD = 11
#: First opset whose MaxPool takes 8-bit integers.
OPSET_OF_INTEGER_POOL = 12


@dataclass(frozen=True, eq=False, kw_only=True)
class Movement:
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


def movement(unit: Unit, arithmetic: Arithmetic) -> Movement:
    """The plan of an operator of `MOVING`, or of another that moves elements of its first input.

    Raises:
        NotComputable: there is none.
    """
    node = unit.core
    no_references(node)
    if unit.tail:
        raise NotComputable(f"{unit.tail[0].op_type} in one step with {node.op_type} has no kernel; put a pair between")
    check_steering(node)
    joins = node.op_type == "Concat" or node.op_type in JOINING
    places = tuple(range(len(unit.operands))) if node.op_type == "Concat" else JOINING.get(node.op_type, (0,))
    data = tuple(_moving(unit, index) for index in places)
    outputs = tuple(encoding_of_result(result) for result in unit.results)
    if not outputs:
        raise NotComputable("nothing reads what it writes")
    first = data[0].encoding
    assert first is not None
    plan = Movement(data=data, places=places, moves=outputs[0] if joins else widened(first), outputs=outputs)
    if node.op_type == "Pad":
        _know_value(unit, plan, arithmetic)
    return plan


def _moving(unit: Unit, index: int) -> Operand:
    """Operand ``index``, whose elements move: 4 bits only where they are stored."""
    found = operand_at(unit, index)
    return source(unit, index, types=WEIGHTS if found.constant else DATA)


def widened(encoding: Encoding) -> Encoding:
    """``encoding`` with 8 bits where it has 4: the same integers in a byte each."""
    wide = {ir.DataType.INT4: ir.DataType.INT8, ir.DataType.UINT4: ir.DataType.UINT8}.get(encoding.dtype)
    return encoding if wide is None else replace(encoding, dtype=wide)


def check_carried(node: ir.Node) -> None:
    """Nothing where a program holds ``node`` as it is, whatever it moves: bare integers, numbers.

    Raises:
        NotComputable: it has no kernel, or is steered by what its kernel does not take.
    """
    why = why_no_kernel(node)
    if why is not None:
        raise NotComputable(why)
    check_steering(node)


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


def padding(unit: Unit) -> tuple[Padding, int]:
    """What a Pad adds, and the integer that it adds it with.

    Raises:
        NotComputable: it is not known, or goes round.
    """
    x = source(unit)
    assert x.encoding is not None
    opset = opset_of(unit.core)
    if opset < OPSET_OF_INTEGER_PAD:
        raise NotComputable(f"Pad of opset {opset} takes no integers; run convert-opset")
    found, value = padding_with(unit.core, rank_of(x))
    return found, zero(x.encoding) if value is None else int(quantized(value, x.encoding)[0])


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


def _know_value(unit: Unit, plan: Movement, arithmetic: Arithmetic) -> None:
    """Look whether what a Pad adds survives in the encoding of its input, where that of its output is another.

    Raises:
        NotComputable: it does not, or `padding` knows no plan.
    """
    stored = padding(unit)[1]
    value = padding_with(unit.core, rank_of(source(unit)))[1]
    if value is None:
        return
    for output in plan.outputs:
        if same(plan.moves, output):
            continue
        behind = brought(np.array([stored]), plan.moves, output, arithmetic)
        if behind[0] != quantized(value, output, arithmetic.rounding)[0]:
            raise NotComputable(
                f"pads with {value[0]:g}, which the encoding of what it pads does not hold, and requantizes"
            )


def max_pool(unit: Unit, arithmetic: Arithmetic) -> tuple[Movement, Window]:
    """The plan of a MaxPool or GlobalMaxPool: the largest integer is that of the largest number.

    Raises:
        NotComputable: there is none.
    """
    node, x = unit.core, source(unit)
    plan = movement(unit, arithmetic)
    opset = opset_of(node)
    if opset < OPSET_OF_INTEGER_POOL and not is_wide(plan.moves.dtype):
        raise NotComputable(f"MaxPool of opset {opset} takes no integers; run convert-opset")
    no_other_output(node)
    if node.op_type == "GlobalMaxPool":
        sizes = sizes_of(x, range(2, rank_of(x)))
        return plan, window_of(node, sizes, x)
    return plan, window_of(node, integers_of(node, "kernel_shape"), x)


@dataclass(frozen=True, kw_only=True)
class Rearrangement:
    """Reshape, Transpose, Reshape; a 0 in a shape is the size of the input there, −1 what is left.

    Args:
        inner: shape of what is transposed.
        permutation: of its axes.
        outer: shape of the result.
    """

    inner: tuple[int, ...]
    permutation: tuple[int, ...]
    outer: tuple[int, ...]


def rearrangement(unit: Unit) -> Rearrangement:
    """The steps of a DepthToSpace or SpaceToDepth on [N, C, H, W].

    Raises:
        NotComputable: channels, or both height and width, are not known.
    """
    node, x = unit.core, operand_at(unit, 0)
    if rank_of(x) != 4:
        raise NotComputable("does not read [N, C, H, W]")
    channels, height, width = sizes_of(x, [1, 2, 3])
    block = integer_of(node, "blocksize", 0)
    to_space = node.op_type == "DepthToSpace"
    parts = (channels,) if to_space else (height, width)
    if block < 1 or any(size % (block * block if to_space else block) for size in parts):
        raise NotComputable(f"blocks of {block} do not divide sizes {list(parts)}")
    if not to_space:
        inner = (0, channels, height // block, block, width // block, block)
        return Rearrangement(
            inner=inner, permutation=(0, 3, 5, 1, 2, 4), outer=(0, channels * block**2, height // block, width // block)
        )
    depth = channels // block**2
    outer = (0, depth, height * block, width * block)
    if text_of(node, "mode", "DCR") == "CRD":
        return Rearrangement(inner=(0, depth, block, block, height, width), permutation=(0, 1, 4, 2, 5, 3), outer=outer)
    return Rearrangement(inner=(0, block, block, depth, height, width), permutation=(0, 3, 4, 1, 5, 2), outer=outer)
