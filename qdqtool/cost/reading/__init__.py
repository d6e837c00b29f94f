"""Files of measured times, as benchmarks write them or people keep them, as rows: found by content, whatever the name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator

from qdq_passes.core.budget import demand
from qdq_passes.errors import ModelError, UsageError

from qdqtool.cost.reading import ai_hub, flm_bench, geniex_bench, llama_bench, ort_profile, own, qnn_profile
from qdqtool.cost.reading.sources import Source
from qdqtool.cost.rows import Phase, Row
from qdqtool.io.files.read import read_text

#: Tried in this order; a reader gives None where the file is of another format. The own columns come last: they are the least
#: particular.
READERS: dict[str, Callable[[Source], list[Row] | None]] = {
    part.NAME: part.read for part in (ort_profile, geniex_bench, ai_hub, qnn_profile, flm_bench, llama_bench, own)
}
#: Bytes of memory that a byte of text may become as values.
_GROWTH = 16


def read_rows(
    path: str | os.PathLike[str],
    *,
    chip: str = "",
    stack: str = "",
    precision: str = "",
    model: str = "",
    phase: Phase = "",
) -> list[Row]:
    """The measured times in the file at ``path``, in its order; ids are unique.

    Args:
        path: of any of the formats of `READERS`.
        chip: taken where the file does not tell it, as all that follow.
        stack: the runtime.
        precision: of the weights and activations.
        model: the network.
        phase: ``prefill`` or ``decode``.

    Raises:
        ModelError: the file cannot be read, is of no known format, holds no time, or one that is no number; the message names the
            line and column.
        UsageError: no such phase, or one chip for rows of several boards.
    """
    if phase not in ("", "prefill", "decode"):
        raise UsageError(f"unknown phase {phase!r}", hint="known are prefill and decode")
    source = Source(path=os.fspath(path), text=read_text(path).removeprefix("\ufeff"))
    demand(_GROWTH * len(source.text), "its values", where=source.path)
    rows = next((rows for read in READERS.values() if (rows := read(source)) is not None), None)
    if rows is None:
        raise ModelError(
            "holds no measured times of a known format",
            where=source.path,
            hint=f"{own.WANTED}; or give a file of {', '.join(name for name in READERS if name != own.NAME)}",
        )
    if not rows:
        raise ModelError("holds no measured time", where=source.path, hint="give a file of a run that succeeded")
    boards = {row.device for row in rows if not row.chip}
    if chip and len(boards) > 1:
        raise UsageError(
            f"one chip {chip!r} for rows of {len(boards)} boards",
            where=source.path,
            hint="leave it out, or give a file of one board",
        )
    given = {"chip": chip, "stack": stack, "precision": precision, "model": model, "phase": phase}
    given["source"] = os.path.basename(source.path)
    return list(_unique(_filled(source, row, given) for row in rows))


def _filled(source: Source, row: Row, given: dict[str, str]) -> Row:
    """``row`` with what it does not tell taken from ``given``."""
    missing = {name: value for name, value in given.items() if value and not getattr(row, name)}
    row = dataclasses.replace(row, **missing)  # type: ignore[arg-type]
    if row.phase == "prefill" and row.metric == "latency_total":
        row = dataclasses.replace(row, metric="latency")
    if row.metric == "throughput" and row.phase == "prefill" and not row.seq_len:
        raise source.bad(row.id, "tokens a second of a prefill of unknown length", hint="give it a seq_len")
    if row.out_range is not None and not row.phase:
        raise source.bad(row.id, "the length of answers, of a network", hint="give it the phase decode")
    if row.metric == "latency_total" and not row.out_tokens:
        raise source.bad(row.id, "the time of a whole decode of unknown length", hint="give it out_tokens")
    return row


def _unique(rows: Iterable[Row]) -> Iterator[Row]:
    """``rows``; the second of an id ``a`` is called ``a (2)``, or what is free after it."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for row in rows:
        name = row.id
        while name in taken:
            counts[row.id] = counts.get(row.id, 1) + 1
            name = f"{row.id} ({counts[row.id]})"
        taken.add(name)
        yield row if name == row.id else dataclasses.replace(row, id=name)
