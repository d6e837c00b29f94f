"""com.microsoft GroupQueryAttention, read: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md"""

from __future__ import annotations

import math

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.sizes import size_at
from qdq_passes.graph.uses import (
    bodies_of,
    constant_array,
    dtype_of,
    float_of,
    integer_of,
    is_constant,
    is_standard,
    text_of,
)

OPERATOR = "GroupQueryAttention"


@dataclass(frozen=True, kw_only=True)
class GroupQuery:
    """What one node computes.

    Args:
        query: [B, S, N·D], or queries, keys and values side by side where key and value are None.
        key: [B, S, N/G·D].
        value: likewise.
        past_key: [B, N/G, past, D]; None without a past.
        past_value: likewise.
        seqlens: int32 [B], tokens so far of each row, less one.
        cos: [positions, R/2], None where nothing is rotated.
        sin: likewise.
        positions: int64 [B, S], None where they follow from the lengths.
        bias: added to the scores, [B or 1, N or 1, S, T].
        sink: [N], a score of each head that takes part in the softmax alone.
        query_norm: [D], factor of an RMS normalization of each head of the queries, before rotation.
        key_norm: likewise of the keys.
        epsilon: of both.
        heads: N.
        groups: G, how many queries share a key.
        size: D.
        rotated: R, how many elements of a head are rotated; 0 for none.
        interleaved: whether even and odd elements are turned, not halves.
        scale: factor of the scores.
        softcap: their bound, 0 for none.
        window: how many keys a query sees at most; 0 for all.
        causal: whether it sees no later ones.
        smooth: whether a sink of 0 takes part where there is no ``sink``.
    """

    query: ir.Value
    key: ir.Value | None
    value: ir.Value | None
    past_key: ir.Value | None
    past_value: ir.Value | None
    seqlens: ir.Value | None
    cos: ir.Value | None
    sin: ir.Value | None
    positions: ir.Value | None
    bias: ir.Value | None
    sink: ir.Value | None
    query_norm: ir.Value | None
    key_norm: ir.Value | None
    epsilon: float
    heads: int
    groups: int
    size: int
    rotated: int
    interleaved: bool
    scale: float
    softcap: float
    window: int
    causal: bool
    smooth: bool

    @property
    def dtype(self) -> ir.DataType:
        """Element type of queries, keys and values."""
        known = [
            v.dtype for v in (self.past_key, self.query, self.cos, self.key) if v is not None and v.dtype is not None
        ]
        return known[0] if known else dtype_of(self.query) or ir.DataType.FLOAT


def group_query(node: ir.Node) -> GroupQuery | str:
    """What ``node`` computes, or in words why its pieces are not known to compute the same."""
    given = [*node.inputs, *[None] * (16 - len(node.inputs))]
    query, key, value, past_key, past_value, seqlens, _, cos, sin, positions, bias, sink, *more = given
    heads, shared = integer_of(node, "num_heads", 0), integer_of(node, "kv_num_heads", 0)
    if query is None or heads < 1 or shared < 1 or heads % shared:
        return f"{heads} heads of queries, {shared} of keys"
    if (key is None) != (value is None):
        return "has a key without a value"
    reason = _why_not(node, given)
    if reason:
        return reason
    size = head_size(node)
    if size is None:
        return "the size of a head is unknown; run infer-shapes first"
    if key is None and last_size(query) == heads * size:
        return "takes the keys of another layer"
    is_rotated = bool(integer_of(node, "do_rotary", 0)) and cos is not None and sin is not None
    width = table_width(cos) if is_rotated and cos is not None else 0
    if width is None:
        return "the width of its cosines is unknown; run infer-shapes first"
    return GroupQuery(
        query=query, key=key, value=value, past_key=past_key, past_value=past_value, seqlens=seqlens,
        cos=cos, sin=sin, positions=positions if is_rotated else None, bias=bias, sink=sink,
        query_norm=more[2], key_norm=more[3], epsilon=float_of(node, "qk_norm_epsilon", 1e-6),
        heads=heads, groups=heads // shared, size=size, rotated=2 * width,
        interleaved=bool(integer_of(node, "rotary_interleaved", 0)), scale=float_of(node, "scale", 0.0) or 1 / math.sqrt(size),
        softcap=float_of(node, "softcap", 0.0), window=max(integer_of(node, "local_window_size", -1), 0),
        causal=bool(integer_of(node, "causal", 1)), smooth=bool(integer_of(node, "smooth_softmax", 0)),
    )  # fmt: skip


def table_width(table: ir.Value) -> int | None:
    """Columns of ``table`` [positions, columns]; of one that an If chooses, those of both branches."""
    size = size_at(table, 1, rank=2)
    if size is not None:
        return size
    array, producer = constant_array(table), table.producer()
    if array is not None:
        return int(array.shape[-1])
    if producer is None or not is_standard(producer, "If", "Identity"):
        return None
    index = list(producer.outputs).index(table)
    sources: list[ir.Value | None] = [body.outputs[index] for body in bodies_of(producer)] or [*producer.inputs]
    widths = {None if value is None else table_width(value) for value in sources}
    return widths.pop() if len(widths) == 1 else None


def _why_not(node: ir.Node, given: list[ir.Value | None]) -> str:
    if integer_of(node, "qk_output", 0) or (len(node.outputs) > 3 and node.outputs[3].uses()):
        return "gives out its scores"
    if {text_of(node, f"{part}_quant_type", "NONE") for part in "kv"} != {"NONE"} or any(given[12:14]):
        return "its cache is quantized"
    if (given[14] is None) != (given[15] is None):
        return "normalizes queries or keys alone"
    if integer_of(node, "sliding_window_cache", 0) and is_in_place(
        given[3], node.outputs[1] if len(node.outputs) > 1 else None
    ):
        return "its cache has the size of its window, from which it drops rows itself"
    return ""


def is_in_place(past: ir.Value | None, present: ir.Value | None) -> bool:
    """Whether ``past`` is declared as long as ``present``: new rows are written into it then."""
    size = size_at(past, 2)
    return size is not None and size == size_at(present, 2)


def head_size(node: ir.Node) -> int | None:
    """Size of a head: of the past, else of the present, else of the queries; None where none of them is known."""
    for value in [v for v in (*node.inputs[3:5], *node.outputs[1:3]) if v is not None]:
        size = size_at(value, 3, rank=4)
        if size is not None:
            return size
    heads, shared = integer_of(node, "num_heads", 0), integer_of(node, "kv_num_heads", 0)
    query = node.inputs[0]
    is_packed = len(node.inputs) < 2 or node.inputs[1] is None
    width = last_size(query) if query is not None else None
    parts = heads + 2 * shared if is_packed else heads
    return width // parts if width is not None and width % parts == 0 else None


def last_size(value: ir.Value) -> int | None:
    """Size of the last axis of ``value``: its own, or that of the weight or bias it was made with."""
    for _ in range(4):
        own = size_at(value, -1)
        if own is not None:
            return own
        producer = value.producer()
        if producer is None:
            return None
        if producer.op_type == "MatMulNBits":
            return integer_of(producer, "N", 0) or None
        shapes = [
            v.shape
            for v in producer.inputs
            if v is not None and is_constant(v) and v.shape is not None and len(v.shape)
        ]
        size = shapes[-1][-1] if producer.op_type in ("MatMul", "Add", "Mul") and shapes else None
        if isinstance(size, int) and size > 1:
            return size
        if producer.op_type not in ("Add", "Mul", "Identity", "Cast") or producer.inputs[0] is None:
            return None
        value = producer.inputs[0]
    return None
