"""What a unit has to do, before any chip is asked how long it takes: matrix products, element operations, bytes that move.

    Conv           [N,C,H,W]·[M,C/g,k,k]   g products of (N·OH·OW) × (C/g·k·k) × (M/g)
    ConvTranspose  [N,C,H,W]·[C,M/g,k,k]   g products of (N·H·W) × (C/g) × (M/g·k·k)
    MatMul, Gemm   [B,R,K]·[B,K,C]         B products of R × K × C; stored B: one of (B·R) × K × C
    attention      [B,H,S,D], [B,H,T,E]    B·H products of S × (D + E) × T: queries by keys, weights by values
    Einsum         of two operands         by its labels

Element operations: one to requantize each element written, and what the operator itself does with its elements (`PER_INPUT`,
`PER_OUTPUT`; a pool: its window). What only renames a shape does none. All counts are of static shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
from qdq_passes.graph.operators.fused_products import Products, fused_product, is_attention
from qdq_passes.graph.operators.reductions import kernel_of
from qdq_passes.graph.uses import integer_of
from qdq_passes.npu.units.units import Operand, Result, Unit

#: Element operations for each element read: reductions look at all of them.
PER_INPUT = {"GlobalAveragePool": 1, "ReduceMean": 1, "ReduceMax": 1, "ReduceMin": 1, "ReduceSum": 1}
#: Element operations for each element written, beside requantizing it. Softmax: the largest, exponential and sum, division;
#: normalizations: mean, variance, scale and shift; a rotation: two products and their sum.
PER_OUTPUT = {
    "Softmax": 3, "LogSoftmax": 3, "LayerNormalization": 4, "RMSNormalization": 3, "InstanceNormalization": 4,
    "LpNormalization": 3, "BatchNormalization": 1, "Add": 1, "Sub": 1, "Mul": 1, "Div": 1,
    "GroupNormalization": 4, "SimplifiedLayerNormalization": 3, "SkipLayerNormalization": 5,
    "SkipSimplifiedLayerNormalization": 4, "RotaryEmbedding": 3, "Max": 1, "Min": 1, "Pow": 1, "Where": 1,
}  # fmt: skip
#: Element operations for each score inside an attention: the mask, and those of a softmax.
PER_SCORE = 4
#: Operators that leave the elements where they are.
RENAMING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
#: Pools over a window, which ``kernel_shape`` gives.
WINDOWS = ("AveragePool", "MaxPool", "LpPool")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a unit does in one inference.

    Args:
        products: on the matrix unit; None when it multiplies no matrices.
        element_ops: on the vector unit.
        weight_bytes: of weights, bias and other constants as stored.
        reads: bytes of each value that flows in, once each.
        writes: bytes of each value that flows out.
        groups: of a convolution; 1 of everything else.
        is_blocked: whether a weight has a scale per block.
        bits: of the widest activation.
    """

    products: Products | None
    element_ops: int
    weight_bytes: int
    reads: dict[ir.Value, int]
    writes: dict[ir.Value, int]
    groups: int
    is_blocked: bool
    bits: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the products."""
        return 0 if self.products is None else self.products.macs

    @property
    def is_grouped(self) -> bool:
        """Whether it is a convolution in groups."""
        return self.groups > 1


def work_of(unit: Unit) -> Work | str:
    """What ``unit`` does, or in words why that cannot be said: a shape is not static."""
    flowing = [o for o in unit.operands if o.kind in ("activation", "float") and not o.constant]
    stored = [
        o for o in unit.operands if o.kind in ("weight", "bias", "constant") or (o.kind == "float" and o.constant)
    ]
    shapes = [_shape(o.value) for o in (*flowing, *stored)] + [_shape(r.value) for r in unit.results]
    if any(shape is None for shape in shapes):
        names = [o.value.name for o in (*flowing, *stored) if o.value is not None and _shape(o.value) is None]
        names += [r.value.name for r in unit.results if _shape(r.value) is None]
        return f"the shape of {names[0]} is not static"
    return Work(
        products=_products(unit),
        element_ops=_element_ops(unit, flowing),
        weight_bytes=sum(_bytes(o) for o in stored),
        reads={_key(o): _bytes(o) for o in flowing},
        writes={_key(r): _bytes(r) for r in unit.results},
        groups=integer_of(unit.core, "group", 1) if unit.core.op_type in ("Conv", "ConvTranspose") else 1,
        is_blocked=any(o.encoding is not None and o.encoding.granularity.kind == "blocked" for o in stored),
        bits=max([_dtype(o).bitwidth for o in flowing] + [_dtype(r).bitwidth for r in unit.results], default=8),
    )


def _products(unit: Unit) -> Products | None:
    node = unit.core
    if (inner := fused_product(node, _shape)) is not None:
        return inner
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return None
    x, w = (_shape(value) or () for value in node.inputs[:2])
    if node.op_type == "Conv":
        groups, (wide, depth, *kernel) = integer_of(node, "group", 1), w
        pixels = math.prod((_shape(node.outputs[0]) or ())[2:])
        return Products(count=groups, rows=x[0] * pixels, depth=depth * math.prod(kernel), columns=wide // groups)
    if node.op_type == "ConvTranspose":
        groups, (deep, wide, *kernel) = integer_of(node, "group", 1), w
        return Products(
            count=groups, rows=x[0] * math.prod(x[2:]), depth=deep // groups, columns=wide * math.prod(kernel)
        )
    if node.op_type == "Gemm":
        rows, depth = x[::-1] if integer_of(node, "transA", 0) else x
        return Products(count=1, rows=rows, depth=depth, columns=w[0 if integer_of(node, "transB", 0) else 1])
    return _matmul(x, w)


def _matmul(a: Sequence[int], b: Sequence[int]) -> Products:
    """numpy's matmul: vectors are a row, or a column; leading axes are broadcast."""
    rows = 1 if len(a) == 1 else a[-2]
    columns = 1 if len(b) == 1 else b[-1]
    if len(b) <= 2:  # one matrix for all: their rows are the rows of one product
        return Products(count=1, rows=math.prod(a[:-2]) * rows, depth=a[-1], columns=columns)
    count = math.prod(max(pair) for pair in zip(_padded(a[:-2], b[:-2]), _padded(b[:-2], a[:-2]), strict=True))
    return Products(count=count, rows=rows, depth=a[-1], columns=columns)


def _padded(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [*[1] * (len(b) - len(a)), *a]


def _element_ops(unit: Unit, flowing: Sequence[Operand]) -> int:
    if unit.core.op_type in RENAMING:
        return 0
    written = sum(_count(r.value) for r in unit.results)
    ops = written
    if is_attention(unit.core) and (inner := fused_product(unit.core, _shape)) is not None:
        ops += PER_SCORE * inner.count * inner.rows * inner.columns
    for node in unit.nodes:
        if node.op_type in PER_INPUT:
            ops += PER_INPUT[node.op_type] * _count(node.inputs[0])
        elif node.op_type in WINDOWS:
            ops += math.prod(kernel_of(node)) * _count(node.outputs[0])
        else:
            ops += PER_OUTPUT.get(node.op_type, 0) * written
    return ops


def _key(end: Operand | Result) -> ir.Value:
    """The value that flows: the integers where there are some."""
    value = end.integers or end.value
    assert value is not None
    return value


def _bytes(end: Operand | Result) -> int:
    """As stored: 4-bit elements are two a byte."""
    return -(-_count(end.value) * _dtype(end).bitwidth // 8)


def _dtype(end: Operand | Result) -> ir.DataType:
    if end.encoding is not None:
        return end.encoding.dtype
    return (end.value.dtype if end.value is not None else None) or ir.DataType.FLOAT


def _count(value: ir.Value | None) -> int:
    return math.prod(_shape(value) or ())


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape when every dimension is known."""
    if value is None:
        return None
    shape = value.shape if value.shape is not None or value.const_value is None else value.const_value.shape
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return tuple(d for d in shape if isinstance(d, int))
