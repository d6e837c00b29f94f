"""Run a pipeline of passes on MODEL."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out
from qdqtool.cli.tables.saving import run_edit
from qdqtool.options import option
from qdqtool.verbs.edits.opt import Opt


@dataclass(frozen=True, kw_only=True)
class OptCommand(Opt):
    """`Opt` as a command."""

    time_passes: bool = option(False, "Show the time of every pass.", before="stop_after")


@command_of(OptCommand)
def opt(out: Out, asked: OptCommand) -> None:
    run_edit(out, asked, times=asked.time_passes)


command = opt
