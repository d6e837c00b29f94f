"""Compare the static graphs in DIR with the dynamic MODEL they were made of: teacher-forced logits; exit 1 where they differ."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.render import Out
from qdqtool.cli.verification import lengths, show_verification, tolerance_option


@command(name="verify")
@click.argument("folder", metavar="DIR")
@click.argument("model", metavar="MODEL")
@tolerance_option
@click.option(
    "--lengths", metavar="N,…", callback=lengths,
    help="Lengths of the prompts; by default 1, S-1, S, S+1, 2S and 3S+5 for each prefill length S.",
)  # fmt: skip
@click.option(
    "--decoded",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    metavar="N",
    help="Tokens decoded behind each.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the texts.")
@click.option(
    "--threads", type=click.IntRange(min=0), default=0, metavar="N",
    help="Threads inside an operator; 0: onnxruntime's choice.",
)  # fmt: skip
def verify(out: Out, folder: str, model: str, **options: Any) -> int:
    """Compare the static graphs in DIR with the dynamic MODEL they were made of: teacher-forced logits.

    Every batch size, context and prefill length there is runs random texts, graph optimization disabled on both sides. Exit 1
    where logits differ by more than the tolerance; the first layer whose cache differs is named.
    """
    from qdqtool.llm.run.verifying import verify_split

    with out.progress("verifying") as tick:
        found = verify_split(folder, model, progress=lambda done, total: tick("verifying", done, total), **options)
    out.result(found.to_json(), lambda: show_verification(found))
    return 0 if found.passed else 1


command = verify
