"""Measure language models: perplexity of static graphs and of the dynamic model."""

from __future__ import annotations

import click

from qdqtool.cli.main import CommandFolder, CommandRegistry


class LlmCommands(CommandFolder):
    """The commands ``qdqtool llm …``."""

    registry = CommandRegistry("llm", ("qdqtool.cli.llm",))


@click.group(name="llm", cls=LlmCommands)
def llm() -> None:
    """Measure language models: the static graphs that `split` wrote, and the dynamic models they come from."""


command = llm
