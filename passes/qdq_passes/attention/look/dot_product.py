"""Attention of onnx (opset 23 on) and MultiHeadAttention of com.microsoft, read."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.uses import dtype_of, float_of, integer_of


@dataclass(frozen=True, kw_only=True)
class DotProduct:
    """What one node computes.

    Args:
        query: [B, S, N·D] where ``flat``, else [B, N, S, D].
        key: [B, T, M·D] or [B, M, T, D]; N is a multiple of M.
        value: [B, T, M·E] or [B, M, T, E].
        flat_key: whether key and value have three axes.
        flat: whether the query, and the result, has three axes.
        heads: N, 0 where the query's axes tell it.
        shared: M, likewise.
        mask: booleans (true is seen) or a bias, to be broadcast to [B, N, S, T].
        is_boolean: whether the mask is booleans.
        padding: com.microsoft: nonzero where a key is none of padding, [B, T] or [B, S, T].
        projection: com.microsoft: added to queries, keys and values, [N·D + N·D + N·E].
        past_key: [B, M, past, D].
        past_value: [B, M, past, E].
        lengths: opset 24: how many keys of each row are no padding, int64 [B].
        causal: whether later keys are hidden.
        window: how many keys before itself a query sees besides, None for all.
        scale: factor of the scores, 0 for 1/√D.
        softcap: bound of the scores, 0 for none.
        softmax: element type of the softmax, None where it is that of the query.
        hidden: bias of what ``padding`` hides.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    flat_key: bool
    flat: bool
    heads: int = 0
    shared: int = 0
    mask: ir.Value | None = None
    is_boolean: bool = False
    padding: ir.Value | None = None
    projection: ir.Value | None = None
    past_key: ir.Value | None = None
    past_value: ir.Value | None = None
    lengths: ir.Value | None = None
    causal: bool = False
    window: int | None = None
    scale: float = 0.0
    softcap: float = 0.0
    softmax: ir.DataType | None = None
    hidden: float = -10000.0

    @property
    def dtype(self) -> ir.DataType:
        """Element type of queries, keys and values."""
        given = (self.query, self.key, self.value, self.past_key)
        known = [dtype for v in given if v is not None and (dtype := dtype_of(v)) is not None]
        return known[0] if known else ir.DataType.FLOAT


def attention(node: ir.Node, rank: int | None, mask: ir.DataType | None) -> DotProduct | str:
    """What ``node`` computes, Attention of onnx whose query has ``rank`` axes, its mask the type ``mask``; or why not known."""
    given = [*node.inputs, *[None] * 7][:7]
    query, key, value = given[:3]
    if query is None or key is None or value is None:
        return "lacks queries, keys or values"
    if given[3] is not None and mask is None:
        return "the type of its mask is unknown; run infer-shapes first"
    if rank not in (3, 4):
        return "the number of axes of its query is unknown; run infer-shapes first"
    if len(node.outputs) > 3 and (node.outputs[3].uses() or node.outputs[3].is_graph_output()):
        return "gives out its scores"
    if integer_of(node, "right_window_size", -1) >= 0:
        return "has a window of later keys"
    causal = bool(integer_of(node, "is_causal", 0))
    window, precision = integer_of(node, "left_window_size", -1), integer_of(node, "softmax_precision", 0)
    if window >= 0 and not causal:
        return "has a window without being causal"
    return DotProduct(
        query=query, key=key, value=value, flat_key=rank == 3, flat=rank == 3, heads=integer_of(node, "q_num_heads", 0),
        shared=integer_of(node, "kv_num_heads", 0), mask=given[3], is_boolean=mask == ir.DataType.BOOL,
        past_key=given[4], past_value=given[5], lengths=given[6],
        causal=causal, window=None if window < 0 else window, scale=float_of(node, "scale", 0.0),
        softcap=float_of(node, "softcap", 0.0), softmax=ir.DataType(precision) if precision else None,
    )  # fmt: skip


def multi_head(node: ir.Node, ranks: tuple[int | None, int | None, int | None]) -> DotProduct | str:
    """What ``node``, MultiHeadAttention of com.microsoft whose query, key and padding mask have ``ranks`` axes, computes."""
    given = [*node.inputs, *[None] * 10][:10]
    query, key, value, projection, padding, mask, past_key, past_value, past_length, beams = given
    if query is None or key is None or value is None or ranks[0] != 3 or ranks[1] not in (3, 4):
        return "queries, keys and values are packed in one tensor, or the number of their axes is unknown"
    if past_length is not None or beams is not None:
        return "shares its cache with other beams or between runs"
    if len(node.outputs) > 3 and (node.outputs[3].uses() or node.outputs[3].is_graph_output()):
        return "gives out its scores"
    if padding is not None and ranks[2] not in (2, 3):
        return "its padding mask is a list of lengths"
    if projection is not None and ranks[1] == 4:
        return "adds a bias to keys that are split into heads already"
    causal = bool(integer_of(node, "unidirectional", 0))
    if causal and ranks[1] == 4:
        return "hides later keys among keys that hold the past already"
    heads = integer_of(node, "num_heads", 0)
    return DotProduct(
        query=query, key=key, value=value, flat_key=ranks[1] == 3, flat=True, heads=heads, shared=heads, mask=mask,
        padding=padding,
        projection=projection, past_key=past_key, past_value=past_value, causal=causal,
        scale=float_of(node, "scale", 0.0), hidden=float_of(node, "mask_filter_value", -10000.0),
    )  # fmt: skip
