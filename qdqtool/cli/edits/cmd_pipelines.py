"""The commands `opt` and `simplify`, which have an option more than their verbs."""

from __future__ import annotations

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out, say
from qdqtool.cli.tables.saving import run_edit
from qdqtool.options import LAST, option
from qdqtool.verbs.edits.pipelines import Opt, Simplify


@dataclass(frozen=True, kw_only=True)
class OptCommand(Opt):
    """`Opt` as a command."""

    time_passes: bool = option(False, "Show the time of every pass.", before="stop_after")


@command_of(OptCommand)
def opt(out: Out, asked: OptCommand) -> None:
    run_edit(out, asked, times=asked.time_passes)


@dataclass(frozen=True, kw_only=True)
class SimplifyCommand(Simplify):
    """`Simplify` as a command."""

    print_pipeline: bool = option(False, "Print the pipeline and stop.", before=LAST)


@command_of(SimplifyCommand)
def simplify(out: Out, asked: SimplifyCommand) -> None:
    pipeline = asked.pipeline()
    if asked.print_pipeline:
        out.result({"pipeline": pipeline}, lambda: say(pipeline))
        return
    if asked.output is None:
        raise UsageError("no output", hint="give -o FILE, or --print-pipeline to see what would be done")
    run_edit(out, asked)


COMMANDS = {"opt": opt, "simplify": simplify}
