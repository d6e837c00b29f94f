"""Give every reader of a value a pair of its own."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.qdq.editing import all_option, edit_options, run_edit, selected
from qdqtool.cli.render import Out


@command(name="dedicate")
@edit_options
@all_option
@click.option(
    "--parameters",
    type=click.Choice(["own", "shared"]),
    default="own",
    show_default=True,
    help="Scale and zero point of its own for every pair, or the same for all.",
)
def dedicate(
    out: Out,
    model: str,
    select: tuple[str, ...],
    allow_empty: bool,
    everything: bool,
    parameters: str,
    **saving: Any,
) -> None:
    """Give every reader of a value a pair of its own."""
    chosen = selected(out, "qdq dedicate", model, select, everything=everything, allow_empty=allow_empty)
    chosen |= {"parameters": parameters} if parameters != "own" else {}
    run_edit(out, model, [("dedicate-qdq", chosen)], **saving)


command = dedicate
