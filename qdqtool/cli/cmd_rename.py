"""Rename values (inputs and outputs included), nodes or symbolic dimensions."""

from __future__ import annotations

import click

from qdqtool.cli.options import command, model_argument, output_options
from qdqtool.cli.render import Out


@command()
@model_argument
@output_options
@click.option(
    "--value", "--tensor", "values", multiple=True, metavar="OLD=NEW", help="Rename a value, input or output (repeat)."
)
@click.option("--node", "nodes", multiple=True, metavar="OLD=NEW", help="Rename a node (repeat).")
@click.option("--dim", "dims", multiple=True, metavar="OLD=NEW", help="Rename a symbolic dimension (repeat).")
def rename(
    out: Out,
    model: str,
    output: str,
    overwrite: bool,
    no_provenance: bool,
    values: tuple[str, ...],
    nodes: tuple[str, ...],
    dims: tuple[str, ...],
) -> None:
    """Rename values (inputs and outputs included), nodes or symbolic dimensions."""
    from qdq_passes.clean.rename import Rename
    from qdq_passes.errors import UsageError
    from qdq_passes.pipeline.pipeline import Pipeline

    from qdqtool.cli.saving import run_and_save, show_report

    if not (values or nodes or dims):
        raise UsageError("nothing to rename", hint="give --value, --node or --dim OLD=NEW")
    pipeline = Pipeline((Rename(values=values, nodes=nodes, dims=dims),))
    saved = run_and_save(out, model, output, pipeline, overwrite=overwrite, no_provenance=no_provenance)
    show_report(out, saved)


command = rename
