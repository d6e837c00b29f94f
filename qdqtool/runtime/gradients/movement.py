"""Gradients of what moves numbers: each goes back to where it came from; what was read several times gets the sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import integer_of, integers_of, label, text_of

from qdqtool.runtime.gradients.backward import Backward, rule

Given = Sequence[ir.Value | None]


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshaped(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index:
        return None
    assert given[0] is not None
    return b.reshaped(given[0], b.shape(node.inputs[0]))


@rule("Transpose")
def _transposed(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    assert given[0] is not None
    rank = len(b.shape(node.inputs[0]))
    perm = list(integers_of(node, "perm")) or list(range(rank))[::-1]
    return b.transposed(given[0], [int(axis) for axis in np.argsort(perm)])


@rule("Expand")
def _expanded(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    assert given[0] is not None
    return None if index else b.fitted(given[0], b.shape(node.outputs[0]), b.shape(node.inputs[0]))


@rule("Concat")
def _joined(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    sizes = [b.shape(value) for value in node.inputs]
    axis = integer_of(node, "axis", 0) % len(sizes[0])
    begin = sum(shape[axis] for shape in sizes[:index])
    ends = begin + sizes[index][axis]
    return b("Slice", given[0], b.constant([begin]), b.constant([ends]), b.constant([axis]))


#: Inputs of numbers that are moved, where it is not the first alone.
_SOURCES = {"ScatterElements": (0, 2), "ScatterND": (0, 2), "TensorScatter": (0, 1)}
#: Of operators of which onnxruntime moves floats alone.
_FLOATS = frozenset({"DepthToSpace", "Resize", "SpaceToDepth", "Trilu"})


@rule(
    "DepthToSpace", "Gather", "GatherElements", "GatherND", "Pad", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth",
    "Split", "TensorScatter", "Tile", "Trilu",
)  # fmt: skip
def _picked(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    """The same operator moves the places of the numbers instead of the numbers; 0 stands for what is no number of the input."""
    sources = _SOURCES.get(node.op_type, (0,))
    if index not in sources:
        return None
    if text_of(node, "reduction", "none") != "none":
        raise UnsupportedError(f"no gradient of {node.op_type} that computes numbers is known", where=label(node))
    shape, inputs = b.shape(node.inputs[index]), list(node.inputs)
    if node.op_type in _FLOATS and math.prod(shape) >= 1 << 24:
        raise UnsupportedError("has more numbers than float32 counts", where=label(node))
    total, kind = math.prod(shape), np.float32 if node.op_type in _FLOATS else np.int64
    for source in sources:
        inputs[source] = b.constant(np.zeros(b.shape(node.inputs[source]), kind))
    inputs[index] = b.constant(np.arange(1, total + 1, dtype=kind).reshape(shape))
    if node.op_type == "Pad" and len(inputs) > 2:
        inputs[2] = None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    flat = b.constant(np.zeros(total + 1, np.float32))
    for made, dy in zip(b.several(node.op_type, len(node.outputs), *inputs, **attributes), given, strict=True):
        if dy is not None:
            where = b("Cast", made, to=int(ir.DataType.INT64)) if kind is np.float32 else made
            flat = b("ScatterElements", flat, b.reshaped(where, (-1,)), b.reshaped(dy, (-1,)), reduction="add")
    return b.reshaped(b("Slice", flat, b.constant([1]), b.constant([total + 1])), shape)


@rule("Resize")
def _resized(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    """Of numbers that are interpolated: along each axis a product with the matrix that the operator makes of the unit matrix."""
    if index or text_of(node, "mode", "nearest") == "nearest":
        return _picked(b, node, index, given)
    if text_of(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise UnsupportedError("no gradient of Resize of a region is known", where=label(node))
    if text_of(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedError("no gradient of Resize that keeps the aspect ratio is known", where=label(node))
    narrow, wide, dx = b.shape(node.inputs[0]), b.shape(node.outputs[0]), given[0]
    axes = [axis % len(narrow) for axis in integers_of(node, "axes")] or list(range(len(narrow)))
    kept = {"axes", "keep_aspect_ratio_policy"}
    attributes = {name: each.value for name, each in node.attributes.items() if name not in kept}
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    scales = None if scales is None or not b.shape(scales)[0] else scales  # before opset 13 it is there, and empty
    for place, axis in enumerate(axes):
        if scales is None and narrow[axis] == wide[axis]:
            continue
        unit = b.constant(np.eye(narrow[axis], dtype=np.float32))
        how: list[ir.Value | None] = [None, None, b.constant([narrow[axis], wide[axis]])]
        if scales is not None:
            alone = b("Slice", scales, b.constant([place]), b.constant([place + 1]))
            how = [None, b("Concat", b.constant(np.ones(1, np.float32)), alone, axis=0)]
        matrix = b("Resize", unit, *how, **attributes)
        order = [k for k in range(len(narrow)) if k != axis]
        assert dx is not None
        last = b.transposed(dx, [*order, axis])
        back = [int(k) for k in np.argsort([*order, axis])]
        dx = b.transposed(b("MatMul", last, b.transposed(matrix, [1, 0])), back)
    return dx


@rule("TopK")
def _largest(b: Backward, node: ir.Node, index: int, given: Given) -> ir.Value | None:
    if index:
        return None
    zeros, axis = b.constant(np.zeros(b.shape(node.inputs[0]), np.float32)), integer_of(node, "axis", -1)
    return b("ScatterElements", zeros, node.outputs[1], given[0], axis=axis)
