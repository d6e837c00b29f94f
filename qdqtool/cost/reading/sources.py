"""A file that was read, as the readers look at it: its text, its JSON document, its records; and the numbers in it."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.numerics.documents import json_of

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"

_AMOUNT = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S.*)?")
_BAR = re.compile(r"^ *\|", re.MULTILINE)
#: Rows and columns of a table.
MOST_ROWS, MOST_COLUMNS = 100_000, 1000
#: Unit of a row and factor to it, by the unit as people write it.
_UNITS = {
    **dict.fromkeys(("s", "sec", "seconds"), ("ms", 1e3)),
    **dict.fromkeys(("ms", "msec", "milliseconds"), ("ms", 1.0)),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsec", "microseconds"), ("ms", 1e-3)),
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), ("ms", 1e-6)),
    **dict.fromkeys(("tok/s", "tok_s", "toks/s", "t/s", "tps", "tokens/s"), ("tok/s", 1.0)),
}


@dataclass(frozen=True)
class Record:
    """One object of a list, or one line of a table.

    Args:
        place: where it stands, ``line 3`` or ``row 3``.
        number: of the record, from 1.
        values: by column, names in lower case.
    """

    place: str
    number: int
    values: Mapping[str, Json]

    def get(self, column: str) -> Json:
        """What stands in ``column``; None where it is empty."""
        value = self.values.get(column)
        return None if isinstance(value, str) and not value.strip() else value

    def text(self, column: str) -> str:
        """What stands in ``column``, as text; "" where it is empty."""
        value = self.get(column)
        return "" if value is None else str(value).strip()


@dataclass(frozen=True)
class Source:
    """The text of a file.

    Args:
        path: for messages.
        text: all of it.
    """

    path: str
    text: str

    def bad(self, place: str, what: str, hint: str = "correct the file") -> ModelError:
        """The error that ``what`` stands at ``place``."""
        return ModelError(f"{place}: {what}", where=self.path, hint=hint)

    @cached_property
    def is_json(self) -> bool:
        """Whether it looks like JSON, or like a JSON document a line."""
        return self.text.lstrip()[:1] in ("{", "[")

    @cached_property
    def document(self) -> Json:
        """The JSON document; a list of those of the lines where each line is one; None where it is no JSON.

        Raises:
            ModelError: it looks like JSON, and is broken.
        """
        if not self.is_json:
            return None
        try:
            return json_of(self.text)  # type: ignore[no-any-return]
        except ValueError as error:
            try:
                return [json_of(line) for line in self.text.splitlines() if line.strip()]
            except ValueError:
                raise ModelError(f"is not JSON ({error})", where=self.path, hint="write it again") from error

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The objects of a JSON list, of ``rows`` or of JSON lines; the lines of a CSV or a markdown table under its first one.

        Raises:
            ModelError: broken JSON or CSV, a column twice, or a line with more cells than columns.
        """
        if self.is_json:
            document = self.document
            if isinstance(document, Mapping):
                document = document.get("rows", [document])
            items = document if isinstance(document, list) else []
            if len(items) > MOST_ROWS:
                raise self.bad("the document", f"{len(items):,} rows, more than {MOST_ROWS:,}", hint="divide the file")
            return tuple(
                Record(f"row {number}", number, {key.strip().lower(): value for key, value in item.items()})
                for number, item in enumerate(items, 1)
                if isinstance(item, Mapping)
            )
        return tuple(self.table(self.text))

    def table(self, text: str, skipped: int = 0) -> Iterator[Record]:
        """The lines of the CSV or markdown table ``text``, behind ``skipped`` lines of the file; its header may recur.

        Raises:
            ModelError: as `records`.
        """
        lines = list(_markdown(text) if _BAR.search(text) else self._csv(text))
        header = [name.strip().lower() for name in lines[0][1]] if lines else []
        if len(lines) > MOST_ROWS or len(header) > MOST_COLUMNS:
            said = f"{len(lines):,} rows of {len(header):,} columns, more than {MOST_ROWS:,} of {MOST_COLUMNS:,}"
            raise self.bad("the table", said, hint="divide the file")
        if twice := next((name for name, count in Counter(header).items() if name and count > 1), ""):
            raise self.bad(f"line {lines[0][0] + skipped}", f"the column {twice!r} stands twice")
        for number, (line, cells) in enumerate((item for item in lines[1:] if item[1] != lines[0][1]), 1):
            if len(cells) > len(header):
                raise self.bad(f"line {line + skipped}", f"{len(cells)} cells under {len(header)} columns")
            yield Record(f"line {line + skipped}", number, dict(zip(header, cells, strict=False)))

    def _csv(self, text: str) -> Iterator[tuple[int, list[str]]]:
        first = text.lstrip().partition("\n")[0]
        delimiter = max(",;\t", key=first.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield reader.line_num, cells
        except csv.Error as error:
            raise self.bad(f"line {reader.line_num}", f"is no CSV ({error})") from error

    def amount(self, record: Record, column: str, unit: str = "ms") -> tuple[float, str]:
        """The positive number in ``column``, and its unit: ``ms`` or ``tok/s``; ``unit`` is taken where none stands beside it.

        Raises:
            ModelError: it is no positive finite number, or the unit is not known.
        """
        value = record.get(column)
        found = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
        number = self.positive(found[1] if found else value, record.place, column)
        said = (found and found[2]) or unit
        if said.lower() not in _UNITS:
            raise self.bad(record.place, f"{column} has the unit {said!r}", hint="known are ms, s, us, ns and tok/s")
        name, factor = _UNITS[said.lower()]
        return self.positive(number * factor, record.place, column), name

    def positive(self, value: Json, place: str, column: str) -> float:
        """``value``, a number or the text of one.

        Raises:
            ModelError: it is no positive finite number.
        """
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise self.bad(place, f"{column} is {str(value)[:40]!r}, no positive finite number")
        return number

    def count(self, record: Record, column: str, default: int = 0) -> int:
        """The whole number in ``column``, not below zero; ``default`` where it is empty.

        Raises:
            ModelError: it is none.
        """
        value = record.get(column)
        if value is None:
            return default
        text = str(value).strip().removesuffix(".0")
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise self.bad(record.place, f"{column} is {text[:40]!r}, no whole number")
        return int(text)


def _markdown(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the lines that begin with a bar; rules of dashes are left out."""
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.strip().strip("|").split("|")
        if line.lstrip().startswith("|") and not all(set(cell.strip()) <= {"-", ":"} for cell in cells):
            yield number, [cell.strip() for cell in cells]


def typical(runs: Sequence[float]) -> float:
    """The median of ``runs``, without the first where there are several: it pays for what later ones find done."""
    return statistics.median(runs[1:] or runs)


def mapping(value: Json) -> Mapping[str, Json]:
    """``value`` where it is an object, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}
