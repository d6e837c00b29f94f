"""Fold constants, drop what is unused or does nothing; Q and DQ stay, outputs stay bit for bit the same."""

from __future__ import annotations

import click

from qdqtool.cli.options import command, model_argument, output_options
from qdqtool.cli.render import Out


@command()
@model_argument
@output_options
@click.option(
    "--fold-floats", is_flag=True, help="Also fold float arithmetic (rounded as onnx's reference does, not bit-exact)."
)
@click.option("--print-pipeline", is_flag=True, help="Print the pipeline and stop.")
def simplify(
    out: Out, model: str, output: str, overwrite: bool, no_provenance: bool, fold_floats: bool, print_pipeline: bool
) -> None:
    """Fold constants, drop what is unused or does nothing; Q and DQ stay, outputs stay bit for bit the same."""
    from qdqtool.cli.render import say
    from qdqtool.cli.saving import run_and_save, show_report

    fold = "fold-constants{what=all}" if fold_floats else "fold-constants"
    pipeline = f"infer-shapes,{fold},remove-identity,merge-transposes,remove-unused,sort,infer-shapes"
    if print_pipeline:
        say(pipeline)
        return
    report = run_and_save(out, model, output, pipeline, overwrite=overwrite, no_provenance=no_provenance)
    show_report(out, report, output)


command = simplify
