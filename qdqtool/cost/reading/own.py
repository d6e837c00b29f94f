"""Own tables, as people keep them: CSV with a header, a JSON list of objects, or ``{"rows": […]}``, with the names of `Row`.

The time stands in ``value`` (with ``unit`` and ``metric``, or with the unit beside the number: ``12.3 ms``), or in ``ms``,
``us``, ``s`` or ``tok_s``; with an ``out_range`` it is that of whole answers where ``metric`` does not tell. Other columns are
passed over. Rows of ``kind`` op, spec and aux are no runs of networks: left out."""

from __future__ import annotations

import re

from qdqtool.cost.reading.sources import Record, Source
from qdqtool.cost.rows import Row

NAME = "own CSV or JSON"
WANTED = (
    "a CSV or JSON list needs the column value (with unit), ms or tok_s, and may have id, model, stack, precision, chip, "
    "device, phase, metric, seq_len, ctx, out_tokens, batch, off_npu; dataset, seq_range and out_range (2-4) of a mean"
)
_TIMES = ("value", "ms", "us", "s", "tok_s")
_COUNTS = ("seq_len", "ctx", "out_tokens", "batch", "off_npu")
_TEXTS = ("model", "stack", "precision", "chip", "device", "component", "month", "source")
#: Tokens that nobody runs; characters of a data set's name.
_MOST, _LONGEST = 1e9, 100
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_ENDS = re.compile(rf"({_NUMBER.pattern})\s*[-–]\s*({_NUMBER.pattern})")
_NO_RUNS = ("op", "spec", "aux")
_METRICS = {"ms": ("latency", "latency_total"), "tok/s": ("throughput",)}
_YES, _NO = ("true", "yes", "1"), ("", "false", "no", "0")


def read(source: Source) -> list[Row] | None:
    """The rows, or None where no record has a column of times.

    Raises:
        ModelError: a time, a number or a phase is none; the message names line and column.
    """
    if not any(column in record.values for record in source.records for column in _TIMES):
        return None
    return [_row(source, record) for record in source.records if record.text("kind") not in _NO_RUNS]


def _row(source: Source, record: Record) -> Row:
    value, unit = _time(source, record)
    answers = _range(source, record, "out_range")
    metric = record.text("metric") or _METRICS[unit][-1 if answers and record.text("phase") != "prefill" else 0]
    if metric not in _METRICS[unit]:
        raise source.bad(record.place, f"metric is {metric!r} in {unit}", hint=f"with {unit} goes {_METRICS[unit][0]}")
    phase = record.text("phase")
    if phase not in ("", "prefill", "decode"):
        raise source.bad(
            record.place, f"phase is {phase!r}", hint="known are prefill and decode; leave it empty of networks"
        )
    flags = {name: record.text(name).lower() for name in ("suspect", "duplicate")}
    if wrong := next((name for name, text in flags.items() if text not in (*_YES, *_NO)), ""):
        raise source.bad(record.place, f"{wrong} is {flags[wrong][:40]!r}", hint="write true or false")
    row = Row.from_json(
        {
            **{name: record.text(name) for name in _TEXTS},
            **{name: text in _YES for name, text in flags.items()},
            **{name: source.count(record, name) for name in _COUNTS},
            "id": record.text("id") or f"row {record.number}",
            "value": value,
            "unit": unit,
            "metric": metric,
            "phase": phase,
            "dataset": _dataset(source, record),
            "seq_range": _range(source, record, "seq_range"),
            "out_range": answers,
        }
    )
    _agree(source, record, row)
    return row


def _time(source: Source, record: Record) -> tuple[float, str]:
    """The number of the one column of times that is filled, and its unit."""
    filled = [column for column in _TIMES if record.get(column) is not None]
    if len(filled) != 1:
        said = f"has both {' and '.join(filled)}" if filled else f"has none of {', '.join(_TIMES)}"
        raise source.bad(record.place, said, hint="give one time a row")
    (column,) = filled
    return source.amount(record, column, (record.text("unit") or "ms") if column == "value" else column)


def _range(source: Source, record: Record, column: str) -> list[float]:
    """[least, most] tokens of prompts or answers, as a list or ``2-4``; empty where they are not told."""
    given = record.get(column)
    if given is None:
        return []
    ends = _ENDS.fullmatch(given.strip()) if isinstance(given, str) else None
    found = list(ends.groups()) if ends else given
    if isinstance(found, list) and len(found) == 2 and not any(isinstance(end, bool) for end in found):
        numbers = [float(end) for end in found if isinstance(end, int | float) or _NUMBER.fullmatch(str(end))]
        if len(numbers) == 2 and all(1 <= number < _MOST for number in numbers):
            return numbers
    raise source.bad(
        record.place, f"{column} is {str(given)[:40]!r}", hint="write the least, from 1, and the most, as 2-4"
    )


def _dataset(source: Source, record: Record) -> str:
    name = record.text("dataset")
    if len(name) > _LONGEST or len(name.splitlines()) > 1:
        raise source.bad(
            record.place, f"dataset is {name[:40]!r}", hint=f"give it a name of one line, {_LONGEST} characters at most"
        )
    return name


def _agree(source: Source, record: Record, row: Row) -> None:
    """A length lies in the range of lengths."""
    for column, value, ends in (("seq_len", row.seq_len, row.seq_range), ("out_tokens", row.out_tokens, row.out_range)):
        if ends is not None and not ends[0] - 1 < value < ends[1] + 1:
            said = f"{column} is {value:g}, outside of {ends[0]:g}-{ends[1]:g}"
            raise source.bad(record.place, said, hint="it is the mean length, or left out")
