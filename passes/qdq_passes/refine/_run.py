"""How the steps run: on paper until all have, then once in the model, so that integers are rounded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.encode.edit.encoding_policy import Ranges
from qdq_passes.graph.uses import label
from qdq_passes.numerics.encoding import integer_format
from qdq_passes.refine.edit.scales import MovePrices, Stored, write_positions
from qdq_passes.refine.look.position_groups import tensor_of
from qdq_passes.refine.look.scale_positions import Positions
from qdq_passes.refine.look.shifts import RULES, Rule, ShiftLimits, Violation, violations_at

#: Names of tensors shown that move along.
SHOWN = 3


@dataclass(frozen=True, eq=False)
class Moved:
    """One move that stands.

    Args:
        number: counts the moves of a run.
        half: the Q or DQ node by which the operator sees the tensor.
        old: position before.
        new: position after.
        because: the rule, the operator and what was wrong.
    """

    number: int
    half: ir.Node
    old: int
    new: int
    because: str


class Steps:
    """Rules applied to the positions of one model, and the moves that came of it.

    A move that brings a tensor back to where it was takes what was between with it, so that what is reported leads from the
    position in the file to the last one without a circle.
    """

    def __init__(self, model: ir.Model, *, reference: bool) -> None:
        self.positions = Positions(model, reference=reference)
        self.limits = ShiftLimits()
        self.refused: dict[str, Change] = {}
        self._paths: dict[ir.Node, list[Moved]] = {}
        self._lowered: set[ir.Node] = set()
        self._count = 0

    def apply(self, rule: Rule) -> bool:
        """Adjust every operator that ``rule`` is about, in the order of the file; whether that counts as a change.

        In the reference a Mul whose output moves by adjust-shift-write is none.
        """
        is_changed = False
        for node in self.positions.nodes(rule.op_types):
            violation = rule.violation(self.positions, node, self.limits)
            if violation is not None and self._repair(violation):
                is_silent = self.positions.reference and node.op_type == "Mul" and rule.name == "adjust-shift-write"
                is_changed |= not is_silent
        return is_changed

    def settle(self, rules: Sequence[Rule], loops: int) -> int:
        """Apply ``rules`` in order until a round changes nothing, ``loops`` times at most; the number of rounds.

        From the second round on weights and biases start from the file again: what a round did to them for the sake of
        activations that have moved since is not to add up. In the reference it does.
        """
        for number in range(1, loops + 1):
            before = {move.nodes[0]: move.new for move in self.positions.moves()}
            if number > 1 and not self.positions.reference:
                for half in self.positions.restart_constants():
                    del self._paths[half]
            changed = [self.apply(rule) for rule in rules]
            is_changed = any(changed)
            if not self.positions.reference:
                is_changed = before != {move.nodes[0]: move.new for move in self.positions.moves()}
            if not is_changed:
                return number
        return loops

    def moves(self) -> list[Moved]:
        """What stands, in the order in which it happened."""
        return sorted((move for path in self._paths.values() for move in path), key=lambda move: move.number)

    def _repair(self, violation: Violation) -> bool:
        is_moved = False
        for half, new in violation.wanted:
            old, reason = self.positions[half], self._why_not(violation, half, new)
            if reason is not None:
                text = f"stays, though {violation.rule} of {label(violation.node)} wants position {new}: {reason}"
                self.refused.setdefault(text, skip(tensor_of(half), text))
            elif new != old:
                self.positions[half] = new
                self._log(half, old, new, f"{violation.rule} of {label(violation.node)}: {violation.because}")
                is_moved = True
        return is_moved

    def _why_not(self, violation: Violation, half: ir.Node, new: int) -> str | None:
        """Why ``half`` is not to move to ``new``, in words.

        The product of positions below 0 is further below: where a Concat ties it to its factors, round after round lowers all of
        them. That ends where the tensor would be 0 everywhere.
        """
        reason, node = self.positions.why_not(half, new), violation.node
        if (
            reason is not None
            or self.positions.reference
            or violation.rule != "adjust-shift-write"
            or node.op_type != "Mul"
        ):
            return reason
        bits = integer_format(self.positions.encoding(half).dtype)[1]
        if node in self._lowered and new <= self.positions.in_file(half) - bits:
            return "it is moved again and again, and nothing but 0 would be left"
        if new < self.positions[half]:
            self._lowered.add(node)
        return None

    def _log(self, half: ir.Node, old: int, new: int, because: str) -> None:
        path = self._paths.setdefault(self.positions.together(half)[0], [])
        places = [path[0].old, *(move.new for move in path)] if path else [old]
        if new in places:
            del path[places.index(new) :]
        else:
            path.append(Moved(self._count, half, old, new, because))
        self._count += 1


def refine(
    model: ir.Model, rules: Sequence[Rule], *, loops: int, stored: Stored, ranges: Ranges | None, reference: bool
) -> Iterator[Change]:
    """Apply ``rules`` in order, up to ``loops`` times as long as something changes, then write the model.

    Args:
        model: a QDQ graph.
        rules: what is demanded of positions.
        loops: most rounds.
        stored: what becomes of stored integers.
        ranges: what calibration saw, for the prices.
        reference: with the restrictions of the reference.
    """
    steps = Steps(model, reference=reference)
    rounds = steps.settle(rules, loops)
    positions, prices = steps.positions, MovePrices(steps.positions, ranges, stored)
    for node, reason in positions.notes.items():
        yield skip(node, reason)
    yield from steps.refused.values()
    for move in steps.moves():
        price = prices.of(move.half, move.old, move.new)
        along = _along(positions, move.half)
        yield Change("move", tensor_of(move.half), f"position {move.old} → {move.new} ({move.because}); {price}{along}")
    if len(rules) > 1:
        names = {rule.name for rule in rules}
        for left in [v for v in violations_at(positions, steps.limits) if v.rule in names]:
            text = f"{left.rule}: {left.because}; left so after {rounds} round{'s' if rounds != 1 else ''}"
            yield skip(left.node, text)
    yield from write_positions(model, positions, stored)


def _along(positions: Positions, half: ir.Node) -> str:
    """The other tensors that move with ``half``, in words."""
    names = [n for n in dict.fromkeys(tensor_of(node) for node in positions.together(half)) if n != tensor_of(half)]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"; with it {', '.join(names[:SHOWN])}{more}" if names else ""


@dataclass(frozen=True)
class Step(Pass):
    """A pass that applies the rule of its name, once."""

    keeps: ClassVar[Keeps] = Keeps("changes", why="tensors get a coarser or finer grid")
    stored: Stored = "requantize"
    ranges: Named | Ranges | None = None
    reference: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One round of one rule."""
        assert not isinstance(self.ranges, Named)
        rule = next(rule for rule in RULES if rule.name == self.name())
        yield from refine(model, [rule], loops=1, stored=self.stored, ranges=self.ranges, reference=self.reference)
