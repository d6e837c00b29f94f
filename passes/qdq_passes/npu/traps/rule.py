"""What a rule is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import onnx_ir as ir

from qdq_passes.core.findings import Finding, Level, place
from qdq_passes.core.names import kebab_case
from qdq_passes.qdq.look.pair_view import PairView

#: What a rule looks at.
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Trap:
    """One place where a model walks into a trap.

    Args:
        where: name of the node or value.
        message: what happens there, one line.
        hint: the way out.
    """

    where: str
    message: str
    hint: str


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """Base class of rules that find traps in a subject, whose id follows from their class: ``BiasScale`` is ``bias-scale``."""

    level: ClassVar[Level] = "warning"

    @classmethod
    def name(cls) -> str:
        """The id."""
        return kebab_case(cls.__name__)

    @classmethod
    def summary(cls) -> str:
        """What it finds, one line."""
        return (cls.__doc__ or "").strip().split("\n", 1)[0]

    def find(self, subject: Subject, /) -> Iterator[Trap]:
        """Yield every place, in the order of the graph."""
        raise NotImplementedError(f"{type(self).__name__} has no find")

    def findings(self, subject: Subject, /) -> list[Finding]:
        """Every place as a finding; each once."""
        traps = dict.fromkeys(self.find(subject))
        return [Finding(self.level, self.name(), trap.where, trap.message, trap.hint) for trap in traps]


@dataclass(frozen=True)
class TrapRule(Rule[PairView]):
    """Base class of all rules of traps. Fields are the parameters that a target file may give: tuples of texts; ``tile`` one of
    integers above 0."""


def trap(where: ir.Node | ir.Value, message: str, hint: str) -> Trap:
    """A trap at a node or value."""
    return Trap(place(where) if isinstance(where, ir.Node) else where.name or "<unnamed>", message, hint)
