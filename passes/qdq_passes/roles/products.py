"""Products: of two activations (the bmm of attention), or of an activation and a weight (a projection)."""

from __future__ import annotations

from math import prod

from qdq_passes.graph.operators.kinds import SHAPERS
from qdq_passes.graph.uses import integer_of, integers_of, text_of
from qdq_passes.roles.skeleton import Op, Tensor, dims, number

_PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
#: Products whose result is integers without a scale.
_INTEGER = frozenset({"ConvInteger", "MatMulInteger"})
#: Operators with weights of their own inside.
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})


def is_product(op: Op) -> bool:
    """Whether ``op`` multiplies two operands and sums over an axis."""
    return op.kind in _PRODUCTS and len(op.data) == 2 and (op.kind != "Einsum" or _contracts(op))


def is_bmm(op: Op) -> bool:
    """Whether ``op`` is a product of two activations."""
    return is_product(op) and op.data[0].live and op.data[1].live


def weight_of(op: Op) -> Tensor | None:
    """The weight of ``op``, a product or a convolution of one activation; None for any other operator."""
    if op.kind in _CONVOLUTIONS:
        return op.data[1] if len(op.data) > 1 and op.data[0].live and not op.data[1].live else None
    if not is_product(op) or op.data[0].live == op.data[1].live:
        return None
    return op.data[0] if op.data[1].live else op.data[1]


def activation_of(op: Op) -> Tensor:
    """The activation that ``op``, which has a weight, reads."""
    return op.data[0] if op.data[0].live else op.data[1]


def is_weighted(op: Op) -> bool:
    """Whether ``op`` has weights: a product or convolution with a weight, or a recurrent operator."""
    return op.kind in _RECURRENT or weight_of(op) is not None


def is_projection(op: Op) -> bool:
    """Whether ``op`` mixes channels at each place on its own: a product with a weight, or a 1x1 convolution."""
    weight = weight_of(op)
    if weight is None or op.kind == "ConvTranspose":
        return False
    return op.kind != "Conv" or (integer_of(op.node, "group", 1) == 1 and _kernel(op, weight) == 1)


def is_depthwise(op: Op) -> bool:
    """Whether ``op`` is a convolution that mixes no channels."""
    weight = weight_of(op)
    shape = dims(weight) if weight is not None and op.kind == "Conv" else None
    return shape is not None and len(shape) > 2 and shape[1] == 1 and integer_of(op.node, "group", 1) > 1


def _kernel(op: Op, weight: Tensor) -> int | None:
    """Number of places that one output of a convolution sees."""
    shape = dims(weight)
    return prod(integers_of(op.node, "kernel_shape") or (shape[2:] if shape is not None else (0,)))


def widths(op: Op) -> tuple[int | None, int | None]:
    """Channels that ``op``, which has a weight, reads and writes."""
    bits = integer_of(op.node, "N", 0)
    if bits and op.node.op_type.startswith("MatMul"):
        return integer_of(op.node, "K", 0), bits
    weight = weight_of(op)
    shape = dims(weight) if weight is not None else None
    if weight is None or shape is None or len(shape) < 2 or op.kind == "Einsum":
        return None, None
    if op.kind in _CONVOLUTIONS:
        return (shape[1], shape[0]) if op.kind == "Conv" else (shape[0], shape[1])
    k, n = shape[-2], shape[-1]
    is_second = op.data[1] is weight
    turned = integer_of(op.node, "transB" if is_second else "transA", 0)
    return (k, n) if bool(turned) != is_second else (n, k)


def bias_adds(op: Op) -> list[Op]:
    """What belongs to ``op`` behind it: the Add of its bias, and the Mul that scales the integers of an integer product."""
    found: list[Op] = []
    tensor = op.output
    for kind in ("Mul", "Add") if op.node.op_type in _INTEGER else ("Add",):
        reader = tensor.readers[0] if len(tensor.readers) == 1 else None
        if reader is None or reader.kind != kind or not (kind == "Mul" or is_affine(reader, tensor)):
            break
        found.append(reader)
        tensor = reader.output
    return found


def is_affine(op: Op, tensor: Tensor) -> bool:
    """Whether the other operand of ``op`` is a parameter of more than one element (or of a size that nothing tells)."""
    other = op.other(tensor)
    if other is None or other.live or number(other) is not None:
        return False
    shape = dims(other)
    return shape is None or prod(shape) > 1


def root(tensor: Tensor, movers: frozenset[str] = SHAPERS) -> Tensor:
    """What ``tensor`` is when operators of ``movers`` before it are looked through."""
    while tensor.maker is not None and tensor.maker.kind in movers and tensor.maker.data:
        tensor = tensor.maker.data[0]
    return tensor


def part_of(tensor: Tensor) -> tuple[Tensor, list[Op]] | None:
    """(what ``tensor`` is a slice of, the operators between), None where it is no slice."""
    ops: list[Op] = []
    while tensor.maker is not None and tensor.maker.kind in SHAPERS and tensor.maker.data:
        ops.append(tensor.maker)
        tensor = tensor.maker.data[0]
    maker = tensor.maker
    if maker is None or not maker.data or not maker.data[0].live:
        return None
    if maker.kind in ("Slice", "Split") or (maker.kind == "Gather" and not maker.data[-1].live):
        return maker.data[0], [*ops, maker]
    return None


def _contracts(op: Op) -> bool:
    """Whether an Einsum sums over an axis that both operands have."""
    equation = text_of(op.node, "equation", "").replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    first, _, second = inputs.partition(",")
    return bool(arrow) and any(c.isalpha() and c in second and c not in output for c in first)
