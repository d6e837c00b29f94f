"""Own tables, as people keep them: CSV with a header, a JSON list of objects, or ``{"rows": […]}``, with the names of `Row`.

The time stands in ``value`` (with ``unit`` and ``metric``, or with the unit beside the number: ``12.3 ms``), or in ``ms``,
``us``, ``s`` or ``tok_s``. Other columns are passed over. Rows of ``kind`` op, spec and aux are no runs of networks: left out."""

from __future__ import annotations

import dataclasses

from qdqtool.cost.reading.sources import Record, Source
from qdqtool.cost.rows import Row

NAME = "own CSV or JSON"
WANTED = (
    "a CSV or JSON list needs the column value (with unit), ms or tok_s, and may have id, model, stack, precision, chip, "
    "device, phase, seq_len, ctx, out_tokens, batch, off_npu; of means over a data set dataset, and seq_range or out_range, 2-4"
)
_TIMES = ("value", "ms", "us", "s", "tok_s")
_COUNTS = ("seq_len", "ctx", "out_tokens", "batch", "off_npu")
_TEXTS = ("model", "stack", "precision", "chip", "device", "component", "month", "source", "dataset")
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
    metric = record.text("metric") or _METRICS[unit][0]
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
            "seq_range": (prompts := _range(source, record, "seq_range")),
            "out_range": _range(source, record, "out_range"),
        }
    )
    length = round(sum(prompts) / 2)
    return dataclasses.replace(
        row,
        seq_len=row.seq_len or length,
        out_tokens=source.count(record, "out_tokens", row.out_tokens),
    )


def _time(source: Source, record: Record) -> tuple[float, str]:
    """The number of the one column of times that is filled, and its unit."""
    filled = [column for column in _TIMES if record.get(column) is not None]
    if len(filled) != 1:
        said = f"has both {' and '.join(filled)}" if filled else f"has none of {', '.join(_TIMES)}"
        raise source.bad(record.place, said, hint="give one time a row")
    (column,) = filled
    return source.amount(record, column, (record.text("unit") or "ms") if column == "value" else column)


def _range(source: Source, record: Record, column: str) -> list[float]:
    """[least, most] tokens of a prompt or an answer, as a list or ``2-4``; empty where they are not told."""
    given = record.get(column)
    if given is None:
        return []
    ends = given.split("-") if isinstance(given, str) else given
    if not isinstance(ends, list) or len(ends) != 2:
        raise source.bad(record.place, f"{column} is {str(given)[:40]!r}", hint="write the least and the most, as 2-4")
    return [source.positive(item, record.place, column) for item in ends]
