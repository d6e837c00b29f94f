"""Move pairs across operators, up or down, where the arithmetic stays the same."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.qdq.editing import all_option, edit_options, run_edit, selected
from qdqtool.cli.render import Out


@command(name="move")
@edit_options
@all_option
@click.option("--down", is_flag=True, help="Behind the operators that read the value.")
@click.option("--up", is_flag=True, help="Before the operator that writes the value.")
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Operators to cross; as many as it can by default."
)
@click.option("--allow-approximate", is_flag=True, help="Also where numbers change; each such move says so.")
def move(
    out: Out,
    model: str,
    select: tuple[str, ...],
    allow_empty: bool,
    everything: bool,
    down: bool,
    up: bool,
    steps: int | None,
    allow_approximate: bool,
    **saving: Any,
) -> None:
    """Move pairs across data movement, Relu and Concat, where the arithmetic stays identical."""
    if up == down:
        raise click.UsageError("qdq move: give either --up or --down")
    options = selected(out, "qdq move", model, select, everything=everything, allow_empty=allow_empty)
    options["direction"] = "up" if up else "down"
    options |= {"steps": steps} if steps is not None else {}
    options |= {"allow_approximate": True} if allow_approximate else {}
    run_edit(out, model, [("move-qdq", options)], **saving)


command = move
