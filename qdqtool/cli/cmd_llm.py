"""Measure language models: perplexity of static graphs and of the dynamic model."""

from __future__ import annotations

import click

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.main import SubCommands
from qdqtool.cli.render import Out, plural, say
from qdqtool.cli.tables.verification import show_verification
from qdqtool.verbs.perplexity import PerplexityOf
from qdqtool.verbs.verify import Verify


@click.group(name="llm", cls=SubCommands)
def llm() -> None:
    """Measure language models: the static graphs that `split` wrote, and the dynamic models they come from."""


@command_of(PerplexityOf, group=llm)
def perplexity(out: Out, asked: PerplexityOf) -> None:
    """Perplexity on a text, of the static graphs in DIR or of a dynamic decoder, over the same windows."""
    found = ran(out, asked, "windows")

    def render() -> None:
        what = f"{plural(found.tokens, 'token')} in {plural(found.windows, 'window')} of {found.window}"
        say(f"perplexity {found.perplexity:.6g} over {what}, {found.seconds:.3g} s")

    out.result(found.to_json, render)


@command_of(Verify, group=llm)
def verify(out: Out, asked: Verify) -> int:
    """Compare the static graphs in DIR with the dynamic MODEL they come from: teacher-forced logits; exit 1 where they differ."""
    found = ran(out, asked, "verifying")
    out.result(found.to_json, lambda: show_verification(found))
    return 0 if found.passed else 1


command = llm
