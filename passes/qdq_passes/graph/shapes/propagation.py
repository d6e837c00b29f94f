"""Shape inference by onnx, with the data of shapes propagated only where they stay short.

onnx propagates every vector of integers whose length it knows, element by element, 64 bytes each: a Cast of 2^30 of them takes
64 GB, 36 Concats that double one of them likewise. How long they can become is told before, from what is known without."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx

#: Bytes of a constant up to which inference sees its numbers: shapes, axes and bounds follow from them.
SHOWN_BYTES = 1024
#: Elements that may be propagated in all, and beside them for each node.
MOST, MOST_A_NODE = 1 << 20, 64
#: What counts as longer than all of it.
LONG = 1 << 40
#: What onnx raises where a model is wrong: of its own, and of the standard library of C++.
FAILURES = (
    onnx.shape_inference.InferenceError, onnx.checker.ValidationError, IndexError, KeyError, MemoryError,
    RuntimeError, ValueError,
)  # fmt: skip
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
#: Operators whose result onnx propagates, beside Concat; the first input is data, of those of two inputs both.
_PROPAGATING = {"Cast", "Gather", "Size", "Slice", "Squeeze", "Unsqueeze"}
_OF_TWO = {"Add", "Div", "Mul", "Sub"}
#: Operators whose result may be as long as an integer that they read says.
_LONG = {"ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample"}


def by_onnx(data: bytes, *, data_propagation: bool = True, strict: bool = False) -> onnx.ModelProto:
    """What onnx infers of a model, given as the bytes that it reads.

    Raises:
        one of `FAILURES`: what does not fit.
    """
    model = onnx.ModelProto.FromString(data) if data_propagation else onnx.ModelProto()
    # How long what a function reads is, is not known here.
    hidden = any(_propagates(node) for function in model.functions for node in function.node)
    if data_propagation and (hidden or not _is_short(model, otherwise=LONG)):
        known = onnx.shape_inference.infer_shapes(data, check_type=strict, strict_mode=strict)
        if hidden or not _is_short(known):
            return known
    return onnx.shape_inference.infer_shapes(data, check_type=strict, strict_mode=strict, data_prop=data_propagation)


def _propagates(node: onnx.NodeProto) -> bool:
    return node.op_type in _PROPAGATING | _OF_TWO | {"Concat"}


def _is_short(model: onnx.ModelProto, *, otherwise: int = 1) -> bool:
    """Whether all that onnx would propagate is short; a length that is not told is at most the largest number it comes from, or
    ``otherwise`` of an operator that says nothing."""
    graphs = list(_graphs(model.graph))
    lengths: dict[str, int] = {}
    largest: dict[str, int] = {}
    total = count = 0
    for inner in graphs:
        for info in (*inner.input, *inner.value_info, *inner.output):
            kind = info.type.tensor_type
            if kind.HasField("shape"):
                sizes = [dim.dim_value or 1 for dim in kind.shape.dim]
                lengths[info.name] = sizes[0] if len(sizes) == 1 else 1
                largest[f"shape of {info.name}"] = max(sizes, default=1)
            elif kind.elem_type in _INTEGERS:
                lengths[info.name] = LONG
        for tensor in inner.initializer:
            lengths[tensor.name], largest[tensor.name] = _looked_at(tensor)
    for inner in graphs:
        for node in inner.node:
            count += 1
            given = [name for name in node.input if name]
            longest = [lengths.get(name, 1) for name in given]
            values = [largest.get(name, 1) for name in given]
            length = value = 1
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                length, value = _looked_at(node.attribute[0].t)
            elif node.op_type == "Concat":
                length, value = sum(longest), max(values, default=1)
            elif node.op_type in _OF_TWO:
                length, value = max(longest, default=1), _together(node.op_type, values)
            elif node.op_type in _PROPAGATING:
                length, value = max(longest[:2], default=1), max(values[:1], default=1)
            elif node.op_type == "Shape" and given:
                value = largest.get(f"shape of {given[0]}", 1)
            elif node.op_type in _LONG:
                length = max(values, default=1)
            else:
                length = otherwise
            for name in node.output:
                lengths[name] = lengths.get(name, length)
                largest[name] = min(value, 1 << 63)
                total += max(length, lengths[name]) if _propagates(node) else 0
    return total <= MOST + MOST_A_NODE * count


def _together(op_type: str, values: list[int]) -> int:
    if op_type == "Mul":
        return int(np.prod([float(v) for v in values]).clip(1, 1 << 62))
    return max(values, default=1) if op_type == "Div" else sum(values)


def _looked_at(tensor: onnx.TensorProto) -> tuple[int, int]:
    """Elements of a tensor, and the largest of them where they are integers that onnx may look at."""
    count = min(max(tensor.dims[0], 0), 1 << 62) if len(tensor.dims) == 1 else 1
    is_plain = tensor.data_type in _INTEGERS and not tensor.external_data
    if not is_plain or math.prod(tensor.dims) > 128:
        return count, 1
    found = onnx.numpy_helper.to_array(tensor)
    return count, int(np.abs(found.astype(np.float64)).max(initial=1))


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(body)
