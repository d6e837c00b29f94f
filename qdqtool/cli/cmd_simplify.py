"""Fold constants, drop what is unused or does nothing; Q and DQ stay, outputs stay bit for bit the same."""

from __future__ import annotations

import click

from qdqtool.cli.options import command, model_argument
from qdqtool.cli.render import Out, say


@command()
@model_argument
@click.option("-o", "--output", metavar="FILE", help="Where to write the model; parent folders are made.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--no-provenance", is_flag=True, help="Leave out the metadata entry that says what was done.")
@click.option(
    "--fold-floats", is_flag=True, help="Also fold float arithmetic (rounded as onnx's reference does, not bit-exact)."
)
@click.option("--print-pipeline", is_flag=True, help="Print the pipeline and stop.")
def simplify(
    out: Out,
    model: str,
    output: str | None,
    overwrite: bool,
    no_provenance: bool,
    fold_floats: bool,
    print_pipeline: bool,
) -> None:
    """Fold constants, drop what is unused or does nothing; Q and DQ stay, outputs stay bit for bit the same."""
    from qdq_passes.errors import UsageError

    from qdqtool.cli.saving import run_and_save, show_report

    fold = "fold-constants{what=all}" if fold_floats else "fold-constants"
    pipeline = f"infer-shapes,{fold},remove-identity,merge-transposes,remove-unused,sort,infer-shapes"
    if print_pipeline:
        out.result({"pipeline": pipeline}, lambda: say(pipeline))
        return
    if output is None:
        raise UsageError("no output", hint="give -o FILE, or --print-pipeline to see what would be done")
    saved = run_and_save(out, model, output, pipeline, overwrite=overwrite, no_provenance=no_provenance)
    show_report(out, saved)


command = simplify
