"""bind-group-query-lengths"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.look.group_query import OPERATOR
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.edit.slots import ensure_positions
from qdq_passes.decoder.look.io import CachePair, decoder_io
from qdq_passes.decoder.look.updates import numbers, refuse_other_readers
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.build import Builder, drop_chains, drop_input
from qdq_passes.graph.uses import integer_of, is_constant, label

#: Inputs of com.microsoft GroupQueryAttention.
SEQLENS, TOTAL, COSINES = 5, 6, 7


@dataclass(frozen=True)
class BindGroupQueryLengths(Pass):
    """Let GroupQueryAttention update its cache in place: past has a slot for every token, lengths come from the positions.

    seqlens_k[b] = p(b, S - 1), the index of the last token of row b; total_sequence_length = C; p = ``position_ids`` [B, S].

    Graph: ``past [B, H, C-S, D], attention_mask → … → seqlens_k, total → GroupQueryAttention → present`` →
    ``past [B, H, C, D], position_ids → Slice → Cast → seqlens_k; total = C``. An attention mask that fed the lengths alone goes.
    Requires: static shapes (bind-decoder); one row, or one token a run: onnxruntime's operator takes no more of both.
    Keeps: names of the other inputs and of the outputs; what a token's row of logits is. A cache of the size of its window
    (sliding_window_cache) becomes one of C slots: local_window_size, which stays, hides the same keys.
    Skips: a model without the operator.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="past has C slots, not C - S; lengths come from the positions")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Check every attention, then change all."""
        if not any(node.op_type == OPERATOR for node in model.graph):
            return
        io, builder, pairs = decoder_io(model), Builder(model), []
        for pair in io.pairs:
            if pair.update.op_type != OPERATOR:
                yield skip(pair.update, f"is no {OPERATOR}")
            elif _is_bound(pair, io.positions):
                yield skip(pair.update, "its lengths come from the positions already")
            else:
                pairs.append(pair)
        if not pairs:
            return
        batch, length = numbers(io.ids)[:2]
        contexts = [_context(pair, batch, length) for pair in pairs]
        positions, is_new = ensure_positions(model, io, builder, batch, length)
        if is_new:
            yield Change("insert", positions.name or "", "input: the position of each token")
        site = builder.at(next(iter(model.graph)), base=positions.name, stands_for=[pairs[0].update])
        lengths = site.cast(site.reshape(site.slice(positions, -1, length - 1, length), [-1]), ir.DataType.INT32)
        for pair, context in zip(pairs, contexts, strict=True):
            yield from _bind(pair, lengths, site.constant(np.array(context), ir.DataType.INT32, "context"), context)
        yield from drop_input(model, io.mask)


def _is_bound(pair: CachePair, positions: ir.Value | None) -> bool:
    """Whether the lengths of ``pair`` come from ``positions`` alone."""
    if positions is None or not is_constant(pair.update.inputs[TOTAL]):
        return False
    stack, starts = [pair.update.inputs[SEQLENS]], set[ir.Value]()
    while stack:
        value = stack.pop()
        producer = value.producer() if value is not None else None
        if producer is not None and not is_constant(value):
            stack += producer.inputs
        elif value is not None and not is_constant(value):
            starts.add(value)
    return starts == {positions}


def _context(pair: CachePair, batch: int, length: int) -> int:
    """Slots of ``pair`` for all tokens; ``length`` of them are new in each of ``batch`` rows."""
    node = pair.update
    refuse_other_readers(pair)
    past, context = numbers(pair.past)[pair.axis], numbers(pair.present)[pair.axis]
    if context not in (past, past + length) or context < length:
        raise ModelError(
            f"sizes do not fit: past {past} and {length} new rows in a context of {context}", where=node.name,
            hint=f"bind {pair.past.name} to context - sequence",
        )  # fmt: skip
    if batch > 1 and 1 < length < context:
        raise UnsupportedError(
            f"takes one row where it is given a past and several tokens, these are {batch} rows of {length}", where=node.name,
            hint="take a batch of 1, or run decompose-group-query-attention first",
        )  # fmt: skip
    cosines = node.inputs[COSINES] if len(node.inputs) > COSINES else None
    rows = cosines.shape[0] if cosines is not None and cosines.shape is not None else None
    if isinstance(rows, int) and rows < context:
        raise UnsupportedError(
            f"rotates by tables of {rows} positions, the context has {context}", where=node.name,
            hint=f"take a context of at most {rows}",
        )  # fmt: skip
    return context


def _bind(pair: CachePair, lengths: ir.Value, total: ir.Value, context: int) -> Iterator[Change]:
    node, old = pair.update, list(pair.update.inputs)
    if pair.past.shape is not None:
        pair.past.shape = ir.Shape(
            [context if axis == pair.axis else size for axis, size in enumerate(pair.past.shape)]
        )
    because = f"{pair.past.name} has {context} slots"
    if pair.part == "key":
        node.replace_input_with(SEQLENS, lengths)
        node.replace_input_with(TOTAL, total)
        yield from drop_chains([old[SEQLENS], old[TOTAL]])
        if integer_of(node, "sliding_window_cache", 0):
            node.attributes.pop("sliding_window_cache")
            because += ", more than its window of keys"
    yield Change("edit", label(node), because)
