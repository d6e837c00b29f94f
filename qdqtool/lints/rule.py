"""The base of lints, and how their findings show numbers and grids."""

from __future__ import annotations

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.traps.rule import Rule
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.pow2 import position_of

from qdqtool.lints.context import LintContext


@dataclass(frozen=True)
class Lint(Rule[LintContext]):
    """Base class of all rules. Fields are thresholds. The id follows from the class: ``DeadSlice`` is ``dead-slice``."""


def grid_text(encoding: Encoding) -> str:
    """``int8 scale 2^-5``; of several scales the range."""
    low, high = min(encoding.scale), max(encoding.scale)
    scales = (
        f"scale {step_text(low)}"
        if low == high
        else f"{len(encoding.scale)} scales {step_text(low)} to {step_text(high)}"
    )
    return f"{encoding.dtype.name.lower()} {scales}"


def step_text(scale: float) -> str:
    """``2^-5`` where it is a power of two, else four digits."""
    position = position_of(scale)
    return f"{scale:.4g}" if position is None else f"2^{-position}"


def first_of(items: list[str], most: int = 6) -> str:
    """The first few of ``items``, and how many there are besides."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
