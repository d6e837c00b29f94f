"""Make dynamic dimensions static, and infer the shapes that follow."""

from __future__ import annotations

import click

from qdqtool.cli.options import command, model_argument, output_options
from qdqtool.cli.render import Out


@command(name="fix-shapes")
@model_argument
@output_options
@click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="Size of a dynamic dimension (repeat).")
@click.option("--input-shape", "shapes", multiple=True, metavar="INPUT=1x3x224x224", help="Shape of an input (repeat).")
def fix_shapes(
    out: Out,
    model: str,
    output: str,
    overwrite: bool,
    no_provenance: bool,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
) -> None:
    """Make dynamic dimensions static, and infer the shapes that follow."""
    from qdq_passes.clean.fix_shapes import FixShapes
    from qdq_passes.errors import UsageError
    from qdq_passes.pipeline.pipeline import Pipeline

    from qdqtool.cli.saving import run_and_save, show_report

    if not (dims or shapes):
        raise UsageError("no shape given", hint="give --dim N=1 or --input-shape x=1x3x224x224")
    pipeline = Pipeline((FixShapes(dims=dims, shapes=shapes),))
    saved = run_and_save(out, model, output, pipeline, overwrite=overwrite, no_provenance=no_provenance)
    show_report(out, saved)


command = fix_shapes
