"""Perplexity on a text, of the static graphs in DIR or of a dynamic decoder, over the same windows."""

from __future__ import annotations

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, plural, say
from qdqtool.verbs.perplexity import PerplexityOf


@command_of(PerplexityOf)
def perplexity(out: Out, asked: PerplexityOf) -> None:
    found = ran(out, asked, "windows")

    def render() -> None:
        what = f"{plural(found.tokens, 'token')} in {plural(found.windows, 'window')} of {found.window}"
        say(f"perplexity {found.perplexity:.6g} over {what}, {found.seconds:.3g} s")

    out.result(found.to_json(), render)


command = perplexity
