"""Quantize the float MODEL: clean, fuse, calibrate on --data, insert QDQ pairs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command, data_options, exclude_options, image_settings, model_argument
from qdqtool.cli.render import Out, megabytes, say, table

if TYPE_CHECKING:
    from qdqtool.api import Quantized


@command()
@model_argument
@click.option("-o", "--output", metavar="FILE", help="Where to write the quantized model; parent folders are made.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--no-provenance", is_flag=True, help="Leave out the metadata entry that says what was done.")
@click.option(
    "--preset", default="xint8", show_default=True, metavar="NAME|FILE", help="What to quantize to (`list presets`)."
)
@click.option("--target", metavar="NAME|FILE", help="Quantize the operators that this target takes (`list targets`).")
@click.option("--method", metavar="NAME", help="Calibration method instead of the preset's (`list methods`).")
@click.option("--ranges", metavar="FILE", help="Ranges from `calibrate` instead of calibrating now.")
@click.option("--save-ranges", metavar="FILE", help="Also write the ranges that were used.")
@click.option("--weights", type=click.Choice(["qdq", "dq"]), help="Pair on the float weight, or stored integers.")
@click.option(
    "--fuse-layers/--no-fuse-layers", default=True, help="Fold BatchNormalization, keep fused groups free of pairs."
)
@click.option(
    "--keep-functions", is_flag=True, help="Do not inline local functions; such a node counts as one operator."
)
@click.option(
    "--print-pipeline", is_flag=True, help="Print the pipeline that does the job; without --output stop there."
)
@exclude_options
@data_options
def quantize(
    out: Out,
    model: str,
    output: str | None,
    overwrite: bool,
    print_pipeline: bool,
    save_ranges: str | None,
    **options: Any,
) -> None:
    """Quantize the float MODEL: clean, fuse, calibrate on --data, insert QDQ pairs."""
    from qdq_passes.errors import UsageError

    from qdqtool import api
    from qdqtool.cli.saving import refuse_output

    options["image"] = image_settings(options)
    if print_pipeline and output is None:
        say(_pipeline(model, options))
        return
    if output is None:
        raise UsageError("no output", hint="give -o FILE, or --print-pipeline to see what would be done")
    refuse_output(model, output, overwrite)
    if save_ranges and os.path.exists(save_ranges) and not overwrite:
        raise UsageError("exists", where=save_ranges, hint="pass --overwrite to replace it")
    with out.progress("quantizing") as tick:
        done = api.quantize(
            model,
            output,
            overwrite=overwrite,
            warn=out.warn,
            progress=lambda stage, at, total: tick(at, total),
            **options,
        )
    if save_ranges:
        done.quantization.ranges.write(save_ranges, overwrite=overwrite)
    if print_pipeline and not out.as_json:
        say(str(done.quantization.plan.pipeline))
        return
    for change in done.quantization.changes:
        out.detail(str(change))
    payload = {**done.to_json(), "output": output}
    out.result(payload, lambda: _render(payload, done, model, output))


def _pipeline(model: str, options: dict[str, Any]) -> str:
    """The text of the job, without running it."""
    from qdqtool.presets.loading import load_preset
    from qdqtool.quantization.plan import plan
    from qdqtool.targets.loading import load_target

    target = options["target"]
    job = plan(
        load_preset(options["preset"]),
        method=options["method"],
        exclude=tuple(options["exclude"]),
        only=tuple(options["only"]),
        isolate=options["isolate"],
        weights=options["weights"],
        ops=load_target(target).quantized_ops() if target else (),
        fuse_layers=options["fuse_layers"],
        keep_functions=options["keep_functions"],
    )
    return str(job.pipeline)


def _render(payload: dict[str, Any], done: Quantized, source: str, output: str) -> None:
    rows: list[tuple[str, object]] = [
        ("preset", payload["preset"]),
        ("method", f"{payload['method']} over {payload['samples']} samples"),
        ("quantized nodes", payload["quantized_nodes"]),
        ("excluded nodes", len(payload["excluded_nodes"])),
        ("QDQ pairs", payload["pairs"]),
    ]
    if done.comparison is not None:
        sqnr = payload["sqnr_db"]
        shown = "exact" if sqnr is None else f"{sqnr:.1f} dB"
        rows.append(("SQNR of the worst output", f"{shown} on {payload['sqnr_samples']} samples"))
    rows.append(("file", f"{megabytes(os.path.getsize(source))} → {megabytes(os.path.getsize(output))}"))
    rows.append(("seconds", payload["seconds"]))
    table(("", ""), rows)
    if payload["excluded"]:
        say()
        table(("excluded node", "reason"), [(e["node"], e["reason"]) for e in payload["excluded"]])
    if payload["kept"]:
        say()
        table(("pair at an excluded node", "reason"), [(k["tensor"], k["reason"]) for k in payload["kept"]])
    say(f"wrote {output}")


command = quantize
