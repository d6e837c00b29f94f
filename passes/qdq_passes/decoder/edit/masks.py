"""The masks of a static decoder, float [batch, 1, sequence, total]: inputs that the host makes, or made of positions.

In place, p(q) the position of query q: hidden are keys k > p(q), and k ≤ p(q) - w with a window of w.
Slide, T slots, S queries, n = p(S - 1) + 1 tokens: query q stands in slot t(q) = T - S + q; hidden are k > t(q), k < T - n,
and k ≤ t(q) - w."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

from qdq_passes.decoder.look.io import DecoderIo
from qdq_passes.decoder.look.record import HIDDEN, HIDDEN_FLOAT16, Layout
from qdq_passes.graph.build import Builder, Site

Form = Literal["input", "graph"]
#: Name of the mask input; of one with a window of 16 ``attention_mask_w16``.
MASK = "attention_mask"


class CanonicalMasks:
    """Makes each mask once.

    Args:
        builder: the builder of this pass.
        io: roles of the decoder's inputs.
        form: an input, or made on the graph.
        layout: where tokens stand in the cache; matters for masks made on the graph.
        positions: int64 [batch, sequence], the positions that those are made of; None for inputs.
    """

    def __init__(self, builder: Builder, io: DecoderIo, form: Form, layout: Layout, positions: ir.Value | None) -> None:
        self._builder, self._io, self._form, self._layout, self._positions = builder, io, form, layout, positions
        self._made: dict[tuple[int, ir.DataType], ir.Value] = {}
        self._turned: dict[tuple[int, ir.DataType], ir.Value] = {}
        self._hidden: dict[int, ir.Value] = {}
        self._site: Site | None = None
        #: The inputs that were made.
        self.inputs: list[ir.Value] = []

    def of(self, window: int, dtype: ir.DataType, query_axis: int = -2) -> ir.Value:
        """The mask of ``window`` (0: none) for scores of type ``dtype``: 0 where a key is seen, `HIDDEN` elsewhere.

        [batch, 1, sequence, total]; [batch, sequence, 1, total] where ``query_axis`` is -3.
        """
        if query_axis == -3:
            if (window, dtype) not in self._turned:
                self._turned[window, dtype] = self._at().transpose(self.of(window, dtype), 0, 2, 1, 3)
            return self._turned[window, dtype]
        if (window, dtype) not in self._made:
            self._made[window, dtype] = (
                self._computed(window, dtype) if self._positions is not None else self._input(window, dtype)
            )
        return self._made[window, dtype]

    def _input(self, window: int, dtype: ir.DataType) -> ir.Value:
        """An input of type float16 or float; other types are cast from float."""
        own = dtype if dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16) else ir.DataType.FLOAT
        if own != dtype:
            return self._at().cast(self.of(window, own), dtype)
        wanted = f"{MASK}_w{window}" if window else MASK
        ids, pair = self._io.ids.shape, self._io.pairs[0]
        batch, new = (ids[0], ids[1]) if ids is not None and len(ids) > 1 else (None, None)
        past = pair.past.shape[pair.axis] if pair.past.shape is not None else None
        shape = ir.Shape([batch, 1, new, _sum(past, new)])
        value = ir.Value(name=self._builder.namer.fresh(wanted), type=ir.TensorType(own), shape=shape)
        inputs = self._builder.model.graph.inputs
        before = self.inputs[-1] if self.inputs else self._io.ids
        inputs.insert(list(inputs).index(before) + 1, value)
        self.inputs.append(value)
        return value

    def _at(self) -> Site:
        """The front of the graph."""
        if self._site is None:
            first = next(iter(self._builder.model.graph))
            self._site = self._builder.at(first, base=MASK)
        return self._site

    def _computed(self, window: int, dtype: ir.DataType) -> ir.Value:
        site = self._at()
        lowest = HIDDEN_FLOAT16 if dtype == ir.DataType.FLOAT16 else HIDDEN
        if window not in self._hidden:
            self._hidden[window] = self._rule(site, window)
        hidden, seen = site.constant(lowest, dtype, "hidden"), site.constant(0.0, dtype, "seen")
        value = site("Where", self._hidden[window], hidden, seen)
        value.type = ir.TensorType(dtype)
        return value

    def _rule(self, site: Site, window: int) -> ir.Value:
        """Boolean [batch, 1, sequence, total]: what is hidden."""
        assert self._positions is not None
        pair, ids = self._io.pairs[0], self._io.ids
        new = site.dim(ids, 1)
        total = site("Add", site.dim(pair.past, pair.axis), new, name="Total")
        keys = site.arange(total)
        queries = site.reshape(self._positions, [0, 1, -1, 1])
        first: ir.Value | None = None
        if self._layout == "slide":
            last = site("Gather", self._positions, site.constant(-1, word="last"), axis=1)
            count = site("Add", last, site.constant(1, word="one"))
            first = site.reshape(site("Sub", total, count), [-1, 1, 1, 1])
            slots = site("Add", site.arange(new), site("Sub", total, new))
            queries = site.reshape(slots, [1, 1, -1, 1])
        hidden = site("Greater", keys, queries)
        if window:
            oldest = site("Sub", queries, site.constant(window - 1, word="window"))
            hidden = site("Or", hidden, site("Greater", oldest, keys))
        return hidden if first is None else site("Or", hidden, site("Greater", first, keys))


def _sum(past: int | ir.SymbolicDim | None, new: int | ir.SymbolicDim | None) -> int | str | None:
    """The size past + new: a number, or the text of a sum."""
    if isinstance(past, int) and isinstance(new, int):
        return past + new
    texts = [d.value if isinstance(d, ir.SymbolicDim) else d for d in (past, new)]
    return None if None in texts else f"{texts[0]} + {texts[1]}"
