"""Linear layers: products of an activation and a constant matrix, and the bias that is added behind."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.sizes import data_shape
from qdq_passes.graph.uses import integer_of, is_constant, is_standard, only_reader

#: Make a constant of constants.
_OF_CONSTANTS = (
    "Cast",
    "DequantizeLinear",
    "Identity",
    "QuantizeLinear",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
Rank = Callable[[ir.Value], int | None]


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Y = X·W + bias, or Y = X·Wᵀ + bias.

    Args:
        node: MatMul or Gemm.
        x: activation [.., K] of two or three dimensions.
        weight: W [K, N]; [N, K] where ``is_turned``.
        is_turned: whether the product takes the transpose of ``weight``.
        bias: constant of N elements along the last axis; None without one.
        add: the Add behind a MatMul that adds it; None of a Gemm.
    """

    node: ir.Node
    x: ir.Value
    weight: ir.Value
    is_turned: bool
    bias: ir.Value | None
    add: ir.Node | None

    @property
    def y(self) -> ir.Value:
        """What it writes, bias added."""
        return (self.add or self.node).outputs[0]


def is_fixed(value: ir.Value | None) -> bool:
    """Whether ``value`` is a constant, or moved, cast or dequantized from constants alone."""
    if value is None or is_constant(value):
        return value is not None
    node = value.producer()
    return (
        node is not None
        and is_standard(node, *_OF_CONSTANTS)
        and all(is_fixed(v) for v in node.inputs if v is not None)
    )


def linear_of(node: ir.Node, rank_of: Rank) -> Linear | str | None:
    """``node`` as a linear layer, in words why it is none that can be taken, or None: it does not multiply by a constant."""
    if node.domain == "com.microsoft" and node.op_type == "MatMulNBits":
        return "its weight is packed; run unpack-matmul-nbits first"
    if not is_standard(node, "MatMul", "Gemm"):
        return None
    x, weight = node.inputs[0], node.inputs[1]
    if x is None or weight is None or is_fixed(x) or not is_fixed(weight):
        return None
    rank, weight_rank = rank_of(x), rank_of(weight)
    if rank is None or weight_rank is None:
        return "the number of dimensions of what it reads is not known; run infer-shapes first"
    if weight_rank != 2 or rank not in (2, 3):
        return f"multiplies {rank} dimensions by {weight_rank}, not [.., K] of two or three by [K, N]"
    return _matmul(node, x, weight) if node.op_type == "MatMul" else _gemm(node, x, weight)


def _matmul(node: ir.Node, x: ir.Value, weight: ir.Value) -> Linear:
    add = only_reader(node.outputs[0])
    bias = None
    if add is not None and is_standard(add, "Add") and add.graph is node.graph and "axis" not in add.attributes:
        bias = next((v for v in add.inputs if v is not node.outputs[0] and is_bias(v, weight, 1)), None)
    return Linear(node=node, x=x, weight=weight, is_turned=False, bias=bias, add=add if bias is not None else None)


def _gemm(node: ir.Node, x: ir.Value, weight: ir.Value) -> Linear | str:
    is_turned = bool(integer_of(node, "transB", 0))
    factors = [node.attributes[key].as_float() for key in ("alpha", "beta") if key in node.attributes]
    if integer_of(node, "transA", 0) or any(factor != 1 for factor in factors):
        return "transposes or scales what it multiplies"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not is_bias(bias, weight, 0 if is_turned else 1):
        return f"{bias.name} is no constant of one number for each output"
    return Linear(node=node, x=x, weight=weight, is_turned=is_turned, bias=bias, add=None)


def is_bias(value: ir.Value | None, weight: ir.Value, axis: int) -> bool:
    """Whether ``value`` holds one number for each output: those are ``axis`` of ``weight``."""
    if value is None or not is_fixed(value):
        return False
    count = _sizes(weight)[axis] if len(_sizes(weight)) == 2 else None
    sizes = _sizes(value)
    return bool(sizes) and count is not None and sizes[-1] == count and all(size == 1 for size in sizes[:-1])


def _sizes(value: ir.Value) -> list[int]:
    """Sizes of a fixed ``value``; empty where they are not known, as those of a number are."""
    shape = data_shape(value)
    if shape is not None:
        return list(shape)
    if value.shape is not None:
        return [size for size in value.shape if isinstance(size, int)]
    node = value.producer()
    if node is None or not node.inputs or node.inputs[0] is None:
        return []
    sizes = _sizes(node.inputs[0])
    if is_standard(node, "Transpose"):
        return sizes[::-1] if len(sizes) <= 2 else []
    return sizes if is_standard(node, "Cast", "DequantizeLinear", "Identity", "QuantizeLinear") else []
