"""unify-kv-state"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.look.cache import CachePair
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.updates import numbers
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.annotate import DEMAND, ENCODING, Demand
from qdq_passes.graph.build import Builder
from qdq_passes.graph.edit import hand_over, make_node, move_annotations

#: Names of the states, as Apple's stateful Core ML decoders have them.
_NAMES = {"key": "keyCache", "value": "valueCache", "both": "kvCache"}


@dataclass(frozen=True)
class UnifyKvState(Pass):
    """Keep the KV cache of all layers in one state for keys and one for values, or one for both.

    A tensor [B, H, C, D] for each of L layers becomes [L·B, H, C, D], layer after layer along the first axis. Core ML decoders of
    Apple have the states keyCache and valueCache of [L, B, H, C, D]: the same bytes, and for one row the same tensor without the
    axis of 1. Layers come first, as only the first size of a state need not be a power of two.

    Graph: ``past_l → ScatterElements → present_l``, L times → ``keyCache → Slice [l·B : (l+1)·B] → ScatterElements → … → Concat →
    keyCache_out``. The Slices stand before all that read them, the Concat stands behind all that is updated: a runner may give
    input and output one buffer.
    Requires: a cache that is updated in place (scatter-kv-cache), of one shape and type in all layers.
    Keeps: logits bit by bit. Inputs past_l and outputs present_l are gone.
    Skips: one layer with a state for each part, or states that are there already.

    Args:
        states: ``two``: keys and values apart; ``one``: all keys, then all values, [2·L·B, H, C, D].
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the cache goes in and comes out as other tensors")
    states: Literal["two", "one"] = "two"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """State by state."""
        pairs = decoder_io(model).pairs
        if any(pair.layers > 1 for pair in pairs):
            yield skip(pairs[0].past, "is a state of several layers already")
            return
        keys, values = ([pair for pair in pairs if pair.part == part] for part in ("key", "value"))
        groups = [keys, values] if self.states == "two" else [[*keys, *values]]
        for group in groups:
            _check(group)
        builder = Builder(model)
        for group in groups:
            if len(group) == 1:
                yield skip(group[0].past, "is the only one of its kind")
            else:
                yield from _unify(model, group, builder, group[0].part if self.states == "two" else "both")


def _check(group: Sequence[CachePair]) -> None:
    """Refuse tensors that do not go into one state."""
    first = group[0]
    for pair in group:
        if numbers(pair.past) != numbers(pair.present):
            raise UnsupportedError(
                f"is {pair.past.shape} and comes out as {pair.present.shape}: it is not updated in place", where=pair.past.name,
                hint="run scatter-kv-cache first, or split with the layout in-place",
            )  # fmt: skip
        if numbers(pair.past) != numbers(first.past) or pair.past.dtype != first.past.dtype or pair.axis != first.axis:
            theirs = f"{first.past.name}, {first.past.dtype} {first.past.shape}"
            raise UnsupportedError(
                f"{pair.past.dtype} {pair.past.shape} does not go into one state with {theirs}", where=pair.past.name,
                hint="layers of a state have one shape; keys and values of other shapes take states=two",
            )  # fmt: skip
    if first.axis == 0:
        raise UnsupportedError(
            "has the sequence on its first axis", where=first.past.name, hint="layers are joined there"
        )


def _unify(model: ir.Model, group: Sequence[CachePair], builder: Builder, part: str) -> Iterator[Change]:
    graph, namer = model.graph, builder.namer
    batch, *rest = numbers(group[0].past)
    shape = [len(group) * batch, *rest]
    name = namer.fresh(_NAMES[part])
    state = ir.Value(name=name, type=group[0].past.type, shape=ir.Shape(shape))
    graph.inputs.insert(list(graph.inputs).index(group[0].past), state)
    place = list(graph.outputs).index(group[0].present)
    pieces: list[ir.Value] = []
    for number, pair in enumerate(group):
        first = next(node for node in graph if pair.past in node.inputs)
        site = builder.at(first, base=f"{name}_{number}", stands_for=[pair.update])
        piece = site.slice(state, 0, number * batch, (number + 1) * batch)
        piece.shape = ir.Shape(numbers(pair.past))
        hand_over(pair.past, piece, namer)
        graph.inputs.remove(pair.past)
        graph.outputs.remove(pair.present)
        pieces.append(pair.present)
    join = make_node(
        "Concat", pieces, name=namer.fresh(f"{name}_Concat"), output=namer.fresh(f"{name}_out"), like=state,
        attributes=[ir.AttrInt64("axis", 0)], stands_for=[pair.update for pair in group],
    )  # fmt: skip
    graph.append(join)
    _carry([pair.past for pair in group], state)
    _carry([pair.present for pair in group], join.outputs[0])
    present = join.outputs[0]
    graph.outputs.insert(place, present)
    yield Change("replace", name, f"{len(group)} tensors of {group[0].past.shape}, one behind the other")


def _carry(olds: Sequence[ir.Value], new: ir.Value) -> None:
    """Give ``new`` the annotations of ``olds`` where these have one encoding, or none."""
    encodings = [ENCODING.get(value) for value in olds]
    if any(encoding != encodings[0] for encoding in encodings):
        return
    demands = [demand for value in olds if (demand := DEMAND.get(value)) is not None]
    if demands:
        DEMAND.set(new, Demand(tuple(dict.fromkeys(node for demand in demands for node in demand.nodes))))
    move_annotations(olds[0], new)
