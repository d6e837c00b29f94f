"""Compare model B with the reference A on --data: SQNR, largest difference, cosine, share of equal elements; worst first."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command, data_options, image_settings
from qdqtool.cli.render import Out, say, table

#: Rows of the table of inner tensors without -v.
SHOWN = 12


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
            progress=lambda stage, done, total: tick(done, total),
        )  # fmt: skip
    payload = {**found.to_json(), "mode": mode}
    out.result(payload, lambda: _render(payload, out.verbose))
    return 1 if min_sqnr is not None and found.min_sqnr is not None and found.min_sqnr < min_sqnr else 0


def _render(payload: dict[str, Any], everything: bool) -> None:
    rows = [(name, *_figures(figures)) for name, figures in payload["outputs"].items()]
    table(("output", "SQNR dB", "max abs", "cosine", "exact"), rows)
    shown = payload["tensors"] if everything else payload["tensors"][:SHOWN]
    if shown:
        say()
        table(
            ("tensor, worst first", "SQNR dB", "max abs", "cosine", "exact"), [(t["name"], *_figures(t)) for t in shown]
        )
        left = len(payload["tensors"]) - len(shown)
        if left:
            say(f"{left} more with -v")
    for name, figures in [*payload["outputs"].items(), *((t["name"], t) for t in shown)]:
        for one in figures.get("slices", [])[:3]:
            say(f"worst slices of {name}: {one}")
    say(f"{payload['samples']} samples, cumulative")


def _figures(figures: dict[str, Any]) -> tuple[object, ...]:
    sqnr = figures["sqnr_db"]
    return ("exact" if sqnr is None else round(sqnr, 2), figures["max_abs"], figures["cosine"], figures["exact"])


command = compare
