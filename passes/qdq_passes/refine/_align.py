"""Alignment of scales that need be no powers of two: whole encodings are copied from one side of an operator to the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import label
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.edit.encoding_words import change_in_words, words
from qdq_passes.qdq.edit.reencode import Edit, Target, nodes_of, reencode, settled, targets
from qdq_passes.refine._run import Step
from qdq_passes.refine.look.position_groups import tensor_of
from qdq_passes.refine.look.positions import Positions
from qdq_passes.refine.look.shifts import RULES
from qdq_passes.select.selectors import ALL

#: Which side of an operator the encoding comes from.
Side = Literal["input", "output"]


@dataclass(frozen=True)
class AlignStep(Step):
    """A step that aligns: powers of two to the smallest position, other scales as `source` says."""

    #: Whose encoding the other side gets where scales are no powers of two.
    source: ClassVar[Side] = "output"
    scales: Literal["pow2", "any"] = "pow2"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Positions move, or encodings are copied."""
        yield from super().run(model) if self.scales == "pow2" else _copy(model, self.name(), self.source)


def _copy(model: ir.Model, name: str, source: Side) -> Iterator[Change]:
    """Copy encodings over the operators of the rule ``name``; towards inputs from the end of the file, so that chains arrive in
    one round. What one operator has asked for, no other changes."""
    positions = Positions(model, any_scale=True)
    rule = next(rule for rule in RULES if rule.name == name)
    nodes = positions.nodes(rule.op_types)
    plan = _Plan(positions)
    for node in nodes if source == "input" else reversed(nodes):
        inputs = range(len(node.inputs)) if name == "align-concat" else range(1)
        found = [half for index in inputs if (half := positions.input(node, index)) is not None]
        output = positions.output(node)
        if output is None or not found:
            continue
        giver, takers = (found[0], [output]) if source == "input" else (output, found)
        yield from plan.copy(node, giver, takers)
    yield from (skip(node, reason) for node, reason in positions.notes.items())
    yield from reencode(model, plan.edits(model), Namer(model))


class _Plan:
    """Encodings that tensors are to get."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._claims: dict[ir.Node, tuple[Encoding, str]] = {}

    def copy(self, node: ir.Node, giver: ir.Node, takers: list[ir.Node]) -> Iterator[Change]:
        """Let ``takers`` have the encoding of ``giver``; which both sides then keep."""
        wanted = self._at(giver)
        because = f"the encoding of {tensor_of(giver)}, for {label(node)}"
        self._claims.setdefault(self._first(giver), (wanted, ""))
        for taker in takers:
            have, claim = self._at(taker), self._claims.get(self._first(taker))
            if have.dtype != wanted.dtype:
                types = f"{have.dtype.name.lower()}, {tensor_of(giver)} {wanted.dtype.name.lower()}"
                yield skip(node, f"{tensor_of(taker)} is {types}")
            elif claim is None:
                self._claims[self._first(taker)] = (wanted, because)
            elif claim[0] != wanted:
                yield skip(node, f"{tensor_of(taker)} keeps {words(claim[0])}, as another operator wants it")

    def edits(self, model: ir.Model) -> list[Edit]:
        """The claims that change something."""
        by_node: dict[ir.Node, Target] = {node: t for t in targets(model, ALL) for node in nodes_of(t)}
        found: dict[ir.Node, Edit] = {}
        for first, (wanted, because) in self._claims.items():
            for node in self._positions.together(first):
                target, old = by_node[node], self._positions.encoding(node)
                new = settled(target, wanted)
                if new != old:
                    text = f"{because}: {change_in_words(old, new)}"
                    found.setdefault(nodes_of(target)[0], Edit(target, old, new, text))
        return list(found.values())

    def _first(self, half: ir.Node) -> ir.Node:
        return self._positions.together(half)[0]

    def _at(self, half: ir.Node) -> Encoding:
        claim = self._claims.get(self._first(half))
        return claim[0] if claim is not None else self._positions.encoding(half)
