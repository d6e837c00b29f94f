"""llama.cpp's ``llama-bench -o json|jsonl|csv|md``: ``avg_ts`` tokens a second of a prompt, of a generation, or of both.

Read in ggml-org/llama.cpp, tools/llama-bench/README.md (samples of all four) and llama-bench.cpp (names of the fields). A row of
prompt and generation together is left out: it tells neither. A prefill behind a depth attends over both: that is its ``ctx``."""

from __future__ import annotations

import re

from qdqtool.cost.reading.sources import Record, Source
from qdqtool.cost.rows import Row

NAME = "llama-bench (JSON, JSONL, CSV, markdown)"
_TEST = re.compile(r"(?:pp ?(\d{1,9}))?\+?(?:tg ?(\d{1,9}))?(?: @ d ?(\d{1,9}))?")
_QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])(I?Q\d\w*(?: - (?:Small|Medium|Large))?|TQ\d\w*|MXFP4|NVFP4|BF16|F16|F32|w\d+a\d+)(?![A-Za-z0-9])",
    re.IGNORECASE,
)


def read(source: Source) -> list[Row] | None:
    """A row for each test of a prompt or a generation; None where no record has the columns.

    Raises:
        ModelError: a figure is no positive finite number; the message names line and column.
    """
    if any({"n_prompt", "n_gen", "avg_ts"} <= set(record.values) for record in source.records):
        return [row for record in source.records if (row := _of_fields(source, record))]
    if any({"test", "t/s", "backend"} <= set(record.values) for record in source.records):
        return [row for record in source.records if (row := _of_markdown(source, record))]
    return None


def quantization(text: str) -> str:
    """The precision in a file name or a type: ``Q4_K_M`` of ``qwen2 7B Q4_K - Medium``; "" where there is none."""
    found = _QUANTIZATION.search(text.removesuffix(".gguf"))
    return re.sub(r" - (\w)\w+", lambda size: f"_{size[1].upper()}", found[1]) if found else ""


def _of_fields(source: Source, record: Record) -> Row | None:
    prompt, drawn, depth = (source.count(record, name) for name in ("n_prompt", "n_gen", "n_depth"))
    month = re.match(r"\d{4}-\d\d", record.text("test_time"))
    backend = record.text("backends")
    return _row(source, record, (prompt, drawn, depth), "avg_ts", "model_type", backend, month[0] if month else "")


def _of_markdown(source: Source, record: Record) -> Row | None:
    found = _TEST.fullmatch(record.text("test"))
    if not found or not any(found.groups()[:2]):
        raise source.bad(
            record.place, f"test is {record.text('test')[:40]!r}", hint="known are pp512, tg128 and @ d1024"
        )
    prompt, drawn, depth = (int(part or 0) for part in found.groups())
    return _row(source, record, (prompt, drawn, depth), "t/s", "model", record.text("backend"), "")


def _row(
    source: Source, record: Record, tokens: tuple[int, int, int], column: str, model: str, backend: str, month: str
) -> Row | None:
    """The row of so many ``tokens`` of prompt, generation and depth; tokens a second in ``column``, the type in ``model``."""
    prompt, drawn, depth = tokens
    if (prompt > 0) == (drawn > 0):
        return None
    named = record.text(model)
    found = _QUANTIZATION.search(named)
    name = re.sub(r" (?:mostly|all)$", "", named[: found.start()].strip()) if found else named
    test = f"pp{prompt}" if prompt else f"tg{drawn}"
    return Row(
        id=f"{named} {test}{f' @ d{depth}' if depth else ''}".strip(),
        model=name,
        stack=f"llama.cpp {backend}".strip(),
        precision=quantization(named),
        value=source.positive(str(record.get(column)).partition("±")[0].strip(), record.place, column),
        unit="tok/s",
        metric="throughput",
        phase="prefill" if prompt else "decode",
        seq_len=prompt or depth + drawn // 2,
        ctx=depth + prompt if prompt and depth else 0,
        month=month,
    )
