"""Compare model B with the reference A on --data: SQNR, largest difference, cosine, share of equal elements; worst first."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import EXACT, Out, plural, say, table
from qdqtool.cli.tables.comparing import render_dumps, render_local
from qdqtool.options import option
from qdqtool.verbs.compare import Compare

if TYPE_CHECKING:
    from qdqtool.comparison.dumps import DumpComparison
    from qdqtool.comparison.report import Comparison, LocalComparison

#: Rows of the table of inner tensors without -v.
SHOWN = 12
#: Slices shown of each tensor with --per-slice.
SLICES = 3


@dataclass(frozen=True, kw_only=True)
class CompareCommand(Compare):
    """`Compare` as a command."""

    outputs_only: bool = option(False, "No inner tensors.", before="min_sqnr")
    baseline: str | None = option(
        None,
        "JSON of an earlier compare: exit 1 when an output's SQNR is below the one there.",
        value="FILE",
        use="read",
        before="data",
    )


@command_of(CompareCommand)
def compare(out: Out, asked: CompareCommand) -> int:
    if asked.min_sqnr is not None and math.isnan(asked.min_sqnr):
        raise UsageError("--min-sqnr is no number", hint="give decibels, as 30")
    before = _stored(asked.baseline) if asked.baseline is not None else None
    found = ran(out, replace(asked, tensors=()) if asked.outputs_only else asked, "comparing")
    payload = {**found.to_json(), "mode": "dumps" if asked.dumps is not None else asked.mode}
    if before is not None and asked.baseline is not None:
        payload["worse"] = _worse(_judged(payload), before, asked.baseline)
    below = _below(asked, found)

    def render() -> None:
        _render_any(payload, out.verbose)
        for text in below:
            say(f"failed: {text}")

    out.result(payload, render)
    return 1 if below or payload.get("worse") else 0


def _below(asked: Compare, found: Comparison | LocalComparison | DumpComparison) -> list[str]:
    """What is below a bound."""
    from qdqtool.comparison.report import Comparison
    from qdqtool.verbs.work.bounds.outputs import missed

    least = asked.min_sqnr
    if isinstance(found, Comparison):
        return (
            []
            if least is None and not asked.min_output
            else [*missed(found, -math.inf if least is None else least, asked.min_output)]
        )
    is_below = least is not None and found.min_sqnr is not None and found.min_sqnr < least
    return [f"SQNR {found.min_sqnr:.1f} dB, below the required {least:g} dB"] if is_below else []


def _stored(path: str) -> dict[str, float | None]:
    """SQNR of each output in an earlier report; None where it was exact.

    Raises:
        UsageError: the file is no such report.
    """
    from qdq_passes.numerics.documents import json_of

    from qdqtool.io.files.read import read_text

    try:
        outputs = _judged(json_of(read_text(path)))
        return {name: None if (db := o["sqnr_db"]) is None else float(db) for name, o in outputs.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError("is no report of `qdqtool compare --json`", where=path) from error


def _judged(payload: dict[str, Any]) -> dict[str, Any]:
    """What a baseline is about: the outputs; of a node-by-node comparison the nodes."""
    outputs: dict[str, Any] = payload["outputs"] if "outputs" in payload else {n["name"]: n for n in payload["nodes"]}
    return outputs


def _worse(now: dict[str, Any], before: dict[str, float | None], path: str) -> list[dict[str, Any]]:
    """The outputs whose SQNR is below that of the earlier report.

    Raises:
        UsageError: the report is of other outputs.
    """
    from qdq_passes.numerics.agreement import worst_first

    if set(now) != set(before):
        lacking, gone = [n for n in now if n not in before], [n for n in before if n not in now]
        what = (
            f"has no output {', '.join(lacking)}" if lacking else f"has output {', '.join(gone)}, which the model lacks"
        )
        raise UsageError(what, where=path, hint="make the baseline again with --json-out")
    rows = [{"output": name, "sqnr_db": figures["sqnr_db"], "before": before[name]} for name, figures in now.items()]
    return [row for row in rows if worst_first(row["sqnr_db"]) < worst_first(row["before"])]


def _render_any(payload: dict[str, Any], everything: bool) -> None:
    if "nodes" in payload:
        render_local(payload, everything)
    elif "first_diverging" in payload:
        render_dumps(payload, everything)
    else:
        _render(payload, everything)
        return
    _show_worse(payload)


def _render(payload: dict[str, Any], everything: bool) -> None:
    outputs = [{"name": _named(name, figures), **figures} for name, figures in payload["outputs"].items()]
    inner = payload["tensors"]
    differing = [t for t in inner if t["sqnr_db"] is not None]
    shown = inner if everything else differing[:SHOWN]
    _agreements("output", outputs)
    if shown:
        say()
        _agreements("tensor, worst first", shown)
    if inner and not differing:
        say(f"all {len(inner)} tensors inside are exact")
    elif len(inner) > len(shown):
        say(f"{len(inner) - len(shown)} more with -v")
    slices = [
        (t["name"], part["index"], _sqnr(part), part["exact"])
        for t in [*outputs, *shown]
        for part in t.get("slices", [])[:SLICES]
    ]
    if slices:
        say()
        table(("worst slices of", "index", "SQNR dB", "exact"), slices)
    say(f"{plural(payload['samples'], 'sample')}, {payload['mode']}")
    _show_worse(payload)


def _show_worse(payload: dict[str, Any]) -> None:
    for row in payload.get("worse", []):
        was = EXACT if row["before"] is None else f"{row['before']:.2f} dB"
        say(f"worse than the baseline: {row['output']}, {row['sqnr_db']:.2f} dB, was {was}")


def _agreements(title: str, compared: list[dict[str, Any]]) -> None:
    """With the LSB (steps of B's encoding) where a tensor has one."""
    columns = {"max abs": "max_abs", "max LSB": "lsb", "cosine": "cosine", "exact": "exact"}
    if all(t.get("lsb") is None for t in compared):
        del columns["max LSB"]
    has_nodes = any("node" in t and "compared_at" not in t for t in compared)
    named = [(t["name"], t.get("node", "")) if has_nodes else (t["name"],) for t in compared]
    rows = [
        (*name, _sqnr(t), *(t.get(key) for key in columns.values())) for name, t in zip(named, compared, strict=True)
    ]
    table((title, *(("node",) if has_nodes else ()), "SQNR dB", *columns), rows)


def _named(name: str, figures: dict[str, Any]) -> str:
    """An output, and the tensor that it is compared at."""
    return f"{name} (compared at {figures['compared_at']})" if "compared_at" in figures else name


def _sqnr(figures: dict[str, Any]) -> object:
    return EXACT if figures["sqnr_db"] is None else round(figures["sqnr_db"], 2)


command = compare
