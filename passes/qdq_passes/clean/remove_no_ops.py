"""remove-no-ops"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes.clean.look.no_ops import NEUTRAL, passed_on, unmoved
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, bypass, drop_unread, take_over
from qdq_passes.graph.uses import all_nodes, is_constant, is_standard


@dataclass(frozen=True)
class RemoveNoOps(Pass):
    """Remove what changes nothing: x·1, x/1, x+0 and x−0 with a constant of one element; movement that moves nothing.

    Movement is Expand, Reshape, Flatten, Tile, Slice, Pad, Split in one and Transpose to the shape and order it has, Cast to the
    type it has, Concat, Max, Min, Mean and Sum of one value, Where with one answer for all.

    Graph: ``x → Relu → t → Mul(1) → u → Conv → y`` → ``x → Relu → t → Conv → y``; in bodies and functions too.
    Requires: for a constant with dimensions, the number of those of x, and for movement static shapes (infer-shapes).
    Keeps: inputs, outputs and their names; numerics: equal numbers, though x+0 turns −0 into +0 and its removal does not.
    Skips: a constant that adds dimensions; a node that joins a graph input, an initializer or an outer value to a graph output,
    or two graph outputs: it is what makes the second name. With ``identities``, a Dropout that may train or whose mask is read.

    Args:
        names: whose output name stays: the producer's, or that of the removed node (of several, of the last).
        identities: remove Identity and Dropout in the same walk, as remove-identity does.
        movement: remove movement that moves nothing as well.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-149,
        why="−0 and +0 are equal numbers: nothing differs unless a later operator tells them apart (Reciprocal); 2^-149 is the "
        "least difference of float32",
    )
    names: Literal["producer", "removed"] = "producer"
    identities: bool = False
    movement: bool = True

    def run(self, model: ir.Model) -> Iterator[Change]:
        """In the order of the graph."""
        namer = Namer(model)
        wanted = (*NEUTRAL, *(("Identity", "Dropout") if self.identities else ()))
        for node in all_nodes(model):
            source = unmoved(node) if self.movement else None
            if source is None and not is_standard(node, *wanted):
                continue
            reason = ""
            if source is None:
                source, reason = passed_on(model, node)
            reason = reason or (_why_not(node, source) if source is not None else "")
            if reason:
                yield skip(node, reason)
            elif source is not None and self.names == "removed" and not is_constant(source):
                yield from take_over(source, node, namer, "changes nothing", stand_for=False)
            elif source is not None:
                parameters = list(node.inputs)
                yield bypass(node, namer, "changes nothing", source=source)
                yield from drop_unread(parameters)


def _why_not(node: ir.Node, source: ir.Value) -> str:
    """Why the output of ``node`` cannot go: both are outputs of a graph, or nothing in it computes the source."""
    if not node.outputs[0].is_graph_output():
        return ""
    if source.is_graph_output() and source.graph is node.graph:
        return "it joins two graph outputs"
    is_computed = source.producer() is not None and source.graph is node.graph
    return "" if is_computed else "it joins a graph input, an initializer or an outer value to a graph output"
