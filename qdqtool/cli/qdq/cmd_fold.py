"""Fold pairs that do nothing new: doubled ones cancel, duplicates merge, float weights under a pair become integers."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.qdq.editing import Step, edit_options, optionally_selected, run_edit
from qdqtool.cli.render import Out


@command(name="fold")
@edit_options
@click.option("--keep-float-weights", is_flag=True, help="Leave float weights under their pair.")
def fold(
    out: Out, model: str, select: tuple[str, ...], allow_empty: bool, keep_float_weights: bool, **saving: Any
) -> None:
    """Fold pairs that do nothing new: doubled ones cancel, duplicates merge, float weights under a pair become integers."""
    chosen = optionally_selected(out, model, select, allow_empty=allow_empty)
    steps: list[Step] = [] if keep_float_weights else [("fold-weight-qdq", chosen)]
    run_edit(out, model, [*steps, ("fold-qdq", chosen)], **saving)


command = fold
