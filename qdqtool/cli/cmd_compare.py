"""Compare model B with the reference A on --data: SQNR, largest difference, cosine, share of equal elements; worst first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from qdqtool.cli.comparing import render_dumps, render_local
from qdqtool.cli.options import command, data_options, image_settings, threads_option, tokenizer_option
from qdqtool.cli.render import EXACT, Out, plural, say, table

#: Rows of the table of inner tensors without -v.
SHOWN = 12
#: Slices shown of each tensor with --per-slice.
SLICES = 3


@command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--mode",
    type=click.Choice(["cumulative", "local"]),
    default="cumulative",
    show_default=True,
    help="Both models run whole; or each node of B on the float inputs that A has there, with its error by cause.",
)
@click.option(
    "--dumps", metavar="DIR", help="Compare tensors that a board dumped here: .npy, .npz, .raw or .bin, by name."
)
@click.option(
    "--dumps-layout",
    type=click.Choice(["auto", "nchw", "nhwc"]),
    default="auto",
    show_default=True,
    help="Layout of dumps; nhwc: channels last.",
)
@click.option(
    "--ranges", metavar="FILE", help="With --mode local: the ranges B was quantized with; tells what moved scales cost."
)
@click.option("--statistics", metavar="FILE", help="With --mode local: the statistics B was smoothed with.")
@click.option(
    "--per-slice",
    type=int,
    metavar="AXIS",
    help="Also compare every index of AXIS by itself (a total hides a dead slice).",
)
@click.option("--tensor", "tensors", multiple=True, metavar="NAME", help="Only these inner tensors (repeat).")
@click.option("--outputs-only", is_flag=True, help="No inner tensors.")
@click.option(
    "--min-sqnr", type=float, metavar="DB", help="Exit 1 when an output (a node, a dumped tensor) is below this SQNR."
)
@click.option(
    "--baseline",
    metavar="FILE",
    help="JSON of an earlier compare: exit 1 when an output's SQNR is below the one there.",
)
@data_options
@tokenizer_option
@threads_option
def compare(
    out: Out,
    a: str,
    b: str | None,
    mode: str,
    dumps: str | None,
    dumps_layout: str,
    ranges: str | None,
    statistics: str | None,
    per_slice: int | None,
    tensors: tuple[str, ...],
    outputs_only: bool,
    min_sqnr: float | None,
    baseline: str | None,
    data: str | None,
    samples: int | None,
    seed: int,
    tokenizer: str | None,
    jobs: int,
    **images: Any,
) -> int:
    """Compare model B with the reference A on --data: SQNR, largest difference, cosine, share of equal elements; worst first.

    With --dumps what is compared is what a board computed: with A, and with B where it is given, which the board runs.
    """
    from qdq_passes.errors import UsageError

    from qdqtool import api

    if min_sqnr is not None and math.isnan(min_sqnr):
        raise UsageError("--min-sqnr is no number", hint="give decibels, as 30")
    if data is None:
        raise UsageError("no data to compare on", hint="give --data; random:8 shows whether anything is broken at all")
    before = _stored(baseline) if baseline is not None else None
    with out.progress("comparing") as tick:
        options: dict[str, Any] = {
            "samples": samples, "seed": seed, "image": image_settings(images), "tokenizer": tokenizer, "jobs": jobs,
            "progress": tick, "warn": out.warn,
        }  # fmt: skip
        verb: Callable[..., Any] = api.compare  # what is returned goes by what was asked
        found = verb(
            a, b, data, mode=mode, dumps=dumps, dumps_layout=dumps_layout, min_sqnr=min_sqnr, ranges=ranges,
            statistics=statistics, per_slice=per_slice, tensors=[] if outputs_only else list(tensors) or None, **options,
        )  # fmt: skip
    payload = {**found.to_json(), "mode": "dumps" if dumps is not None else mode}
    if before is not None and baseline is not None:
        payload["worse"] = _worse(_judged(payload), before, baseline)
    out.result(payload, lambda: _render_any(payload, out.verbose))
    below = min_sqnr is not None and found.min_sqnr is not None and found.min_sqnr < min_sqnr
    return 1 if below or payload.get("worse") else 0


def _stored(path: str) -> dict[str, float | None]:
    """SQNR of each output in an earlier report; None where it was exact.

    Raises:
        UsageError: the file is no such report.
    """
    import json

    from qdq_passes.errors import UsageError

    from qdqtool.io.files.read import read_text

    try:
        outputs = _judged(json.loads(read_text(path)))
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
    from qdq_passes.errors import UsageError
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
    outputs = [{"name": name, **figures} for name, figures in payload["outputs"].items()]
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
    rows = [(t["name"], _sqnr(t), *(t.get(key) for key in columns.values())) for t in compared]
    table((title, "SQNR dB", *columns), rows)


def _sqnr(figures: dict[str, Any]) -> object:
    return EXACT if figures["sqnr_db"] is None else round(figures["sqnr_db"], 2)


command = compare
