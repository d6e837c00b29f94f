"""choose-branch"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.build import drop_input
from qdq_passes.graph.evaluate.apply import open_branch
from qdq_passes.graph.sizes import rank_or
from qdq_passes.graph.uses import is_standard, values_read

#: The branches of If, that of a true condition first.
BRANCHES = ("then_branch", "else_branch")


@dataclass(frozen=True)
class ChooseBranch(Pass):
    """Leave of a decoder merged with the one without a cache the branch that reads the cache.

    Exporters join the decoder of the first tokens and that of the following ones in one file: an input of type bool, such as
    ``use_cache_branch``, chooses. The one with a cache does both, from an empty one on.

    Graph: ``use_cache_branch → If(then: past, ids → …, else: ids → …)`` → ``past, ids → …``.
    Requires: a condition that is an input; one branch that reads inputs of three dimensions or more which the other does not.
    Keeps: names of the other inputs and of the outputs; numerics bit-exact where the condition chose that branch.
    Skips: an If whose condition is computed, or whose branches read the same inputs.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the input that chose the branch is gone")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """If by If."""
        for node in list(model.graph):
            condition = node.inputs[0] if is_standard(node, "If") else None
            if condition is None or not condition.is_graph_input():
                continue
            states = {name: _states(node.attributes[name].as_graph(), model) for name in BRANCHES}
            more = [name for name, other in (BRANCHES, BRANCHES[::-1]) if states[name] > states[other]]
            if not more:
                yield skip(node, "neither of its branches alone reads a cache")
                continue
            open_branch(model, node, more[0])
            yield Change("replace", node.name or "If", f"by its {more[0]}, which reads the cache")
            yield from drop_input(model, condition)


def _states(body: ir.Graph, model: ir.Model) -> set[ir.Value]:
    """Inputs of the model, of three dimensions or more, that ``body`` reads."""
    inputs = {v for v in model.graph.inputs if rank_or(v, 3) >= 3}
    read = {value for node in body for value in values_read(node)} | set(body.outputs)
    return read & inputs
