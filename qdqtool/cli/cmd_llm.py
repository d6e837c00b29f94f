"""Measure language models: perplexity of static graphs and of the dynamic model."""

from __future__ import annotations

import click
from qdq_passes.core.registry import FolderRegistry

from qdqtool.cli.main import CommandFolder


class LlmCommands(CommandFolder):
    """The commands ``qdqtool llm …``."""

    registry = FolderRegistry("llm", ("qdqtool.cli.llm",), prefix="cmd_", attribute="command")


@click.group(name="llm", cls=LlmCommands)
def llm() -> None:
    """Measure language models: the static graphs that `split` wrote, and the dynamic models they come from."""


command = llm
