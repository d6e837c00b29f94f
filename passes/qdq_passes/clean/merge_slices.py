"""merge-slices

Slice by [a, b) step s takes of the places 0, 1, … n − 1 along an axis those of ``range(n)[a:b:s]``; by two in turn, those of
``range(n)[a:b:s][c:d:t]``, which is one range again. Along different axes both hold side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder
from qdq_passes.graph.edit import drop_unread, inherit, remove
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import all_nodes, constant_array, input_at, is_standard, label, readers

#: axis → (start, end, step).
Bounds = dict[int, tuple[int, int, int]]


@dataclass(frozen=True)
class MergeSlices(Pass):
    """Let one Slice take what a Slice takes of what the Slice before it takes.

    Graph: ``x → Slice(axis 1) → t → {Slice(axis 2), Slice(axis 2)}`` → ``x → {Slice(axes 1, 2), Slice(axes 1, 2)}``; in bodies
    and functions too.
    Requires: constant bounds as inputs (opset 10); for two Slices along one axis the static size of that, and steps forwards.
    Keeps: inputs, outputs and their names; numerics bit-exact (elements only move). Names of the second Slice.
    Skips: ``t`` is a graph output or has readers that are no such Slices, as the first would have to stay; the two stand in
    different graphs.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From Slice to Slice; what is merged is looked at again as the first of others."""
        builder, inferred = Builder(model), Inferred(model)
        for first in [node for node in all_nodes(model) if is_standard(node, "Slice")]:
            seconds = [node for node, index in readers(first.outputs[0]) if index == 0 and is_standard(node, "Slice")]
            if not seconds:
                continue
            merged = _all_merged(first, seconds, inferred)
            if isinstance(merged, str):
                yield skip(first, merged)
                continue
            for second, bounds in zip(seconds, merged, strict=True):
                yield from _put(builder, first, second, bounds)
            parameters = list(first.inputs)
            yield from remove(first, "merged into the Slices behind it")
            yield from drop_unread(parameters)


def _all_merged(first: ir.Node, seconds: list[ir.Node], inferred: Inferred) -> list[Bounds] | str:
    """For each of ``seconds`` the bounds that stand for both; in words why ``first`` has to stay."""
    value = first.outputs[0]
    if value.is_graph_output() or len(seconds) < len(readers(value)):
        return f"{value.name} has other readers"
    if any(second.graph is not first.graph for second in seconds):
        return "the Slice behind it stands in another graph"
    rank = inferred.rank(value)
    found = []
    for second in seconds:
        parts = [None if rank is None else _bounds(node, rank) for node in (first, second)]
        if parts[0] is None or parts[1] is None:
            return "the rank or the bounds are not known"
        merged = dict(parts[0])
        for axis, bounds in parts[1].items():
            both = (
                bounds
                if axis not in merged
                else _composed(merged[axis], bounds, inferred.sizes(_source(first), [axis]))
            )
            if both is None:
                return f"both take of axis {axis}, whose size is not known, or backwards"
            merged[axis] = both
        found.append(merged)
    return found


def _source(node: ir.Node) -> ir.Value:
    source = node.inputs[0]
    assert source is not None
    return source


def _bounds(node: ir.Node, rank: int) -> Bounds | None:
    """What ``node`` takes along which axis; None unless all is constant."""
    given = [input_at(node, index) for index in range(1, 5)]
    arrays = [constant_array(value) for value in given]
    if (
        arrays[0] is None
        or arrays[1] is None
        or any(v is not None and a is None for v, a in zip(given, arrays, strict=True))
    ):
        return None
    starts, ends = arrays[0].reshape(-1).tolist(), arrays[1].reshape(-1).tolist()
    axes = list(range(len(starts))) if arrays[2] is None else [axis % rank for axis in arrays[2].reshape(-1).tolist()]
    steps = [1] * len(starts) if arrays[3] is None else arrays[3].reshape(-1).tolist()
    return {axis: bounds for axis, *bounds in zip(axes, starts, ends, steps, strict=True)}  # type: ignore[misc]


def _composed(
    first: tuple[int, int, int], second: tuple[int, int, int], sizes: list[int] | None
) -> tuple[int, int, int] | None:
    """Both along one axis; None where its size is not known or one goes backwards."""
    if sizes is None or first[2] < 0 or second[2] < 0:
        return None
    taken = range(sizes[0])[slice(*first)][slice(*second)]
    return taken.start, taken.stop, taken.step


def _put(builder: Builder, first: ir.Node, second: ir.Node, bounds: Bounds) -> Iterator[Change]:
    """Let ``second`` read what ``first`` reads, and take ``bounds`` of it."""
    parameters = list(second.inputs)
    site = builder.at(second)
    axes = sorted(bounds)
    columns = [[bounds[axis][k] for axis in axes] for k in range(3)]
    constants = [site.constant(numbers) for numbers in (columns[0], columns[1], axes, columns[2])]
    second.resize_inputs(5)
    for index, value in enumerate([_source(first), *constants]):
        second.replace_input_with(index, value)
    inherit(second, [second, first])
    yield Change("edit", label(second), f"takes what {label(first)} takes too, along axes {axes}")
    yield from drop_unread(parameters[1:])
