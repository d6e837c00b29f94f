"""Make one pair of several pairs on the same value."""

from __future__ import annotations

from typing import Any

from qdqtool.cli.options import command
from qdqtool.cli.qdq.editing import all_option, edit_options, run_edit, selected
from qdqtool.cli.render import Out


@command(name="share")
@edit_options
@all_option
def share(out: Out, model: str, select: tuple[str, ...], allow_empty: bool, everything: bool, **saving: Any) -> None:
    """Make one pair of several pairs on the same value."""
    chosen = selected(out, "qdq share", model, select, everything=everything, allow_empty=allow_empty)
    run_edit(out, model, [("share-qdq", chosen)], **saving)


command = share
