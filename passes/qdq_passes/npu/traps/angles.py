"""Traps of rotary embeddings. Only where a target lists them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from qdq_passes.core.findings import Level
from qdq_passes.decoder.look.rotary_angles import Angles, rotary_angles
from qdq_passes.npu.traps.rule import Trap, TrapRule, trap
from qdq_passes.qdq.look.seen import Seen

_TABLE = "`qdqtool split --tabulate-angles`; of a static decoder `qdqtool opt -p 'tabulate-rotary-angles{context=N}'`"


@dataclass(frozen=True)
class HalfAngles(TrapRule):
    """A Cos or Sin of positions, computed in 16-bit floats: angles grow with the position, and lose their fraction.

    Float16 has 11 bits: angles from 1024 on are whole numbers of radians. Bfloat16 has 8: from 128 on."""

    level: ClassVar[Level] = "note"

    def find(self, seen: Seen) -> Iterator[Trap]:
        """What follows from positions alone and has no pair before it; the main graph."""
        for found in rotary_angles(seen.model.graph):
            if not isinstance(found, Angles):
                continue
            for node in found.trigonometry:
                if seen.read(node, 0) is None:
                    message = f"computes angles of {found.source.name} in 16-bit floats: they lose their fraction"
                    yield trap(node, message, f"look them up by position: {_TABLE}")
