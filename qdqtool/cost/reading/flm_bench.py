"""FastFlowLM's ``flm bench``: the CSV ``bench_<model>_<date>[_<processor>].csv``, a line for each length in thousands of tokens.

Read in FastFlowLM/FastFlowLM, the function that writes it (``write_bench_csv``, of 2026); there is no JSON. The time to the first
token is not taken: it holds more than the prefill. Model, month and processor are told by the name of the file alone."""

from __future__ import annotations

import ntpath
import re

from qdqtool.cost.reading.sources import Source
from qdqtool.cost.rows import Phase, Row

NAME = "flm bench (CSV)"
_COLUMNS: dict[Phase, str] = {"prefill": "prefill_avg_toks_per_s", "decode": "decoding_avg_toks_per_s"}
_FILE = re.compile(r"bench_(.+?)_(20\d\d)([01]\d)\d\d(?:_(.+))?\.csv", re.IGNORECASE)
#: Tokens of a ``k``.
_K = 1024


def read(source: Source) -> list[Row] | None:
    """Rows of prefill and decode, in tokens a second; None where the columns are others.

    Raises:
        ModelError: a figure is no positive finite number; zero is one that was not measured.
    """
    if not source.records or not {"context_length_k", *_COLUMNS.values()} <= set(source.records[0].values):
        return None
    file = _FILE.fullmatch(ntpath.basename(source.path))
    rows = []
    for record in source.records:
        thousands = source.positive(record.get("context_length_k"), record.place, "context_length_k")
        for phase, column in _COLUMNS.items():
            if not record.text(column).strip("0."):
                continue
            row = Row(
                id=f"{thousands:g}k {phase}",
                model=file[1] if file else "",
                stack="FastFlowLM",
                precision="",
                value=source.positive(record.get(column), record.place, column),
                unit="tok/s",
                metric="throughput",
                device=(file[4] or "") if file else "",
                phase=phase,
                seq_len=round(thousands * _K),
                month=f"{file[2]}-{file[3]}" if file else "",
            )
            rows.append(row)
    return rows
