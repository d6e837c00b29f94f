"""GenieX's ``geniex-bench --output-json``: one cell a file, an object with ``plugin``, ``device``, ``params`` and ``agg``.

Read in qualcomm/GenieX, sdk/benchmark/report.c (schema 6) and README.md (schema 2): the fields taken here are in both. Medians of
``agg`` are taken; ``prompt_tokens`` and ``prefill_tps`` of the plugin qairt count the padding to chunks of 128 tokens."""

from __future__ import annotations

import ntpath
import re
from collections.abc import Mapping
from typing import Any

from qdqtool.cost.reading.llama_bench import quantization
from qdqtool.cost.reading.sources import Json, Source, mapping
from qdqtool.cost.rows import Phase, Row

NAME = "geniex-bench (JSON)"
_CONTEXT = re.compile(r"-c\d+$")


def read(source: Source) -> list[Row] | None:
    """A row of the prefill and one of the decode, in tokens a second; None where it is another document.

    Raises:
        ModelError: a figure is no positive finite number; zero is one that was not measured.
    """
    cell = mapping(source.document)
    agg = mapping(cell.get("agg"))
    if "plugin" not in cell or not {"prefill_tps", "decode_tps"} & set(agg):
        return None
    plugin, device, name = (str(cell.get(key) or "") for key in ("plugin", "device", "cell_id"))
    prompt = _median(source, agg, "prompt_tokens") or _of(source, mapping(cell.get("params")), "n_prompt")
    drawn = _median(source, agg, "gen_tokens")
    common: dict[str, Any] = {
        "model": _CONTEXT.sub("", name).removesuffix(f"-{plugin}-{device}"),
        "stack": f"geniex_{plugin}" + ("" if device in ("npu", "") else f" {device}"),
        "precision": quantization(ntpath.basename(str(cell.get("model_path") or ""))),
        "unit": "tok/s",
        "metric": "throughput",
        # llama.cpp attends over what the cache holds, whatever its size.
        "ctx": round(_of(source, mapping(cell.get("params")), "n_ctx")) if plugin == "qairt" else 0,
    }
    rows = []
    phases: tuple[tuple[Phase, float], ...] = (("prefill", prompt), ("decode", prompt + drawn / 2))
    for phase, seq_len in phases:
        if value := _median(source, agg, f"{phase}_tps"):
            rows.append(Row(id=f"{name} {phase}".strip(), value=value, phase=phase, seq_len=round(seq_len), **common))
    return rows


def _median(source: Source, agg: Mapping[str, Json], name: str) -> float:
    return _of(source, mapping(agg.get(name)), "median", f"agg.{name}")


def _of(source: Source, part: Mapping[str, Json], key: str, place: str = "params") -> float:
    """A number not below zero; 0 where it is missing."""
    return source.positive(part[key], place, key) if part.get(key) else 0.0
