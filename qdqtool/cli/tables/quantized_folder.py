"""What `quantize` prints of a folder that `split` wrote."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from qdqtool.cli.render import Out, megabytes, plural, say, table

if TYPE_CHECKING:
    from qdqtool.quantization.plan import Plan


def show_pipelines(out: Out, folder: str, job: Plan, *, allow_empty: bool = False) -> None:
    """The pipeline of each graph, with its selectors tried."""
    from qdqtool.verbs.work.quantizing_decoders import planned_for_folder

    plans = planned_for_folder(folder, job, allow_empty=allow_empty, warn=out.warn)
    texts = {name: str(plan.pipeline) for name, plan in plans.items()}
    out.result({"pipelines": texts, "method": job.method}, lambda: table(("graph", "pipeline"), list(texts.items())))


def render_folder(payload: dict[str, Any], source: str, output: str) -> None:
    """What was done to all graphs, then a line for each."""
    rows: list[tuple[str, object]] = [
        ("preset", payload["preset"]),
        ("ranges", f"{payload['method']} over {plural(payload['samples'], 'window')} of the text"),
        ("KV cache", payload["kv_cache"]),
        ("size", f"{megabytes(folder_bytes(source))} → {megabytes(folder_bytes(output))}"),
        ("seconds", f"{payload['seconds']:.1f}"),
    ]
    table(("", ""), rows)
    say()
    table(
        ("graph", "quantized nodes", "excluded", "pairs", "MACs in 8 bit or less"),
        [
            (g["model"], str(g["quantized_nodes"]), str(len(g["excluded"])), str(g["pairs"]), _small(g["mac_shares"]))
            for g in payload["graphs"]
        ],
    )
    refused = {r["tensor"]: r["reason"] for g in payload["graphs"] for r in g["refused"]}
    if refused:
        say()
        table(("value that stays float", "reason"), list(refused.items()))
    say(f"wrote {plural(len(payload['files']) + 1, 'file')} to {output}")


def _small(shares: dict[str, float]) -> str:
    return f"{sum(share for name, share in shares.items() if name.isdigit() and int(name) <= 8):.1%}"


def folder_bytes(folder: str) -> int:
    """Bytes of the files in ``folder``."""
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
