"""Cut the part of MODEL between values out as a model of its own."""

from __future__ import annotations

import click

from qdqtool.cli.options import command, model_argument, output_options
from qdqtool.cli.render import Out


@command()
@model_argument
@output_options
@click.option(
    "--inputs", multiple=True, metavar="NAME", help="Values that become inputs (repeat, or separate by commas)."
)
@click.option(
    "--outputs", multiple=True, metavar="NAME", help="Values that become outputs (repeat, or separate by commas)."
)
def extract(
    out: Out,
    model: str,
    output: str,
    overwrite: bool,
    no_provenance: bool,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> None:
    """Cut the part of MODEL between values out as a model of its own."""
    from qdq_passes.clean.extract_subgraph import ExtractSubgraph
    from qdq_passes.errors import UsageError
    from qdq_passes.pipeline.pipeline import Pipeline

    from qdqtool.cli.saving import run_and_save, show_report

    starts, ends = ([name for text in texts for name in text.split(",") if name] for texts in (inputs, outputs))
    if not starts and not ends:
        raise UsageError(
            "nothing to cut at", hint="give --inputs or --outputs; `qdqtool match MODEL 'tensor:*'` lists values"
        )
    pipeline = Pipeline((ExtractSubgraph(inputs=tuple(starts), outputs=tuple(ends)),))
    saved = run_and_save(out, model, output, pipeline, overwrite=overwrite, no_provenance=no_provenance)
    show_report(out, saved)


command = extract
