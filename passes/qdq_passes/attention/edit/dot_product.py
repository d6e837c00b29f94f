"""Attention of onnx (opset 23 on) and MultiHeadAttention of com.microsoft: read, and in standard operators; what several nodes of
one model have in common is made once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.primitives import (
    attend,
    bias_of,
    causal,
    key_of_length,
    merge_heads,
    repeat_heads,
    size_of,
    split_heads,
)
from qdq_passes.attention.look.group_query import last_size
from qdq_passes.core.base import Change, skip
from qdq_passes.graph.build import Builder, Once, Site, take_place
from qdq_passes.graph.edit import drop_unread
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import all_nodes, dtype_of, float_of, integer_of
from qdq_passes.select.selectors import Selector, select_operators


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


@dataclass(frozen=True)
class Sizes:
    """N heads of queries, M of keys, D elements in each of these, E in each of the values."""

    heads: int
    shared: int
    key: int
    value: int


def sizes_of(found: DotProduct, inferred: Inferred) -> Sizes | str:
    """The sizes of heads, or why they are not known."""

    def of(value: ir.Value, flat: bool, heads: int, past: ir.Value | None) -> tuple[int, int] | None:
        last, first = inferred.sizes(value, [-1]), None if flat else inferred.sizes(value, [1])
        width = last[0] if last else last_size(value)
        count = heads if flat else (first[0] if first else heads)
        if width is None and past is not None and (known := inferred.sizes(past, [3])):
            width = known[0] * (count if flat else 1)
        return (count, width // count if flat else width) if width and count else None

    query = of(found.query, found.flat, found.heads, None)
    key = of(found.key, found.flat_key, found.shared, found.past_key)
    value = of(found.value, found.flat_key, found.shared, found.past_value)
    if query is None and key is not None and found.heads:
        query = (found.heads, key[1])
    if query is None or key is None or value is None:
        return "the number or the size of its heads is unknown; run infer-shapes first"
    if key[0] != value[0] or query[0] % key[0] or query[1] != key[1]:
        return f"{query[0]} heads of queries, {key[0]} of keys, {value[0]} of values"
    return Sizes(query[0], key[0], query[1], value[1])


class Parts:
    """Queries, keys, values and masks of one attention, made before it.

    Args:
        site: where.
        node: the attention.
        found: what it computes.
        sizes: its sizes.
        once: what was made for others.
    """

    def __init__(self, site: Site, node: ir.Node, found: DotProduct, sizes: Sizes, once: Once) -> None:
        self.site, self.found, self.sizes = site, found, sizes
        self._once = once
        past = found.past_key
        self._query, self._key_axis = (1 if found.flat else 2), (1 if found.flat_key else 2)
        present = node.outputs[1] if len(node.outputs) > 1 else None
        length = key_of_length(past, present, found.query, self._query)
        self._key = (
            site.graph,
            *length,
            None if past is not None else size_of(found.key, self._key_axis),
            found.lengths,
        )

    def heads(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Queries [B, N, S, D]; keys and values with the past before them, [B, M, T, …]."""
        found, sizes, site = self.found, self.sizes, self.site
        query, key, value = self._projected()
        if found.flat:
            query = split_heads(site, query, sizes.heads, sizes.key)
        if found.flat_key:
            key, value = (
                split_heads(site, key, sizes.shared, sizes.key),
                split_heads(site, value, sizes.shared, sizes.value),
            )
        if found.past_key is not None and found.past_value is not None:
            key = site("Concat", found.past_key, key, name="PresentKey", axis=2)
            value = site("Concat", found.past_value, value, name="PresentValue", axis=2)
        return query, key, value

    def _projected(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        found, sizes, site = self.found, self.sizes, self.site
        if found.projection is None:
            return found.query, found.key, found.value
        ends = np.cumsum([0, sizes.heads * sizes.key, sizes.shared * sizes.key, sizes.shared * sizes.value]).tolist()
        parts = [site.slice(found.projection, 0, start, end) for start, end in pairwise(ends)]
        query, key, value = (
            site("Add", x, part, name="Biased")
            for x, part in zip((found.query, found.key, found.value), parts, strict=True)
        )
        return query, key, value

    def shown_keys(self) -> ir.Value | None:
        """Which keys the attention shows by itself, boolean, to be broadcast to [B, N, S, T]; None where it shows all."""
        found = self.found
        if not found.causal and found.lengths is None:
            return None
        return self._once(("seen", found.causal, found.window, *self._key), self._shown_keys)

    def _shown_keys(self) -> ir.Value:
        site, found = self.site, self.found
        length = site.dim(found.query, self._query)
        keys, rows = site.dim(found.key, self._key_axis), site.arange(length)
        if found.past_key is not None:
            past = site.dim(found.past_key, 2)
            rows, keys = site("Add", rows, past, name="Rows"), site("Add", past, keys, name="Total")
        columns = site.arange(keys)
        if found.lengths is None:
            return causal(site, site.unsqueeze(rows, 1), columns, _window(found))
        lengths = site.unsqueeze(found.lengths, 1, 2, 3)
        real = site("Less", columns, lengths)
        if not found.causal:
            return real
        rows = site("Add", site.unsqueeze(rows, 1), site("Sub", lengths, length), name="Rows")
        return site("And", causal(site, rows, columns, _window(found)), real)

    def biases(self) -> tuple[list[ir.Value], bool]:
        """The biases of the scores, and whether a row may see nothing."""
        site, found = self.site, self.found
        guard = found.padding is None and (found.mask is not None or found.lengths is not None)
        low = -math.inf if guard else None
        biases = []
        if found.padding is not None:
            shown = site.cast(found.padding, ir.DataType.BOOL)
            rank = found.padding.shape.rank() if found.padding.shape is not None else 2
            shown = site.unsqueeze(shown, 1, 2) if rank == 2 else site.unsqueeze(shown, 1)
            biases.append(bias_of(site, shown, found.dtype, found.hidden))
        if found.mask is not None:
            mask = found.mask
            key = ("bias", mask, found.dtype, site.graph)
            biases.append(
                mask if not found.is_boolean else self._once(key, lambda: bias_of(site, mask, found.dtype, low))
            )
        seen = self.shown_keys()
        if seen is not None:
            biases.append(
                self._once(("seen bias", seen, low, found.dtype), lambda: bias_of(site, seen, found.dtype, low))
            )
        return biases, guard

    def result(self) -> list[ir.Value]:
        """The outputs: y as the attention has it, present key, present value."""
        site, found, sizes = self.site, self.found, self.sizes
        query, key, value = self.heads()
        biases, guard = self.biases()
        groups = sizes.heads // sizes.shared
        y = attend(
            site, query, repeat_heads(site, key, sizes.heads, groups, sizes.key),
            repeat_heads(site, value, sizes.heads, groups, sizes.value),
            scale=found.scale or 1 / math.sqrt(sizes.key), dtype=found.dtype, biases=biases, softcap=found.softcap, guard=guard,
            softmax=found.softmax,
        )  # fmt: skip
        return [merge_heads(site, y, sizes.heads * sizes.value) if found.flat else y, key, value]


def _window(found: DotProduct) -> int:
    return 0 if found.window is None else found.window + 1


def attention_parts(builder: Builder, node: ir.Node, inferred: Inferred, once: Once) -> Parts | str:
    """The parts of ``node``, Attention of onnx; or why its pieces are not known to compute the same."""
    query, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
    rank = None if query is None else inferred.rank(query)
    found = attention(node, rank, None if mask is None else inferred.dtype(mask))
    if isinstance(found, str):
        return found
    if inferred.dtype(found.query) == ir.DataType.BFLOAT16:
        return "computes in bfloat16, of which each step would round by 2^-9"
    covered, total = _covered(found, inferred)
    if covered is not None and total is not None and covered not in (1, total):
        return f"its mask covers {covered} of {total} keys"
    sizes = sizes_of(found, inferred)
    return sizes if isinstance(sizes, str) else Parts(builder.at(node), node, found, sizes, once)


def _covered(found: DotProduct, inferred: Inferred) -> tuple[int | None, int | None]:
    """How many keys the mask is for, and how many there are; None where the sizes do not tell."""
    mask = None if found.mask is None else inferred.sizes(found.mask, [-1])
    keys = inferred.sizes(found.key, [1 if found.flat_key else 2])
    past = [0] if found.past_key is None else inferred.sizes(found.past_key, [2])
    return (mask[0] if mask else None), (keys[0] + past[0] if keys and past else None)


def multi_head_parts(builder: Builder, node: ir.Node, inferred: Inferred, once: Once) -> Parts | str:
    """The parts of ``node``, MultiHeadAttention of com.microsoft; or why its pieces are not known to compute the same."""
    given = [*node.inputs, *[None] * 5]
    ranks = tuple(None if value is None else inferred.rank(value) for value in (given[0], given[1], given[4]))
    found = multi_head(node, (ranks[0], ranks[1], ranks[2]))
    if isinstance(found, str):
        return found
    sizes = sizes_of(found, inferred)
    return sizes if isinstance(sizes, str) else Parts(builder.at(node), node, found, sizes, once)


def decompose_attentions(
    model: ir.Model,
    select: Selector,
    is_attention: Callable[[ir.Node], bool],
    parts_of: Callable[[Builder, ir.Node, Inferred, Once], Parts | str],
) -> Iterator[Change]:
    """Replace node by node; masks are made once for all that have the same lengths.

    Args:
        model: edited in place.
        select: the operators.
        is_attention: whether a node is of the kind to replace.
        parts_of: its parts, or the reason why it stays.
    """
    wanted, builder, inferred, once = select_operators(model, select), Builder(model), Inferred(model), Once()
    for node in all_nodes(model):
        if not is_attention(node) or node not in wanted:
            continue
        parts = parts_of(builder, node, inferred, once)
        if isinstance(parts, str):
            yield skip(node, parts)
            continue
        read = list(node.inputs)
        yield take_place(node, parts.result(), builder.namer, "standard operators that compute the same")
        drop_unread(read)
