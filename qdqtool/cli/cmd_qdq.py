"""List and edit QuantizeLinear/DequantizeLinear pairs: insert, remove, move, set, share, dedicate, fold, convert."""

from __future__ import annotations

import click
from qdq_passes.errors import UsageError

from qdqtool.cli.main import CommandFolder, CommandRegistry


class QdqCommands(CommandFolder):
    """The commands ``qdqtool qdq …``; an unknown name is answered with those that exist."""

    registry = CommandRegistry("qdq", ("qdqtool.cli.qdq",), verbs="qdqtool.verbs.qdq")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called ``cmd_name``; a usage error with the names there are when there is none."""
        names = self.registry.names()
        if cmd_name not in names:
            raise UsageError(f"unknown qdq command {cmd_name!r}", hint=f"there is {', '.join(names)}")
        return super().get_command(ctx, cmd_name)


@click.group(name="qdq", cls=QdqCommands)
def qdq() -> None:
    """List and edit QuantizeLinear/DequantizeLinear pairs, of whatever tool they are."""


command = qdq
