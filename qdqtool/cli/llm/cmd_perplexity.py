"""Perplexity on a text, of the static graphs in DIR or of a dynamic decoder, over the same windows."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.device_options import device_options
from qdqtool.cli.options import command
from qdqtool.cli.render import Out, plural, say


@command(name="perplexity")
@click.argument("model", metavar="DIR|MODEL")
@click.option("--data", metavar="FILE", required=True, help="A text file, UTF-8.")
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json; by default the one in DIR, or beside MODEL.")
@click.option(
    "--window", type=click.IntRange(min=2), metavar="N",
    help="Tokens of a window; by default the largest context of DIR, 512 for a MODEL. Give it to compare both.",
)  # fmt: skip
@click.option(
    "--stride", type=click.IntRange(min=1), metavar="N",
    help="From the beginning of a window to that of the next; by default the window.",
)  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=2), metavar="N", help="Take the first N tokens of the text.")
@click.option(
    "--no-verify", is_flag=True, help="Do not compare the files of DIR with the hashes of its manifest first."
)
@click.option(
    "--threads", type=click.IntRange(min=0), default=0, metavar="N",
    help="Threads inside an operator; 0: onnxruntime's choice.",
)  # fmt: skip
@device_options
def perplexity(out: Out, model: str, data: str, no_verify: bool, **options: Any) -> None:
    """Perplexity of a language model on a text: exp of the mean of −ln p over the tokens, teacher-forced in windows.

    A window runs from an empty cache; its own first token is not scored, and no token is scored twice.
    """
    from qdqtool.llm.run.perplexity import perplexity as measure

    with out.progress("windows") as tick:
        found = measure(
            model, data, verify=not no_verify, progress=lambda done, total: tick("windows", done, total), **options
        )

    def render() -> None:
        what = f"{plural(found.tokens, 'token')} in {plural(found.windows, 'window')} of {found.window}"
        say(f"perplexity {found.perplexity:.6g} over {what}, {found.seconds:.3g} s")

    out.result(found.to_json(), render)


command = perplexity
