"""Compare model B with the reference A on --data: SQNR, largest difference, cosine, share of equal elements; worst first."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command, data_options, image_settings
from qdqtool.cli.render import EXACT, Out, plural, say, table

#: Rows of the table of inner tensors without -v.
SHOWN = 12
#: Slices shown of each tensor with --per-slice.
SLICES = 3


@command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--mode", type=click.Choice(["cumulative"]), default="cumulative", show_default=True, help="Both models run whole."
)
@click.option(
    "--per-slice",
    type=int,
    metavar="AXIS",
    help="Also compare every index of AXIS by itself (a total hides a dead slice).",
)
@click.option("--tensor", "tensors", multiple=True, metavar="NAME", help="Only these inner tensors (repeat).")
@click.option("--outputs-only", is_flag=True, help="No inner tensors.")
@click.option("--min-sqnr", type=float, metavar="DB", help="Exit 1 when an output is below this SQNR.")
@data_options
def compare(
    out: Out,
    a: str,
    b: str,
    mode: str,
    per_slice: int | None,
    tensors: tuple[str, ...],
    outputs_only: bool,
    min_sqnr: float | None,
    data: str | None,
    samples: int | None,
    seed: int,
    **images: Any,
) -> int:
    """Compare model B with the reference A on --data: SQNR, largest difference, cosine, share of equal elements; worst first."""
    from qdq_passes.errors import UsageError

    from qdqtool import api

    if data is None:
        raise UsageError("no data to compare on", hint="give --data; random:8 shows whether anything is broken at all")
    with out.progress("comparing") as tick:
        found = api.compare(
            a, b, data, samples=samples, seed=seed, image=image_settings(images), per_slice=per_slice,
            tensors=[] if outputs_only else list(tensors) or None, warn=out.warn,
            progress=tick,
        )  # fmt: skip
    payload = {**found.to_json(), "mode": mode}
    out.result(payload, lambda: _render(payload, out.verbose))
    return 1 if min_sqnr is not None and found.min_sqnr is not None and found.min_sqnr < min_sqnr else 0


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
