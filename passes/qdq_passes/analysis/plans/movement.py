"""Plans of what only moves elements: the operator itself on integers, between tables where encodings differ.

Resize that takes the nearest element is a Gather per axis; DepthToSpace and SpaceToDepth are Reshape, Transpose, Reshape; a
GlobalMaxPool is a MaxPool over all there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.analysis.attributes import integer_of, integers_of, text_of
from qdq_passes.analysis.pads import Padding, padding_of
from qdq_passes.analysis.plans.operands import (
    NotComputable,
    constant_floats,
    encoding_of_result,
    no_references,
    operand_at,
    rank_of,
    result_at,
    shape_of,
    sizes_of,
    source,
    zero,
)
from qdq_passes.analysis.plans.tables import between, looked_up
from qdq_passes.analysis.plans.windows import Window, window_of
from qdq_passes.analysis.units import Operand, Unit
from qdq_passes.analysis.uses import constant_array, is_constant
from qdq_passes.errors import QdqError
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.functions import quantized
from qdq_passes.numerics.resize import BEFORE_OPSET_11, resize_nearest_indices

#: Operators that stay what they are, and the inputs of each that steer it and decide shapes.
MOVING = {
    "Concat": (), "Expand": (1,), "Flatten": (), "Gather": (), "Identity": (), "Pad": (1, 3), "Reshape": (1,),
    "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "Transpose": (), "Unsqueeze": (1,),
}  # fmt: skip
#: First opset whose MaxPool takes 8-bit integers.
OPSET_OF_INTEGER_POOL = 12

Tables = tuple[npt.NDArray[Any] | None, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Movement:
    """Elements that move.

    Args:
        data: the operands whose elements move, with a table before each, None where its encoding is right.
        before: these tables.
        outputs: encodings of the results that are read.
        after: tables behind the results.
    """

    data: tuple[Operand, ...]
    before: Tables
    outputs: tuple[Encoding, ...]
    after: Tables


def movement(unit: Unit, arithmetic: Arithmetic) -> Movement:
    """The plan of an operator of `MOVING`, or of another that moves elements of its first input.

    Raises:
        NotComputable: there is none.
    """
    node = unit.core
    no_references(node)
    if unit.tail:
        raise NotComputable(f"{unit.tail[0].op_type} in one step with {node.op_type} has no kernel; put a pair between")
    for index in MOVING.get(node.op_type, ()):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and not is_constant(value):
            raise NotComputable(f"{value.name}, which decides its shape, is computed")
    count = len(unit.operands) if node.op_type == "Concat" else 1
    data = tuple(source(unit, index) for index in range(count))
    encodings = tuple(encoding for operand in data if (encoding := operand.encoding) is not None)
    outputs = tuple(encoding_of_result(result) for result in unit.results)
    if not outputs:
        raise NotComputable("nothing reads what it writes")
    joins = node.op_type == "Concat"
    before = tuple(between(e, outputs[0], arithmetic) if joins else None for e in encodings)
    after = tuple(None if joins else between(encodings[0], output, arithmetic) for output in outputs)
    if node.op_type == "Pad":
        _know_value(unit, outputs, after, arithmetic)
    return Movement(data=data, before=before, outputs=outputs, after=after)


def padding(unit: Unit) -> tuple[Padding, int]:
    """What a Pad adds, and the integer that it adds it with.

    Raises:
        NotComputable: it is not known, or goes round.
    """
    node, x = unit.core, source(unit)
    assert x.encoding is not None
    found = padding_of(node, rank_of(x))
    if isinstance(found, str):
        raise NotComputable(found)
    if found.mode not in ("constant", "reflect", "edge"):
        raise NotComputable(
            f"pads in mode {found.mode}; the simulator pads with a constant, by reflecting, with the edge"
        )
    if found.mode != "constant":
        return found, zero(x.encoding)
    return found, int(quantized(_value(node, found), x.encoding)[0])


def _value(node: ir.Node, found: Padding) -> npt.NDArray[np.float32]:
    """What a Pad adds, float32 [1].

    Raises:
        NotComputable: it is computed.
    """
    given = node.inputs[2] if len(node.inputs) > 2 else None
    value = constant_floats(given) if given is not None else None if found.value is None else np.array(found.value)
    if value is None:
        raise NotComputable("what it pads with is computed")
    return value.astype(np.float32).reshape(-1)[:1]


def _know_value(unit: Unit, outputs: tuple[Encoding, ...], after: Tables, arithmetic: Arithmetic) -> None:
    """Look whether what a Pad adds survives in the encoding of its input, where that of its output is another.

    Raises:
        NotComputable: it does not, or `padding` knows no plan.
    """
    found, stored = padding(unit)
    if found.mode != "constant":
        return
    value, x = _value(unit.core, found), source(unit).encoding
    assert x is not None
    for output, table in zip(outputs, after, strict=True):
        if table is None:
            continue
        behind = looked_up(np.array([stored], x.dtype.numpy()), table)
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
    graph = node.graph
    opset = graph.opset_imports.get("", 0) if isinstance(graph, ir.Graph) else 0
    if opset < OPSET_OF_INTEGER_POOL:
        raise NotComputable(f"MaxPool of opset {opset} takes no integers; run convert-opset")
    if len(plan.outputs) > 1 or result_at(unit, 0).value is not node.outputs[0]:
        raise NotComputable("the indices of its elements are read")
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


def resized(unit: Unit) -> dict[int, npt.NDArray[np.int64]]:
    """The indices, by axis, that a Resize to the nearest element takes; axes of which nothing changes are left out.

    Raises:
        NotComputable: it interpolates, or what it takes hangs on sizes that are not known.
    """
    node, x = unit.core, operand_at(unit, 0)
    no_references(node)
    if text_of(node, "mode", "nearest") != "nearest":
        raise NotComputable(f"interpolates ({text_of(node, 'mode', '')}); the simulator takes the nearest element")
    shape = shape_of(x)
    if shape is None:
        raise NotComputable("the shape of what it resizes is not known; run infer-shapes first")
    old = len(node.inputs) == 2  # before opset 11
    given = [constant_array(node.inputs[i]) if i < len(node.inputs) else None for i in ((1,) if old else (2, 3))]
    scales, sizes = [array.ravel() if array is not None and array.size else None for array in (*given, None)[:2]]
    if (scales is None) == (sizes is None):
        raise NotComputable("how it resizes is computed")
    axes = [axis % len(shape) for axis in integers_of(node, "axes")] or list(range(len(shape)))
    same_size = [axis for place, axis in enumerate(axes) if scales is not None and scales[place] == 1]
    known = [1 if size is None and (axis in same_size or axis not in axes) else size for axis, size in enumerate(shape)]
    if None in known:
        raise NotComputable("the sizes of what it resizes are not known; run infer-shapes or fix-shapes first")
    whole = [size for size in known if size is not None]
    mode = "asymmetric" if old else text_of(node, "coordinate_transformation_mode", "half_pixel")
    try:
        found = resize_nearest_indices(
            whole,
            scales=None if scales is None else scales.astype(np.float32),
            sizes=None if sizes is None else [int(size) for size in sizes],
            axes=axes,
            policy=text_of(node, "keep_aspect_ratio_policy", "stretch"),
            coordinate_mode=mode,
            nearest_mode=BEFORE_OPSET_11 if old else text_of(node, "nearest_mode", "round_prefer_floor"),
            roi=_region(node, len(axes)) if mode == "tf_crop_and_resize" else None,
        )
    except QdqError as error:
        raise NotComputable(error.message) from error
    if any((indices < 0).any() for indices in found):
        raise NotComputable("writes a number of its own where nothing is")
    changed = zip(range(len(whole)), whole, found, strict=True)
    return {axis: indices for axis, size, indices in changed if not np.array_equal(indices, np.arange(size))}


def _region(node: ir.Node, count: int) -> npt.NDArray[np.float32]:
    """The part of the input that tf_crop_and_resize reads, [starts, ends] of ``count`` axes; other modes read all of it.

    Raises:
        NotComputable: it is not known.
    """
    region = constant_array(node.inputs[1])
    if region is None:
        raise NotComputable("the region (roi) that it reads is computed, or not given")
    if region.size != 2 * count:
        raise NotComputable(f"its region (roi) has {region.size} numbers for {count} axes")
    return region.astype(np.float32)
