"""An operator, what runs it and why."""

from __future__ import annotations

from dataclasses import dataclass

#: The engine of what no NPU runs.
CPU = "CPU"


@dataclass(frozen=True, kw_only=True)
class PlacedUnit:
    """An operator of a graph and what runs it.

    Args:
        name: of the node.
        op: its operator.
        engine: the engine, or ``"CPU"``.
        macs: multiply-accumulates of one run.
        rule: of what put it on the CPU; empty on an NPU.
        reason: likewise, in words.
        suggestion: what would bring it to the NPU; may be empty.
    """

    name: str
    op: str
    engine: str
    macs: int
    rule: str = ""
    reason: str = ""
    suggestion: str = ""
