"""Move the tensors of MODEL into a data file beside OUTPUT (or back with --inline); nothing else changes."""

from __future__ import annotations

import click

from qdqtool.cli.options import command, model_argument, output_options
from qdqtool.cli.render import Out


@command()
@model_argument
@output_options
@click.option(
    "--threshold",
    type=click.IntRange(min=0),
    default=1024,
    show_default=True,
    metavar="BYTES",
    help="Smallest tensor moved.",
)
@click.option("--inline", is_flag=True, help="The other way: put all tensors into the model file.")
def externalize(
    out: Out, model: str, output: str, overwrite: bool, no_provenance: bool, threshold: int, inline: bool
) -> None:
    """Move the tensors of MODEL into a data file beside OUTPUT (or back with --inline); nothing else changes."""
    from qdq_passes.pipeline.pipeline import Pipeline

    from qdqtool.cli.saving import run_and_save, show_report

    saved = run_and_save(
        out, model, output, Pipeline(), overwrite=overwrite, no_provenance=no_provenance,
        external="never" if inline else "always", threshold=threshold, allow_findings=True,
    )  # fmt: skip
    show_report(out, saved)


command = externalize
