"""The part of `check` that looks at values: options and findings of the lints on data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import data_options, image_settings, stack, threads_option, tokenizer_option
from qdqtool.cli.render import Out

if TYPE_CHECKING:
    import onnx_ir as ir

lint_options = stack(
    data_options,
    click.option(
        "--preset", metavar="NAME|FILE",
        help="Grids to look at the values of a float model on; xint8 with --data. A model with pairs has its own.",
    ),
    click.option("--exclude", multiple=True, metavar="SEL", help="Nodes that would stay float (selector; repeat to unite)."),
    tokenizer_option,
    threads_option,
)  # fmt: skip


def lint_findings(out: Out, path: str, graph: ir.Model | None, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings of the lints: of a model with pairs always (weights alone without data), of a float one with data or a preset.

    Args:
        out: for progress and warnings.
        path: of the model; the tokenizer of a text lies beside it, unless said.
        graph: the model; None for a folder.
        options: what the command has of `lint_options`.

    Raises:
        UsageError: data for a folder.
    """
    from qdq_passes.errors import UsageError

    from qdqtool.api.linting import has_grids, lint

    image = image_settings(options)
    asked = options["data"] is not None or options["preset"] is not None
    if graph is None:
        if asked:
            raise UsageError("--data and --preset are for a single model", hint="check one of the folder's files")
        return []
    if not asked and not has_grids(graph):
        return []
    said = {
        **options,
        "exclude": list(options["exclude"]),
        "tokenizer": options["tokenizer"] or os.path.dirname(path) or ".",
    }
    with out.progress("observing") as tick:
        found = lint(graph, **said, image=image, progress=tick, warn=out.warn)
    return [finding.to_json() for finding in found]
