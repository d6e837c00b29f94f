"""Weights of one node against each other: no runtime computes with a bias of another length than its weight has channels, and
passes that fold weights count on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from qdq_passes.errors import ModelError

#: Sizes of the inputs of a node that are weights; None for others, and for those left out.
Dims = Sequence[list[int] | None]
A = onnx.AttributeProto


def _vectors(first: int, last: int) -> Callable[[onnx.NodeProto, Dims], str]:
    """Inputs ``first`` to ``last`` have one shape: vectors, but before opset 9 of a batch norm also those of a sample."""

    def problem(node: onnx.NodeProto, dims: Dims) -> str:
        found = [sizes for sizes in dims[first : last + 1] if sizes is not None]
        return "" if all(sizes == found[0] for sizes in found) else f"its parameters have the shapes {found}, not one"

    return problem


def _convolution(node: onnx.NodeProto, dims: Dims) -> str:
    weight, bias = (dims[k] if len(dims) > k else None for k in (1, 2))
    if weight is None:
        return ""
    if len(weight) < 3 or 0 in weight:
        return f"its weight has the shape {weight}"
    group = next((a.i for a in node.attribute if a.name == "group" and not a.ref_attr_name), 1)
    channels = weight[1] * group if node.op_type == "ConvTranspose" else weight[0]
    if weight[0] % group:
        return f"its weight has the shape {weight}, which {group} groups do not divide"
    if bias is not None and bias != [channels]:
        return f"its bias has the shape {bias}, where its weight has {channels} channels"
    kernel = next((list(a.ints) for a in node.attribute if a.name == "kernel_shape" and not a.ref_attr_name), None)
    if kernel is not None and kernel != weight[2:]:
        return f"its kernel_shape is {kernel}, where its weight has {weight[2:]}"
    return _window(node, len(weight) - 2)


def _window(node: onnx.NodeProto, axes: int) -> str:
    """Attributes of a window over ``axes`` axes have as many numbers."""
    for name, count in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 2), ("output_padding", 1)):
        found = next((a for a in node.attribute if a.name == name and not a.ref_attr_name), None)
        if found is not None and len(found.ints) not in (0, count * axes):
            return f"its attribute {name!r} is {list(found.ints)[:8]}, for {axes} axes"
    return ""


def _pool(node: onnx.NodeProto, dims: Dims) -> str:
    kernel = next((len(a.ints) for a in node.attribute if a.name == "kernel_shape" and not a.ref_attr_name), 0)
    return _window(node, kernel) if kernel else ""


def _matrix(node: onnx.NodeProto, dims: Dims) -> str:
    wrong = [sizes for sizes in dims[:2] if sizes is not None and len(sizes) != 2]
    return f"a factor has the shape {wrong[0]}, and must be a matrix" if wrong else ""


def _permutation(node: onnx.NodeProto, dims: Dims) -> str:
    perm = next((list(a.ints) for a in node.attribute if a.name == "perm" and not a.ref_attr_name), None)
    return f"its perm is {perm[:8]}, which is no order of axes" if perm and sorted(perm) != [*range(len(perm))] else ""


_CHECKS: dict[str, Callable[[onnx.NodeProto, Dims], str]] = {
    "AveragePool": _pool, "BatchNormalization": _vectors(1, 4), "Conv": _convolution, "ConvTranspose": _convolution,
    "Gemm": _matrix, "InstanceNormalization": _vectors(1, 2), "LpPool": _pool, "MaxPool": _pool, "Transpose": _permutation,
}  # fmt: skip


def check_operands(node: onnx.NodeProto, dims: Callable[[str], list[int] | None], where: str) -> None:
    """Raise `ModelError` where the weights of ``node``, of the sizes ``dims``, do not fit each other or its attributes."""
    check = _CHECKS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if check is None:
        return
    problem = check(
        node, [(dims(name) or None) if name else None for name in node.input]
    )  # onnx says what a scalar cannot be
    if problem:
        raise ModelError(problem, where=where, hint="export the model again")
