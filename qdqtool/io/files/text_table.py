"""Tables as text: columns that line up, numbers to the right, as commands print them and reports hold them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import visible


class Precise(float):
    """A number of which a table shows every digit that a float32 has."""


#: A word that stands in a column of numbers.
EXACT = "exact"


@dataclass(frozen=True)
class TextTable:
    """A table of texts; columns without a title make one without a head.

    Args:
        columns: titles.
        rows: what stands in the cells.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    @cached_property
    def cells(self) -> list[list[str]]:
        """The texts of the rows."""
        return [[_cell(c) for c in row] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Of each column whether it holds numbers alone, which are aligned to the right."""
        return [bool(self.rows) and all(_is_figure(row[i]) for row in self.rows) for i in range(len(self.columns))]

    @property
    def widths(self) -> list[int]:
        """Of each column the length of its longest text."""
        return [max((len(row[i]) for row in self._shown), default=0) for i in range(len(self.columns))]

    @property
    def lines(self) -> list[str]:
        """The table, line by line."""
        widths, numeric = self.widths, self.numeric
        padded = (
            [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)]
            for row in self._shown
        )
        return ["  ".join(row).rstrip() for row in padded]

    @property
    def _shown(self) -> list[list[str]]:
        return [list(self.columns), *self.cells] if any(self.columns) else self.cells


def plural(count: int, noun: str) -> str:
    """``1 pair``, ``2 pairs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def megabytes(count: int) -> str:
    """Bytes in words."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def _is_figure(value: object) -> bool:
    return value is None or value == EXACT or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Precise):
        return f"{value:.9g}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_cell(v) for v in value) + "]"
    return visible(str(value))
