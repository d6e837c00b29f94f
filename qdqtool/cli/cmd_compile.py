"""Compile the QDQ model MODEL for an NPU: a model with programs, which the NPU's library runs without Python."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.compiling import target_options
from qdqtool.cli.options import command, model_argument, output_options
from qdqtool.cli.render import Out


@command()
@model_argument
@output_options
@target_options
@click.option(
    "--embed/--no-embed", default=True, show_default=True, help="Programs in the model, or each in a file beside it."
)
def compile(out: Out, model: str, output: str, overwrite: bool, **options: Any) -> None:
    """Compile the QDQ model MODEL for an NPU: a model with programs, which the NPU's library runs without Python.

    Each part that the target computes becomes an EPContext node; the rest stays, and onnxruntime's CPU provider runs it.
    """
    from qdqtool import api
    from qdqtool.cli.compiling import show_lowered
    from qdqtool.cli.saving import refuse_output
    from qdqtool.io.models.hooks import Reproducer

    refuse_output(output, overwrite, model)
    with out.progress("compiling"):
        hooks = [Reproducer(f"{output}.reproducer")]
        done = api.compile(model, output, overwrite=overwrite, warn=out.warn, hooks=hooks, **options)
    show_lowered(out, done, model, output)


command = compile
