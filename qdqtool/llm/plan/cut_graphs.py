"""Cuts the graphs of a split into consecutive parts, all of them at the same activations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx_ir as ir
from qdq_passes.core.registry import PASSES
from qdq_passes.decoder.look.cut_points import WIDEST, chosen_cuts, cuts
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import in_order
from qdq_passes.pipeline.pipeline import Pipeline

from qdqtool.llm.plan.splitting import StaticGraph


def cut_graphs(
    graphs: Sequence[StaticGraph], *, parts: int | None = None, max_bytes: int | None = None
) -> list[tuple[StaticGraph, list[ir.Model]]]:
    """Each of ``graphs`` with its parts; itself alone where nothing asks for more.

    The largest graph decides where to cut; the others are cut there too, so that a device keeps the weights of a part for all.

    Raises:
        UsageError: it cannot be cut so often, or into parts so small; one state holds the cache of all layers.
        UnsupportedError: a graph has no such place.
    """
    if parts in (None, 1) and max_bytes is None:
        return [(graph, [graph.model]) for graph in graphs]
    if any(tensor.layers > 1 for graph in graphs for tensor in graph.decoder.cache):
        raise UsageError(
            "one state holds the cache of all layers, which every part would need",
            hint="leave out --parts and --max-part-bytes, or take a --naming with a cache tensor a layer",
        )
    largest = max(graphs, key=lambda graph: graph.decoder.ctx_len * graph.decoder.batch_size)
    io = decoder_io(largest.model)
    chosen = chosen_cuts(in_order(largest.model.graph), io, parts=parts, max_bytes=max_bytes)
    places = [tuple(value.name or "" for value in values) for values in chosen]
    return [(graph, _cut(graph, places)) for graph in graphs]


def _cut(graph: StaticGraph, places: Sequence[tuple[str, ...]]) -> list[ir.Model]:
    """The parts of ``graph``, cut at the values of each of ``places``."""
    if not places:
        return [graph.model]
    there = cuts(in_order(graph.model.graph), decoder_io(graph.model), WIDEST)
    known = {frozenset(value.name for value in place.values) for place in there}
    for names in places:
        if frozenset(names) not in known:
            raise UnsupportedError(
                f"cannot be cut at {' and '.join(names)}, where the largest graph is cut",
                where=graph.specialization.name, hint="split the shapes one by one",
            )  # fmt: skip
    ends = [value.name or "" for value in graph.model.graph.outputs]
    given = [value.name or "" for value in graph.model.graph.inputs]
    found = []
    for first, last in itertools.pairwise([(), *places, ()]):
        part = copy_model(graph.model)
        outputs = [*last, *(name for name in _made_between(graph.model, ends, first, last) if name not in last)]
        cut = PASSES.load("extract-subgraph")(inputs=(*given, *first), outputs=tuple(outputs))
        Pipeline((cut,)).run(part)
        for value in [v for v in part.graph.inputs if not v.uses() and not v.is_graph_output()]:
            part.graph.inputs.remove(value)
        found.append(part)
    return found


def _made_between(model: ir.Model, ends: Sequence[str], first: Sequence[str], last: Sequence[str]) -> list[str]:
    """The graph outputs that are made behind the cut ``first`` and up to the cut ``last``, in their order."""
    order = {value.name: number for number, node in enumerate(model.graph) for value in node.outputs}
    low = max((order[name] for name in first), default=-1)
    high = max((order[name] for name in last), default=len(model.graph))
    return [name for name in ends if low < order[name] <= high]


def joined(parts: Sequence[ir.Model]) -> ir.Model:
    """The graph that was cut into ``parts``, which are used up: what a part reads of another, and weights, are found by name."""
    whole, *others = parts
    graph = whole.graph
    known = {value.name: value for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    for other in others:
        given, weights = list(other.graph.inputs), list(other.graph.initializers.values())
        ends, nodes = list(other.graph.outputs), list(other.graph)
        other.graph.inputs.clear()
        other.graph.outputs.clear()
        other.graph.initializers.clear()
        other.graph.remove(nodes)
        for value in (*given, *weights):
            if value.name in known:
                before = known[value.name]
                value.replace_all_uses_with(before)
                if before.is_graph_output():
                    graph.outputs.remove(before)
            elif value in given:
                graph.inputs.append(value)
            else:
                graph.register_initializer(value)
            known.setdefault(value.name, value)
        graph.extend(nodes)
        graph.outputs.extend(ends)
        known |= {value.name: value for value in ends}
    return whole
