"""dedicate-qdq

Each consumer of F(t) reads an F(t) of its own: the same numbers, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, graph_of, new_constant
from qdq_passes.graph.uses import constant_array, label
from qdq_passes.qdq.edit.move import copy_half
from qdq_passes.qdq.look.pairs import Pair, dequantizers, is_named, pair_of, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class DedicateQdq(Pass):
    """Give every consumer of a value a pair of its own; a graph output counts as a consumer.

    Graph: ``t → Q → DQ → {A, B}`` → ``t → {Q → DQ → A, Q_1 → DQ_1 → B}``; stored integers get a DequantizeLinear per consumer:
    ``w_quantized → {DQ → A, DQ_1 → B}``. The graph output, or the first consumer, keeps the pair that was there.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: FixNeuron, whose halves are one node.

    Args:
        select: pairs, by their float value.
        parameters: ``own`` gives every new pair copies of scale and zero point, so that it can be set separately; ``shared``
            lets all read the same. What is computed at run time is always shared.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    parameters: Literal["own", "shared"] = "own"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From the outputs to the inputs: a Q of its own is one more consumer of what it reads."""
        hit, namer = select(model, self.select), Namer(model)
        nodes, values = set(hit.nodes), set(hit.values)
        halves = [pair.dq for pair in qdq_pairs(model) if self.select.is_all or is_named(pair, nodes, values)]
        is_done = False
        while not is_done:
            changes: list[Change] = []
            for pair in [pair for node in reversed(halves) if (pair := pair_of(node)) is not None]:
                changes += self._dedicate(pair, halves, namer)
            is_done = all(change.is_skip for change in changes)
            yield from (change for change in changes if is_done or not change.is_skip)

    def _dedicate(self, pair: Pair, halves: list[ir.Node], namer: Namer) -> Iterator[Change]:
        """A DQ per consumer of ``pair``, a Q for each of them; then its own DQ leaves a Q that has others."""
        if pair.q is pair.dq:
            yield skip(pair.dq, "both halves are one node; run convert-qdq-domain{to=onnx} first")
            return
        yield from self._split(pair, halves, namer)
        if pair.q is not None and len(dequantizers(pair.q)) > 1:
            yield self._peel(pair, pair.q, namer)

    def _split(self, pair: Pair, halves: list[ir.Node], namer: Namer) -> Iterator[Change]:
        """A pair for each consumer of ``pair`` but the first."""
        value, last = pair.output, pair.dq
        consumers = list(dict.fromkeys(use.node for use in value.uses()))
        for consumer in consumers if value.is_graph_output() else consumers[1:]:
            own = self._parameters(pair, namer)
            made: list[ir.Node] = []
            source = pair.source
            for half in [pair.q, pair.dq]:
                if half is not None:
                    assert source is not None
                    read = [own.get(v, v) if v is not None else None for v in half.inputs[1:]]
                    node = copy_half(half, source, namer, base=pair.tensor, like=value, near=half, parameters=read)
                    made.append(node)
                    source = node.outputs[0]
            graph_of(last).insert_after(last, made)
            last = made[-1]
            halves.append(last)
            for use in [use for use in value.uses() if use.node is consumer]:
                consumer.replace_input_with(use.idx, last.outputs[0])
            names = ", ".join(node.name or "" for node in made)
            yield Change("insert", pair.tensor, f"{names} for {label(consumer)}")

    def _peel(self, pair: Pair, q: ir.Node, namer: Namer) -> Change:
        """A Q of its own for the DQ of ``pair``."""
        own, source = self._parameters(pair, namer), pair.source
        assert source is not None
        read = [own.get(v, v) if v is not None else None for v in q.inputs[1:]]
        made = copy_half(q, source, namer, base=pair.tensor, like=pair.output, near=q, parameters=read)
        graph_of(q).insert_after(q, made)
        pair.dq.replace_input_with(0, made.outputs[0])
        for index, value in enumerate(pair.dq.inputs[1:], 1):
            pair.dq.replace_input_with(index, own.get(value, value) if value is not None else None)
        return Change("insert", pair.tensor, f"{made.name} for {pair.dq.name}")

    def _parameters(self, pair: Pair, namer: Namer) -> dict[ir.Value, ir.Value]:
        """Copies of the constants that the halves of ``pair`` read, each beside its original; none where they are shared."""
        copies: dict[ir.Value, ir.Value] = {}
        for half in [pair.q, pair.dq] if self.parameters == "own" else []:
            for value in half.inputs[1:] if half is not None else []:
                array = constant_array(value)
                if value is None or array is None or value in copies or value.graph is None:
                    continue
                data = value.const_value if value.const_value is not None else ir.tensor(array)
                copy = new_constant(value.graph, namer, value.name or "parameter", data, [pair.dq])
                copy.metadata_props.update(value.metadata_props)
                copies[value] = copy
        return copies
