"""Shape functions of onnxruntime's fused attentions. B batch, S new tokens, P past, N heads, K cached heads, D head size."""

from __future__ import annotations

from collections.abc import Sequence

from qdq_passes.graph.shapes.contrib_call import UNKNOWN, Call, Dim, Spec, product, quotient, total


def group_query_attention(call: Call) -> Sequence[Spec | None]:
    """query [B, S, N·D], or [B, S, (N + 2K)·D] where no key is given → [B, S, N·D]; caches [B, K, max(past, total), D]."""
    query, past = call.input(0), call.input(3)
    heads, cached = call.integer("num_heads"), call.integer("kv_num_heads")
    packed = not call.has(1)
    size = quotient(query.dim(-1), heads + 2 * cached if packed else heads)
    output = query.with_dims((query.dim(0), query.dim(1), product(heads, size) if packed else query.dim(-1)))
    present = _grown(call, past, query.with_dims((query.dim(0), cached, None, size)))
    scores = output.with_dims((query.dim(0), heads, query.dim(1), present.dim(2)))
    return output, present, _grown(call, call.input(4), present), scores


def _grown(call: Call, past: Spec, otherwise: Spec) -> Spec:
    """The cache behind a GroupQueryAttention: as long as the one before, or as the total length, whichever is more."""
    length = call.data(6)
    count = int(length.reshape(-1)[0]) if length is not None and length.size == 1 else None
    before = past.dim(2)
    rows: Dim = None
    if not call.has(3):
        rows = count
    elif count is not None and isinstance(before, int):
        rows = max(count, before)
    dims = [known if known is not None else other for known, other in _pairs(past, otherwise)]
    return Spec(past.dtype or otherwise.dtype, (dims[0], dims[1], rows, dims[3]))


def _pairs(past: Spec, otherwise: Spec) -> list[tuple[Dim, Dim]]:
    return [(past.dim(axis) if isinstance(past.dim(axis), int) else None, otherwise.dim(axis)) for axis in range(4)]


def multi_head_attention(call: Call) -> Sequence[Spec | None]:
    """query [B, S, N·D], or all three in one [B, S, N, 3, D] → [B, S, N·Dv]; caches [B, N, P + S, D]."""
    query, key, value, heads = call.input(0), call.input(1), call.input(2), call.integer("num_heads")
    if query.rank == 5:
        size, width, new = query.dim(4), product(heads, query.dim(4)), query.dim(1)
    else:
        size, new = quotient(query.dim(-1), heads), _rows(key)
        width = (
            value.dim(-1) if value.rank == 3 else product(heads, value.dim(-1)) if value.rank == 4 else query.dim(-1)
        )
    output = query.with_dims((query.dim(0), query.dim(1), width))
    return (output, *_presents(call, 6, query.with_dims((query.dim(0), heads, new, size)), quotient(width, heads)))


def _rows(key: Spec) -> Dim:
    """Tokens in a key: [B, L, N·D], [B, L, N, 2, D], or of cross attention [B, N, L, D]."""
    return key.dim(2) if key.rank == 4 else key.dim(1)


def _presents(call: Call, at: int, new: Spec, value_size: Dim) -> list[Spec]:
    """The two caches behind input ``at`` (key) and ``at + 1`` (value), to which ``new`` rows are added."""
    found = []
    for index, size in ((at, new.dim(3)), (at + 1, value_size)):
        past = call.input(index)
        shared = call.has(8) or bool(call.integer("past_present_share_buffer"))
        rows = (
            past.dim(2)
            if shared and call.has(index)
            else total(past.dim(2), new.dim(2))
            if call.has(index)
            else new.dim(2)
        )
        found.append(new.with_dims((new.dim(0), new.dim(1), rows, size)))
    return found


def attention(call: Call) -> Sequence[Spec | None]:
    """x [B, S, W], weight [W, 3·N·D] → [B, S, N·Dv]; the cache [2, B, N, P + S, D] holds keys and values."""
    x, weight, past = call.input(0), call.input(1), call.input(4)
    widths, heads = call.integers("qkv_hidden_sizes"), call.integer("num_heads")
    width: Dim = widths[2] if len(widths) == 3 else quotient(weight.dim(1), 3)
    rows = past.dim(3) if call.integer("past_present_share_buffer") else total(past.dim(3), x.dim(1))
    present = x.with_dims((2, x.dim(0), heads, rows if call.has(4) else x.dim(1), quotient(width, heads)))
    return x.with_dims((x.dim(0), x.dim(1), width)), present


def sparse_attention(call: Call) -> Sequence[Spec | None]:
    """As `group_query_attention`, its caches always in place."""
    query, heads, cached = call.input(0), call.integer("num_heads"), call.integer("kv_num_heads")
    packed = not call.has(1)
    size = quotient(query.dim(-1), heads + 2 * cached if packed else heads)
    output = query.with_dims((query.dim(0), query.dim(1), product(heads, size) if packed else query.dim(-1)))
    return output, call.input(3), call.input(4)


def decoder_attention(call: Call) -> Sequence[Spec | None]:
    """DecoderMaskedMultiHeadAttention: query [B, 1, N·D] → the same; caches are as long as before, or one more."""
    query, value, heads = call.input(0), call.input(2), call.integer("num_heads")
    if not call.has(5):
        return query.with_last(value.dim(-1) if value.rank == 3 else query.dim(-1)), UNKNOWN, UNKNOWN
    size = quotient(query.dim(-1), heads)
    shared = bool(call.integer("past_present_share_buffer"))
    presents = []
    for index in (5, 6):
        past = call.input(index)
        rows = past.dim(2) if shared else total(past.dim(2), 1)
        presents.append(query.with_dims((query.dim(0), heads, rows, past.dim(3) if past.dim(3) is not None else size)))
    return query, *presents
