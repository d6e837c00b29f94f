"""The way from a decoder's logits back to the product that makes them: operators that treat each token on its own, and those of
an export that gives one row of logits, which choose the last token."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.kinds import ACTIVATIONS, kind_of
from qdq_passes.graph.sizes import rank_of, rank_or
from qdq_passes.graph.uses import constant_array, integer_of, is_constant, is_standard, readers, values_read

#: One data input, element by element.
_UNARY = ACTIVATIONS | {
    "Abs", "Cast", "CastLike", "DequantizeLinear", "Dropout", "Exp", "Identity", "Log", "Neg", "QuantizeLinear", "Sqrt",
}  # fmt: skip
_BINARY = frozenset({"Add", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Sum"})
_SOFTMAX = frozenset({"LogSoftmax", "Softmax"})
#: Kinds that multiply an activation, their first input, by a matrix.
_PRODUCTS = frozenset({"MatMul", "Gemm"})


@dataclass(frozen=True, kw_only=True)
class LogitsPath:
    """From hidden states [B, S, W] to logits [B, S, V].

    Args:
        product: the node that multiplies by the words' vectors.
        hidden: what it multiplies, [B, S, W]; in front of a pair of quantization that nobody else reads.
        reader: the node that reads ``hidden`` on this way, and with which input.
        flat: the Reshape to [B · S, W] before the product; None without one.
        unflat: the Reshape back to [B, S, V]; None without one.
        between: values behind ``hidden`` up to the logits, in order.
    """

    product: ir.Node
    hidden: ir.Value
    reader: tuple[ir.Node, int]
    flat: ir.Node | None
    unflat: ir.Node | None
    between: tuple[ir.Value, ...]


def logits_path(logits: ir.Value) -> LogitsPath | str:
    """The way back from ``logits``; in words why there is none."""
    value, behind = logits, [logits]
    unflat: ir.Node | None = None
    while True:
        node = value.producer()
        if node is None:
            return "no product makes the logits"
        if value is not logits and (len(readers(value)) != 1 or value.is_graph_output()):
            return f"{value.name} is read by others as well"
        if kind_of(node) in _PRODUCTS and _is_weight(node, 1):
            break
        index = _step(node, value)
        if is_standard(node, "Reshape") and unflat is None and _ranks(node) == (2, 3):
            unflat, index = node, 0
        if isinstance(index, str):
            return index
        source = node.inputs[index]
        if source is None:
            return f"{node.name} has no input to follow"
        value = source
        behind.append(value)
    if node.op_type in ("DynamicQuantizeMatMul", "GemmFastGelu"):
        return f"{node.name} quantizes all tokens together"
    return _before(node, unflat, behind)


def _before(product: ir.Node, unflat: ir.Node | None, behind: list[ir.Value]) -> LogitsPath | str:
    """The path, with the value that ``product`` multiplies, before pairs, casts and a Reshape that only it reads."""
    reader, hidden, flat = (product, 0), product.inputs[0], None
    while hidden is not None:
        node = hidden.producer()
        is_reshape = node is not None and is_standard(node, "Reshape") and unflat is not None and flat is None
        passes = node is not None and (
            kind_of(node) in ("QuantizeLinear", "DequantizeLinear") and not _step(node, hidden)
        )
        if node is None or not (is_reshape or passes):
            break
        if len(readers(hidden)) != 1 or hidden.is_graph_output():
            if is_reshape:
                return f"{hidden.name} is read by others as well"
            break
        behind.append(hidden)
        flat = node if is_reshape else flat
        reader, hidden = (node, 0), node.inputs[0]
    if hidden is None or (unflat is not None and flat is None):
        return f"what {product.name} multiplies is not [batch, sequence, width]"
    if hidden.shape is not None and len(hidden.shape) != 3:
        return f"{hidden.name} has {len(hidden.shape)} dimensions, not [batch, sequence, width]"
    return LogitsPath(
        product=product, hidden=hidden, reader=reader, flat=flat, unflat=unflat, between=tuple(reversed(behind))
    )


def _is_weight(node: ir.Node, at: int) -> bool:
    """Whether an operand of ``node`` other than the first follows from constants alone."""
    at = 3 if node.op_type in ("QLinearMatMul", "QGemm") else at
    value = node.inputs[at] if at < len(node.inputs) else None
    stack, seen = [value], set()
    while stack:
        current = stack.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        producer = current.producer()
        if current.is_graph_input() and current.const_value is None:
            return False
        if producer is not None:
            stack += values_read(producer)
    return value is not None


def _step(node: ir.Node, value: ir.Value) -> int | str:
    """Which input of ``node`` holds, token for token, what its output ``value`` is made of; in words why none does."""
    kind = kind_of(node)
    if value is not node.outputs[0]:
        return f"{node.op_type} mixes tokens"
    if kind in _UNARY:
        return 0 if _is_per_tensor(node) else f"{node.name} quantizes along an axis"
    if kind in _SOFTMAX and integer_of(node, "axis", -1) in (-1, 2):
        return 0
    if is_standard(node, "Slice"):
        axes = constant_array(node.inputs[3]) if len(node.inputs) > 3 else None
        return 0 if axes is not None and set(axes.reshape(-1).tolist()) <= {-1, 2} else f"{node.name} cuts tokens"
    if is_standard(node, "Clip"):
        return 0
    if kind in _BINARY and len(node.inputs) == 2:
        for index, other in ((0, node.inputs[1]), (1, node.inputs[0])):
            if other is not None and _is_same_for_all(other):
                return index
    return f"{node.name}, a {node.op_type}, stands between the logits and their product"


def _is_per_tensor(node: ir.Node) -> bool:
    """Whether a half of a pair has one scale, or one along the last axis; True for other operators."""
    if kind_of(node) not in ("QuantizeLinear", "DequantizeLinear"):
        return True
    scale = constant_array(node.inputs[1])
    return scale is not None and (scale.size == 1 or (scale.ndim == 1 and integer_of(node, "axis", 1) in (-1, 2)))


def _is_same_for_all(value: ir.Value) -> bool:
    """Whether ``value`` is one for all tokens of [batch, sequence, width]: its axis of the sequence is missing or 1."""
    shape = value.const_value.shape if value.const_value is not None else value.shape
    if shape is None:
        array = constant_array(value)
        return array is not None and (array.ndim < 2 or array.shape[-2] == 1)
    return len(shape) < 2 or (shape[-2] == 1 and (len(shape) < 3 or shape[0] == 1))


def _ranks(node: ir.Node) -> tuple[int | None, int | None]:
    """Number of dimensions of the input and of the output of a Reshape."""
    source, target = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    array = constant_array(target)
    after = rank_or(node.outputs[0], array.size) if array is not None else rank_of(node.outputs[0])
    maker = source.producer() if source is not None else None
    flat = maker is not None and kind_of(maker) == "Gemm"
    before = 2 if flat and rank_of(source) is None else rank_of(source)
    return before, after


#: Axis of the sequence in hidden states [B, S, W].
AXIS = 1


def gives_one_row(logits: ir.Value, length: int) -> bool:
    """Whether ``logits`` are [B, V] or [B, 1, V] although a run has ``length`` > 1 tokens."""
    sizes = None if logits.shape is None else list(logits.shape)
    return length > 1 and sizes is not None and (len(sizes) == 2 or (len(sizes) == 3 and sizes[AXIS] == 1))


def last_rows(logits: ir.Value, length: int) -> list[ir.Node]:
    """The nodes, Gather or Slice of [B, S, …], that choose the last of ``length`` tokens on the way to ``logits``.

    Empty where tokens become one row in another way.
    """
    found: dict[ir.Node, None] = {}
    stack, seen = [logits], {logits}
    while stack:
        node = stack.pop().producer()
        if node is None:
            return []
        if _chooses_last(node, length):
            found[node] = None
            continue
        for value in node.inputs:
            if value is None or value in seen or is_constant(value):
                continue
            if value.is_graph_input() or _has_rows(value, length):
                return []
            seen.add(value)
            stack.append(value)
    return list(found)


def _has_rows(value: ir.Value, length: int) -> bool:
    """Whether ``value`` is [B, S, …], or of unknown shape."""
    return value.shape is None or (len(value.shape) > 2 and value.shape[AXIS] == length)


def _chooses_last(node: ir.Node, length: int) -> bool:
    source = node.inputs[0] if node.inputs else None
    if source is None or source.shape is None or len(source.shape) < 3 or source.shape[AXIS] != length:
        return False
    rank, last = len(source.shape), (-1, length - 1)
    if is_standard(node, "Gather"):
        index = constant_array(node.inputs[1])
        return (
            integer_of(node, "axis", 0) % rank == AXIS
            and index is not None
            and index.size == 1
            and int(index.flat[0]) in last
        )
    if not is_standard(node, "Slice") or len(node.inputs) < 4:
        return False
    parts = [None if value is None else constant_array(value) for value in node.inputs[1:4]]
    starts, ends, axes = (None if part is None else part.reshape(-1).tolist() for part in parts)
    steps = None if len(node.inputs) < 5 else constant_array(node.inputs[4])
    if starts is None or ends is None or axes is None or (steps is not None and set(steps.reshape(-1).tolist()) != {1}):
        return False
    return [a % rank for a in axes] == [AXIS] and starts[0] in last and ends[0] >= length
