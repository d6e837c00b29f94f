"""move-qdq

A pair computes F(x) = (clip(round(x / s) + z) − z)·s element by element. It may stand on either side of an operator that
satisfies Op(F(a), F(b), …) = F(Op(a, b, …)), bit for bit:

- Op copies elements (Reshape, Transpose, Split, Concat, …): F works on each alone. Zeros it adds stay, F(0) = 0; other constants
  must be on the grid, F(c) = c, which is computed.
- Op chooses the largest or smallest (Relu, Clip, MaxPool, Max, …): F does not decrease, F(max(a, b)) = max(F(a), F(b)).
- Per-axis F works on slices along an axis; the axis moves along where it can be followed.
- Where a tensor on the way is already rounded by the same F nothing is added, F(F(x)) = F(x).

The conditions in full and the operators stand in `qdq.look.commute`, the arithmetic in `qdq.look.exact`, axes in
`qdq.look.axes`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer, drop_unread
from qdq_passes.graph.nesting import Nesting, nesting_of
from qdq_passes.graph.uses import all_nodes, is_constant
from qdq_passes.qdq.edit.move import move_down, move_up
from qdq_passes.qdq.edit.share import merge_twins
from qdq_passes.qdq.look.moves import arriving, leaving, plan_down, plan_up, reads_shape_only
from qdq_passes.qdq.look.pairs import Pair, half_pairs, is_named, pair_of, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class MoveQdq(Pass):
    """Move pairs past operators, as far as they go: down ``t → Q → DQ → Op → y`` becomes ``t → Op → y → Q → DQ``, up the reverse.

    Graph: down, other readers of ``t`` keep the pair there, and each output of a Split gets one; the pairs on all inputs of a
    Concat become one. Up, each float input of ``Op`` gets the pair. The new pair reads the same scale and zero point, and is
    called after its new tensor. Stored integers move down by being rearranged themselves. Next to an equal pair nothing is added.
    Requires: constant scales.
    Keeps: names of inputs and outputs; numerics bit-exact, unless ``allow-approximate``.
    Skips: operators that do not commute with rounding, with the reason; per-axis where the axis cannot be followed; graph ends;
    FixNeuron; halves of pairs.

    Args:
        select: pairs, by their float value.
        direction: ``down`` towards the outputs, or ``up`` towards the inputs.
        steps: over how many operators at most, or ``all``.
        allow_approximate: also past activations, pools, means, sums…: the encoding stays, the numbers change.
    """

    select: Selector = ALL
    direction: Literal["down", "up"] = "down"
    steps: int | Literal["all"] = "all"
    allow_approximate: bool = False

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Exact, unless the user allows what is not."""
        return (
            Keeps("changes", why="rounding moved past what does not commute with it")
            if self.allow_approximate
            else EXACT
        )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Sweep over the nodes in the direction of the move until no pair moves any more; then say why each one stopped."""
        if self.steps != "all" and self.steps < 1:
            raise UsageError(f"steps={self.steps} moves nothing", where=self.name(), hint="give 1 or more, or all")
        hit, nesting, namer = select(model, self.select), nesting_of(model), Namer(model)
        nodes, values = set(hit.nodes), set(hit.values)
        for half in half_pairs(model):
            if half.node in nodes:
                yield skip(half.node, "is one half of a pair; the other half is not in the model")
        named = (pair.dq for pair in qdq_pairs(model) if self.select.is_all or is_named(pair, nodes, values))
        chosen = dict.fromkeys(named)
        left = dict.fromkeys(chosen, math.inf if self.steps == "all" else self.steps)
        is_done, types = False, dict[ir.Value, ir.DataType]()
        while not is_done:
            stops: dict[ir.Node, str] = {}
            changes = list(self._sweep(model, left, stops, nesting, namer, types))
            yield from changes
            is_done = not changes
        made = [node for node in left if node not in chosen and node.graph is not None]
        quantizers = [pair.q for node in made if (pair := pair_of(node)) is not None and pair.q is not None]
        yield from merge_twins(model, quantizers, nesting, namer, refuse=False)
        yield from merge_twins(model, made, nesting, namer, refuse=False)
        for node, steps in left.items():
            pair = pair_of(node) if node.graph is not None and steps else None
            if pair is not None:
                yield skip(pair.tensor, stops.get(node) or self._end(pair))

    def _sweep(
        self,
        model: ir.Model,
        left: dict[ir.Node, float],
        stops: dict[ir.Node, str],
        nesting: Nesting,
        namer: Namer,
        types: dict[ir.Value, ir.DataType],
    ) -> Iterator[Change]:
        """Each node once, in the order in which pairs meet it: moves, or in ``stops`` why not."""
        is_down, spare = self.direction == "down", dict[ir.Value | None, None]()
        for node in all_nodes(model) if is_down else reversed(all_nodes(model)):
            if node.graph is None or reads_shape_only(node):
                continue
            pairs = [pair for pair in (arriving if is_down else leaving)(node) if left.get(pair.dq, 0) > 0]
            if not pairs:
                continue
            move = (plan_down if is_down else plan_up)(node, pairs, approximate=self.allow_approximate, types=types)
            if isinstance(move, str):
                word = "before" if is_down else "behind"
                for pair in pairs:
                    stops.setdefault(pair.dq, f"stays {word} {node.op_type} {node.name}: {move}")
                continue
            steps = min(left[pair.dq] for pair in move.pairs.values()) - 1
            changes, made, parameters = move_down(move, namer) if is_down else move_up(move, nesting, namer)
            left |= dict.fromkeys(made, steps)
            spare.update(dict.fromkeys(parameters))
            yield from changes
        drop_unread(spare)

    def _end(self, pair: Pair) -> str:
        """Why there is nothing to cross."""
        if self.direction == "down":
            return "is a graph output" if pair.output.is_graph_output() else "nothing below reads its elements"
        if pair.q is None:
            return "its integers are stored; nothing stands above them"
        source = pair.source
        if source is not None and is_constant(source):
            return "is a constant; nothing stands above it"
        return "is an input of its graph; nothing stands above it"
