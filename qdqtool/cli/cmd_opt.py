"""Run a pipeline of passes on MODEL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command, image_settings, model_argument, output_options, sample_options
from qdqtool.cli.render import Out

if TYPE_CHECKING:
    from qdqtool.runtime.hooks import NumericCheck


@command()
@model_argument
@output_options
@click.option(
    "-p", "--pipeline", "text", required=True, metavar="TEXT", help="Passes, or @FILE with text or a TOML edit script."
)
@click.option("--ranges", metavar="FILE", help="Binds @ranges, the ranges that `calibrate` wrote.")
@click.option("--encodings", metavar="FILE", help="Binds @encodings, an encodings file of any format.")
@click.option("--statistics", metavar="FILE", help="Binds @statistics, which `quantize --save-statistics` wrote.")
@click.option("--target", metavar="T", help="Binds @target.")
@click.option(
    "--verify-each/--no-verify-each", default=True, help="Verify after every pass, so that a message names the pass."
)
@click.option("--print-each", metavar="DIR", help="Write the model's text form after every pass into DIR.")
@click.option("--time-passes", is_flag=True, help="Show the time of every pass.")
@click.option("--stop-after", type=click.IntRange(min=0), metavar="N", help="Stop after N passes.")
@click.option(
    "--check-data", metavar="D", help="Run these samples before and after every pass; hold it to what it keeps."
)
@sample_options(4)
@click.option("--allow-findings", is_flag=True, help="Save although the model has errors that it came with.")
@click.option("--annotations", is_flag=True, help="Save the annotations of passes in metadata (to look at in Netron).")
@click.option(
    "--reproducer", metavar="DIR", help="Where a failing pass leaves its input; OUTPUT.reproducer by default."
)
def opt(
    out: Out,
    model: str,
    output: str,
    overwrite: bool,
    no_provenance: bool,
    text: str,
    ranges: str | None,
    encodings: str | None,
    statistics: str | None,
    target: str | None,
    verify_each: bool,
    print_each: str | None,
    time_passes: bool,
    stop_after: int | None,
    check_data: str | None,
    samples: int,
    seed: int,
    allow_findings: bool,
    annotations: bool,
    reproducer: str | None,
    **images: Any,
) -> None:
    """Run a pipeline of passes on MODEL."""
    from qdq_passes.pipeline.hooks import StopAfter
    from qdq_passes.pipeline.pipeline import Pipeline

    from qdqtool.cli.named import named_inputs
    from qdqtool.cli.saving import refuse_output, run_and_save, script_of, show_report
    from qdqtool.io.files.artifacts import sha256_of_file
    from qdqtool.io.models.hooks import DumpEach
    from qdqtool.targets.loading import load_target

    refuse_output(output, overwrite, model, ranges, encodings, statistics, check_data, text.removeprefix("@"))
    script = script_of(text)
    pipeline = Pipeline(script.passes)
    needed = pipeline.needs()
    files = {"ranges": ranges, "encodings": encodings, "statistics": statistics}
    inputs = named_inputs(out, model, script, files, needed)
    if target and "target" not in needed:
        out.warn("no pass of the pipeline reads @target: --target is not used")
    if script.source_sha256 and script.source_sha256 != sha256_of_file(model):
        out.warn(f"{text[1:]} was recorded on another model")
    image = image_settings(images)
    check = _numeric_check(model, check_data, samples, seed=seed, image=image) if check_data else None
    hooks: list[Any] = [DumpEach(print_each)] if print_each else []
    hooks += [StopAfter(stop_after)] if stop_after is not None else []
    hooks += [check] if check is not None else []
    saved = run_and_save(
        out, model, output, pipeline, overwrite=overwrite, no_provenance=no_provenance, inputs=inputs, hooks=hooks,
        allow_findings=allow_findings, annotations=annotations or None, verify_each=verify_each, reproducer=reproducer,
        target=load_target(target) if target else None,
    )  # fmt: skip
    for passed, why in check.unchecked if check is not None else ():
        out.warn(f"{passed} is not checked on the data: {why}")
    show_report(out, saved, times=time_passes)


def _numeric_check(model: str, data: str, samples: int, **options: Any) -> NumericCheck:
    from qdqtool.io.feeds.feeds import open_feeds
    from qdqtool.io.feeds.spec import input_specs
    from qdqtool.io.models.load import load
    from qdqtool.runtime.hooks import NumericCheck

    feeds = open_feeds(data, input_specs(load(model)), samples=samples, **options)
    return NumericCheck(feeds, samples=samples)


command = opt
