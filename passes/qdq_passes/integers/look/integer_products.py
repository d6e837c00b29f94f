"""MatMulInteger and ConvInteger with what scales their int32 result: Cast to float, Mul by the scales.

Y = Σ (a − z_a)(b − z_b), y = Y·s_a·s_b. Which factor belongs to which operand: s_a is that of the node that quantized a, and s_b
likewise; what is left belongs to the operand whose scale nobody else tells, which is the stored weight."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qoperators import Parameters
from qdq_passes.graph.uses import QUANTIZABLE_TYPES, constant_array, input_at, is_constant, is_standard, only_reader

#: Integer product → float operator.
FLOAT_OPS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}

#: A product of two float32 scales and its division by one of them round three times, 2^-24 each.
ROUNDING = 2.0**-22

Scale = ir.Value | npt.NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """An integer product that ends in floats.

    Args:
        node: the MatMulInteger or ConvInteger.
        a: how the first operand is to be read.
        b: how the second operand is to be read.
        chain: the Cast and the Muls behind ``node``; the last one writes the float result.
    """

    node: ir.Node
    a: Parameters
    b: Parameters
    chain: tuple[ir.Node, ...]

    @property
    def result(self) -> ir.Value:
        """The float result."""
        return self.chain[-1].outputs[0]


def is_integer_product(node: ir.Node) -> bool:
    """Whether ``node`` is a MatMulInteger or a ConvInteger."""
    return is_standard(node, *FLOAT_OPS)


def integer_product(node: ir.Node, flow: dict[ir.Value, Parameters]) -> IntegerProduct | str:
    """What the integer product ``node`` stands for, or the reason why that cannot be told.

    Args:
        node: a MatMulInteger or ConvInteger.
        flow: what `integer_flow` knows.
    """
    cast = only_reader(node.outputs[0])
    if cast is None or not is_standard(cast, "Cast"):
        return "its int32 result is read by something else than one Cast"
    known = [flow.get(value) if (value := input_at(node, k)) is not None else None for k in (0, 1)]
    chain, factors = [cast], list[ir.Value]()
    while len(chain) == 1 or not _is_complete(known, factors):
        factor = _factor(chain[-1].outputs[0])
        if factor is None:
            break
        chain.append(factor[0])
        factors += _factors(factor[1])
    if len(chain) == 1:
        return "its result is not scaled by one Mul"
    scales = _share_out(node, known, factors)
    if isinstance(scales, str):
        return scales
    is_conv = node.op_type == "ConvInteger"
    a = Parameters(scales[0], input_at(node, 2), 0 if is_conv else -2)
    b = Parameters(scales[1], input_at(node, 3), 0 if is_conv else -1)
    wanted = ir.DataType(cast.attributes["to"].as_int()) if "to" in cast.attributes else None
    if {a.float_type, b.float_type} != {wanted} or wanted not in QUANTIZABLE_TYPES:
        return (
            "its result is cast to another type than that of the scales, or to one that DequantizeLinear does not write"
        )
    return IntegerProduct(node, a, b, tuple(chain))


def _factor(value: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """The one Mul that reads ``value``, and what it multiplies with."""
    mul = only_reader(value)
    if mul is None or not is_standard(mul, "Mul") or len(mul.inputs) != 2:
        return None
    other = mul.inputs[1] if mul.inputs[0] is value else mul.inputs[0]
    return None if other is None else (mul, other)


def _factors(value: ir.Value) -> list[ir.Value]:
    """The values whose product ``value`` is; itself if no Mul makes it."""
    producer = value.producer()
    if producer is None or not is_standard(producer, "Mul"):
        return [value]
    return [factor for v in producer.inputs if v is not None for factor in _factors(v)]


def _is_complete(known: list[Parameters | None], factors: list[ir.Value]) -> bool:
    """Whether ``factors`` hold every known scale that is computed at run time, and those of both operands or something else."""
    there = [p is not None and any(p.scale is f for f in factors) for p in known]
    missing = [p for p, is_there in zip(known, there, strict=True) if not is_there]
    computed = any(p is not None and p.scales is None for p in missing)
    return not computed and (not missing or len(factors) > len(known) - len(missing))


def _share_out(node: ir.Node, known: list[Parameters | None], factors: list[ir.Value]) -> tuple[Scale, Scale] | str:
    """The scales of both operands, whose product ``factors`` are; the reason when it does not work out."""
    rest = list(factors)
    scales: list[Scale | None] = [None, None]
    for k, parameters in enumerate(known):
        at = next((i for i, f in enumerate(rest) if parameters is not None and f is parameters.scale), None)
        if at is not None:
            scales[k] = rest.pop(at)
    if scales[0] is not None and known[1] is None and len(rest) == 1 and _stands_as_it_is(node, rest[0]):
        return scales[0], rest[0]
    arrays = [constant_array(value) for value in rest]
    product = np.ones((), np.float32)
    for array in arrays:
        if array is None:
            return "its result is scaled by a number that is neither constant nor the scale of an operand"
        product = np.asarray(product.astype(array.dtype) * array)
    for k, parameters in enumerate(known):
        if scales[k] is None and parameters is not None:
            own = parameters.scales
            if own is None or own.size != 1:
                return f"the scale of its input {k} does not occur in what scales its result"
            scales[k], product = parameters.scale, np.asarray(product / own.reshape(()).astype(product.dtype))
    a, b = scales
    if a is not None and b is not None:
        is_one = np.allclose(product.astype(np.float64), 1.0, rtol=ROUNDING, atol=0)
        return (a, b) if is_one else "its result is scaled by more than the scales of its operands"
    if b is not None:
        return (product.reshape(()), b) if product.size == 1 else "its first operand has several scales"
    columns = _along_columns(node, product)
    if columns is None:
        return f"its result is scaled by {list(product.shape)} numbers, which are no scales of a weight"
    return (np.ones((), product.dtype) if a is None else a), columns


def _stands_as_it_is(node: ir.Node, value: ir.Value) -> bool:
    """Whether ``value`` can be the scale of the second operand itself: one number, or one per column of a matrix product;
    constant where the operand is."""
    array = constant_array(value)
    if array is None and is_constant(node.inputs[1]):
        return False
    if array is not None:
        shape: tuple[int, ...] = array.shape
    elif value.shape is not None and value.shape.is_static():
        shape = tuple(value.shape.numpy())
    else:
        return False
    return shape in ((), (1,)) or (len(shape) == 1 and node.op_type == "MatMulInteger")


def _along_columns(node: ir.Node, scale: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    """``scale`` as [] or [N], where it runs along the output columns (of ConvInteger: channels); None where it does not."""
    if scale.size == 1:
        return scale.reshape(())
    weight = node.inputs[1]
    if node.op_type == "MatMulInteger":
        return scale.reshape(-1) if scale.shape[-1] == scale.size else None
    if weight is None or weight.shape is None:
        return None
    padded = (1,) * (len(weight.shape) - scale.ndim) + scale.shape
    return scale.reshape(-1) if len(padded) > 1 and padded[1] == scale.size else None
