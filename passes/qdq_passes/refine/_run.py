"""How the steps run: on paper until all have, then once in the model, so that integers are rounded once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.encode.edit.encoding_policy import Ranges
from qdq_passes.graph.operators.activations import AVERAGE_POOLS
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import label
from qdq_passes.qdq.look.pairs import encoding_of
from qdq_passes.refine.edit.own_pairs import OwnPair, can_be_split, insert_own_pairs
from qdq_passes.refine.edit.scales import MovePrices, Stored, write_positions
from qdq_passes.refine.look.position_groups import tensor_of
from qdq_passes.refine.look.scale_positions import Positions
from qdq_passes.refine.look.shifts import RULES, Rule, ShiftLimits, Violation, violations_at

#: Names of tensors shown that move along.
SHOWN = 3
#: Bits that one reader may cost another: a pair of its own costs time on every chip, 1 bit at most 6 dB.
SPARE_BITS = 1


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

    def __init__(
        self,
        model: ir.Model,
        *,
        reference: bool,
        ranges: Ranges | None = None,
        apart: Collection[tuple[ir.Node, int]] = (),
    ) -> None:
        self.positions = Positions(model, reference=reference, ranges=ranges, apart=apart)
        self.limits = ShiftLimits()
        self.refused: dict[str, Change] = {}
        self._paths: dict[ir.Node, list[Moved]] = {}
        #: First half of a tensor → where its readers want it, and where what writes it does.
        self._wanted: dict[ir.Node, dict[ir.Node, int]] = {}
        self._written: dict[ir.Node, int] = {}
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
            before = self.positions.state()
            if number > 1 and not self.positions.reference:
                for half in self.positions.restart_constants():
                    del self._paths[half]
                    self._wanted.pop(half, None)
            changed = [self.apply(rule) for rule in rules]
            is_changed = any(changed)
            if not self.positions.reference:
                state = self.positions.state()
                is_changed = any(state[half] != before.get(half, self.positions.in_file(half)) for half in state)
            if not is_changed:
                return number
        return loops

    def moves(self) -> list[Moved]:
        """What stands, in the order in which it happened."""
        return sorted((move for path in self._paths.values() for move in path), key=lambda move: move.number)

    def harmed(self) -> set[tuple[ir.Node, int]]:
        """(operator, input) that moved a tensor further than its other readers can spare."""
        return {place for first, wanted in self._wanted.items() for place in self._harmed(first, wanted)}

    def _harmed(self, first: ir.Node, wanted: Mapping[ir.Node, int]) -> Iterator[tuple[ir.Node, int]]:
        positions = self.positions
        start = self._written.get(first, positions.in_file(first))
        needs = {
            reader: self._need(reader, start) if reader is None or reader not in wanted else wanted[reader]
            for reader in positions.readers(first)
        }
        for node, want in wanted.items():
            if any(other is not node and self._harms(first, want, need, start) for other, need in needs.items()):
                for index in range(len(node.inputs)):
                    half = positions.input(node, index, beyond=node.op_type in AVERAGE_POOLS)
                    if half is not None and half in positions.together(first) and can_be_split(half):
                        yield node, index

    def _need(self, reader: ir.Node | None, start: int) -> int:
        """The position that ``reader`` makes use of: a Q has its own."""
        encoding = encoding_of(reader) if reader is not None and is_quantize(reader) else None
        position = encoding.position if encoding is not None else None
        return min(start, position[0]) if position else start

    def _harms(self, first: ir.Node, want: int, need: int, start: int) -> bool:
        """Whether the tensor of ``first``, from ``start`` at ``want``, is too coarse, or clips, for a reader at ``need``."""
        if self.positions.is_zero(first):
            return want != self.positions[first] == need
        return need > want + SPARE_BITS or (want > start and need < want)

    def own_pairs(self) -> Iterator[OwnPair]:
        """The planned pairs that ended elsewhere than the tensor itself."""
        positions = self.positions
        for (node, index), own in positions.own.items():
            half, position = positions.origin(own), positions[own]
            if position != positions[half]:
                others = [other for other in positions.readers(half) if other is not node]
                yield OwnPair(node, index, half, positions.encoding_at(half, position), others)

    def _repair(self, violation: Violation) -> bool:
        is_moved = False
        for half, new in violation.wanted:
            old, reason = self.positions[half], self.positions.why_not(half, new)
            if reason is not None:
                text = f"stays, though {violation.rule} of {label(violation.node)} wants position {new}: {reason}"
                self.refused.setdefault(text, skip(self.positions.tensor(half), text))
                continue
            first = self.positions.together(half)[0]
            if is_dequantize(half):
                self._wanted.setdefault(first, {})[violation.node] = new
            else:
                self._written[first] = new
            if new != old:
                self.positions[half] = new
                if self.positions.origin(half) is half:
                    self._log(half, old, new, f"{violation.rule} of {label(violation.node)}: {violation.because}")
                is_moved = True
        return is_moved

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
    apart: set[tuple[ir.Node, int]] = set()
    while True:
        steps = Steps(model, reference=reference, ranges=ranges, apart=apart)
        rounds = steps.settle(rules, loops)
        found = set() if reference else steps.harmed() - apart
        if not found:
            break
        apart |= found
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
    own = list(steps.own_pairs())
    yield from write_positions(model, positions, stored)
    yield from insert_own_pairs(model, own)


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
