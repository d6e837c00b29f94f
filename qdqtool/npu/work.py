"""What a unit has to do, before any chip is asked how long it takes: matrix products, element operations, bytes that move.

What an operator does stands in its class (`ProgramOperator.work`): its products, and element operations beside the one to
requantize each element written. An attention is B·H products of S × (D + E) × T: queries by keys, weights by values. What only
renames a shape does nothing. All counts are of static shapes."""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.fused_products import Products, fused_product
from qdq_passes.npu.program.operator import Effort, count, static_shape
from qdq_passes.npu.program.operators import operator_called
from qdq_passes.npu.units.units import Operand, Result, Unit

#: Element operations for each score inside an attention: the mask, and those of a softmax.
PER_SCORE = 4


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


def work_of(unit: Unit, float_bits: int = 32) -> Work | str:
    """What ``unit`` does, or in words why that cannot be said: a shape is not static.

    Args:
        unit: the unit.
        float_bits: bits in which what computes it holds floats of 32 bits.
    """
    flowing = [o for o in unit.operands if o.kind in ("activation", "float") and not o.constant]
    stored = [
        o for o in unit.operands if o.kind in ("weight", "bias", "constant") or (o.kind == "float" and o.constant)
    ]
    shapes = [static_shape(o.value) for o in (*flowing, *stored)] + [static_shape(r.value) for r in unit.results]
    if any(shape is None for shape in shapes):
        names = [o.value.name for o in (*flowing, *stored) if o.value is not None and static_shape(o.value) is None]
        names += [r.value.name for r in unit.results if static_shape(r.value) is None]
        return f"the shape of {names[0]} is not static"
    ends: list[Operand | Result] = [*flowing, *stored, *unit.results]
    if texts := [end.value.name for end in ends if end.value is not None and _dtype(end) in UNSIZED]:
        return f"{texts[0]} holds no numbers"
    written = sum(count(r.value) for r in unit.results)
    core = _effort(unit.core, written)
    return Work(
        products=core.products,
        element_ops=_element_ops(unit, written),
        weight_bytes=sum(_bytes(o, float_bits) for o in stored),
        reads={_key(o): _bytes(o, float_bits) for o in flowing},
        writes={_key(r): _bytes(r, float_bits) for r in unit.results},
        groups=core.groups,
        is_blocked=any(o.encoding is not None and o.encoding.granularity.kind == "blocked" for o in stored),
        bits=max([_dtype(o).bitwidth for o in flowing] + [_dtype(r).bitwidth for r in unit.results], default=8),
    )


def _effort(node: ir.Node, written: int) -> Effort:
    """What ``node`` does in a unit that writes so many elements."""
    operator = operator_called(node.op_type)
    if operator is not None:
        return operator.work(node, written)
    inner = fused_product(node, static_shape)
    scores = 0 if inner is None else inner.count * inner.rows * inner.columns
    return Effort(inner, element_ops=PER_SCORE * scores)


def _element_ops(unit: Unit, written: int) -> int:
    core = operator_called(unit.core.op_type)
    if core is not None and unit.core.op_type in core.renaming:
        return 0
    return written + sum(_effort(node, written).element_ops for node in unit.nodes)


#: Types without a size of their own.
UNSIZED = (ir.DataType.STRING, ir.DataType.UNDEFINED)


def _key(end: Operand | Result) -> ir.Value:
    """The value that flows: the integers where there are some."""
    value = end.integers or end.value
    assert value is not None
    return value


def _bytes(end: Operand | Result, float_bits: int) -> int:
    """As stored: 4-bit elements are two a byte."""
    dtype = _dtype(end)
    bits = min(dtype.bitwidth, float_bits) if dtype == ir.DataType.FLOAT else dtype.bitwidth
    return -(-count(end.value) * bits // 8)


def _dtype(end: Operand | Result) -> ir.DataType:
    if end.encoding is not None:
        return end.encoding.dtype
    return (end.value.dtype if end.value is not None else None) or ir.DataType.FLOAT
