"""The help of every command as text. ``python -m tests.golden_help.help_texts`` writes the goldens anew: read the difference."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from qdqtool.cli.main import cli

FOLDER = Path(__file__).parent
#: Columns that help is laid out for.
WIDTH = 112


def help_texts() -> dict[str, str]:
    """Name of a command, its words joined by dashes, → its help; the whole tool is ``qdqtool``."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        return dict(_texts(cli, click.Context(cli, info_name="qdqtool", **cli.context_settings)))
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def _texts(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path.replace(" ", "-").removeprefix("qdqtool-"), command.get_help(context) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _texts(found, click.Context(found, info_name=name, parent=context))


if __name__ == "__main__":
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name, text in help_texts().items():
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
