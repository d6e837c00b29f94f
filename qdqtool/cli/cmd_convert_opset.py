"""Convert MODEL to another version of the default operator set."""

from __future__ import annotations

import click

from qdqtool.cli.options import command, model_argument, output_options
from qdqtool.cli.render import Out


@command(name="convert-opset")
@model_argument
@output_options
@click.option(
    "--opset", "--version", "version", type=click.IntRange(min=7), default=21, show_default=True, help="Opset wanted."
)
def convert_opset(out: Out, model: str, output: str, overwrite: bool, no_provenance: bool, version: int) -> None:
    """Convert MODEL to another version of the default operator set."""
    from qdqtool.cli.saving import run_and_save, show_report

    pipeline = f"convert-opset{{version={version}}}" if version != 21 else "convert-opset"
    saved = run_and_save(out, model, output, pipeline, overwrite=overwrite, no_provenance=no_provenance)
    show_report(out, saved)


command = convert_opset
