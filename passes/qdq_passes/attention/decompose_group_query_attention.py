"""decompose-group-query-attention

GroupQueryAttention in standard operators; what several nodes of one model have in common is made once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.primitives import (
    ATTENTION_BOUNDED,
    attend,
    bias_of,
    causal,
    key_of_length,
    merge_heads,
    repeat_heads,
    rms_norm,
    rotate,
    split_heads,
)
from qdq_passes.attention.look.group_query import OPERATOR, GroupQuery, group_query, is_in_place
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder, Once, Site, drop_chains, take_place
from qdq_passes.graph.edit import drop_unused_domains
from qdq_passes.graph.uses import all_nodes
from qdq_passes.select.selectors import ALL, Selector, select_operators


@dataclass(frozen=True)
class DecomposeGroupQueryAttention(Pass):
    """Write com.microsoft GroupQueryAttention in standard operators: Concat with the past, rotation, MatMul, Softmax, MatMul.

    scores = scale·QKᵀ (capped), key k seen by query q where past + q - window < k ≤ past + q; positions past + 0…S-1. Queries,
    keys and values in one tensor are cut apart; heads are normalized, rotated and repeated as inputs and attributes say. A
    local_window_size of w lets a query see w keys, as onnxruntime 1.31.1 has it (measured; 1.23.2 lets it see w + 1).

    Graph: ``query, key, value, past_key, past_value, seqlens_k, total → GroupQueryAttention → y, present_key, present_value`` →
    ``past_key, rotated key → Concat → present_key``, …, ``scores → Add(mask) → Softmax → MatMul → y``. Where past is declared as
    long as present, new rows are written at seqlens_k + 1 - S … seqlens_k by ScatterElements.
    Requires: rows that all are as long as the cache, where it grows: seqlens_k + 1 = past + S. The size of a head is known.
    Keeps: inputs, outputs and their names, an attention mask too that told the lengths alone and is not read any more; numerics
    within the bound. A cache of the size of its window (sliding_window_cache)
    becomes one that grows.
    Skips: scores given out, a quantized cache, keys of another layer (a past without new keys).

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = ATTENTION_BOUNDED
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node; positions and masks are made once for all that have the same past."""
        wanted, builder, once = select_operators(model, self.select), Builder(model), Once()
        for node in all_nodes(model):
            if node.op_type != OPERATOR or node.domain != "com.microsoft" or node not in wanted:
                continue
            found = group_query(node)
            if isinstance(found, str):
                yield skip(node, found)
                continue
            read = list(node.inputs)
            outputs = write_group_query(builder.at(node), node, found, once)
            yield take_place(node, outputs, builder.namer, "standard operators that compute the same")
            yield from drop_chains(read)
        drop_unused_domains(model, ["com.microsoft"])


class _Rows:
    """Positions and masks of the rows of one attention.

    Where the cache grows, row q stands behind the past in every row of the batch: at past + q. In place it stands at
    seqlens[b] + 1 - S + q.
    """

    def __init__(self, site: Site, found: GroupQuery, present: ir.Value, once: Once) -> None:
        self._site, self._found, self._present, self._once = site, found, present, once
        self.in_place = is_in_place(found.past_key, present)
        length = key_of_length(found.past_key, present, found.query, 1)
        self._key = (site.graph, *length, found.seqlens if self.in_place else None)

    def positions(self) -> ir.Value:
        """int64 [B, S]."""
        return self._once(("positions", *self._key), self._positions)

    def mask(self) -> ir.Value:
        """The bias that hides later keys and those beyond the window: [S, T], or [B, 1, S, T] in place."""
        return self._once(("mask", self._found.window, self._found.dtype, *self._key), self._mask)

    def table(self, cosines: ir.Value) -> ir.Value:
        """Rows of ``cosines`` [positions, R/2] as [B, 1, S, R/2]."""
        at = self._found.positions if self._found.positions is not None else self.positions()
        return self._once(
            ("table", cosines, at, self._site.graph),
            lambda: self._site.unsqueeze(self._site("Gather", cosines, at, axis=0), 1),
        )

    def grown(self, past: ir.Value | None, new: ir.Value) -> ir.Value:
        """The present of ``past`` and ``new`` [B, heads, S, D]."""
        if past is None:
            return new
        if not self.in_place:
            return self._site("Concat", past, new, name="Present", axis=2)
        slots = self._once(("slots", *self._key), lambda: self._slots(new))
        return self._site("ScatterElements", past, slots, new, name="Present", axis=2)

    def sink(self) -> ir.Value | None:
        """[B, N, S, 1]; None without one."""
        found, site = self._found, self._site
        if found.sink is None and not found.smooth:
            return None
        each = found.sink if found.sink is not None else site.constant([0.0] * found.heads, found.dtype, "sink")
        sizes = [site.unsqueeze(site.dim(found.query, axis), 0) for axis in (0, 1)]
        one = site.constant([1])
        shape = self._once(("sink shape", *self._key), lambda: site("Concat", sizes[0], one, sizes[1], one, axis=0))
        return site("Expand", site.reshape(each, [1, found.heads, 1, 1]), shape, name="Sink")

    def _length(self) -> ir.Value:
        """S, a scalar."""
        return self._once(("length", *self._key), lambda: self._site.dim(self._found.query, 1))

    def _past(self) -> ir.Value:
        """How many rows the past has, a scalar."""
        past = self._found.past_key
        if past is None:
            return self._site.constant(0)
        return self._once(("past", *self._key), lambda: self._site.dim(past, 2))

    def _line(self) -> ir.Value:
        """past + 0…S-1, [S]."""
        return self._once(
            ("line", *self._key),
            lambda: self._site("Add", self._site.arange(self._length()), self._past(), name="Rows"),
        )

    def _positions(self) -> ir.Value:
        site = self._site
        if not self.in_place:
            batch = site.unsqueeze(site.dim(self._found.query, 0), 0)
            shape = site("Concat", batch, site.constant([1]), axis=0)
            return site("Expand", self._line(), shape, name="Positions")
        assert self._found.seqlens is not None
        last = site.unsqueeze(site.cast(self._found.seqlens, ir.DataType.INT64), 1)
        back = site("Sub", site.arange(self._length()), site("Sub", self._length(), site.constant(1)))
        return site("Add", last, back, name="Positions")

    def _mask(self) -> ir.Value:
        site = self._site
        if self.in_place:
            rows, keys = site.unsqueeze(self.positions(), 1, 3), site.arange(site.dim(self._present, 2))
        else:
            rows = site.unsqueeze(self._line(), 1)
            keys = site.arange(site("Add", self._past(), self._length(), name="Total"))
        return bias_of(site, causal(site, rows, keys, self._found.window), self._found.dtype)

    def _slots(self, new: ir.Value) -> ir.Value:
        spread = self._site.unsqueeze(self.positions(), 1, 3)
        return self._site("Expand", spread, self._site("Shape", new), name="Slots")


def write_group_query(site: Site, node: ir.Node, found: GroupQuery, once: Once) -> list[ir.Value]:
    """The outputs of ``node``, made of standard operators before it: y, present key, present value."""
    rows = _Rows(site, found, node.outputs[min(1, len(node.outputs) - 1)], once)
    query, key, value = _heads(site, found)
    if found.query_norm is not None and found.key_norm is not None:
        query = rms_norm(site, query, found.query_norm, dtype=found.dtype, epsilon=found.epsilon)
        key = rms_norm(site, key, found.key_norm, dtype=found.dtype, epsilon=found.epsilon)
    if found.rotated and found.cos is not None and found.sin is not None:
        cos, sin = rows.table(found.cos), rows.table(found.sin)
        query, key = (
            rotate(site, x, cos, sin, size=found.size, rotated=found.rotated, interleaved=found.interleaved)
            for x in (query, key)
        )
    presents = [rows.grown(found.past_key, key), rows.grown(found.past_value, value)]
    keys, values = (repeat_heads(site, x, found.heads, found.groups, found.size) for x in presents)
    biases = [v for v in (found.bias, rows.mask() if found.causal else None) if v is not None]
    y = attend(
        site,
        query,
        keys,
        values,
        scale=found.scale,
        dtype=found.dtype,
        biases=biases,
        softcap=found.softcap,
        sink=rows.sink(),
    )
    return [merge_heads(site, y, found.heads * found.size), *presents]


def _heads(site: Site, found: GroupQuery) -> list[ir.Value]:
    """Queries [B, N, S, D], keys and values [B, N/G, S, D]."""
    shared = found.heads // found.groups
    if found.key is not None and found.value is not None:
        parts = [(found.query, found.heads), (found.key, shared), (found.value, shared)]
    else:
        ends = [0, found.heads, found.heads + shared, found.heads + 2 * shared]
        parts = [
            (site.slice(found.query, -1, start * found.size, end * found.size), end - start)
            for start, end in pairwise(ends)
        ]
    return [split_heads(site, x, heads, found.size) for x, heads in parts]
