"""Find what is wrong with a model: reduce it to the smallest part that still fails."""

from __future__ import annotations

import click

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.main import INTERRUPTED, SubCommands
from qdqtool.cli.render import Out, plural, say, table
from qdqtool.verbs.debug.reduce import Reduce

#: Names of nodes shown without -v.
SHOWN = 10


@click.group(name="debug", cls=SubCommands)
def debug() -> None:
    """Find what is wrong with a model: reduce it to the smallest part that still fails."""


@command_of(Reduce, group=debug)
def reduce(out: Out, asked: Reduce) -> int:
    """Find the smallest part of MODEL that still fails, and write it with the inputs that show it."""
    found = ran(out, asked, "reducing")

    def render() -> None:
        shown = found.nodes if out.verbose else found.nodes[:SHOWN]
        table(
            ("", ""),
            [("reads", ", ".join(found.inputs)), ("writes", ", ".join(found.outputs)), ("fails", found.failure)],
        )
        say()
        for name in shown:
            say(f"    {name}")
        if len(shown) < len(found.nodes):
            say(f"    and {len(found.nodes) - len(shown)} more (-v)")
        say()
        say(f"{plural(found.nodes_before, 'node')} → {len(found.nodes)}, {plural(found.checks, 'check')}")
        if found.stopped:
            say(f"{found.stopped}: a smaller part may be there")
        say(f"wrote {' and '.join(found.files)}")

    out.result(found.to_json, render)
    return INTERRUPTED if found.stopped == "interrupted" else 0


command = debug
