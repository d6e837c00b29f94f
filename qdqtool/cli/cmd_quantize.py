"""Quantize the float MODEL: clean, fuse, calibrate on --data, insert QDQ pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command, data_options, exclude_options, image_settings, jobs_option, model_argument
from qdqtool.cli.render import Out, megabytes, plural, say, table

if TYPE_CHECKING:
    from qdqtool.api import Quantized
    from qdqtool.quantization.plan import Plan


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
@click.option("--allow-findings", is_flag=True, help="Save although the model has errors that it came with.")
@exclude_options
@data_options
@jobs_option
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
    from qdqtool.io.hooks import Reproducer

    options["image"] = image_settings(options)
    if print_pipeline and output is None:
        job = _planned(out, model, options)
        out.result({"pipeline": str(job.pipeline), "method": job.method}, lambda: say(str(job.pipeline)))
        return
    if output is None:
        raise UsageError("no output", hint="give -o FILE, or --print-pipeline to see what would be done")
    inputs = (model, options["data"], options["ranges"])
    refuse_output(output, overwrite, *inputs)
    if save_ranges:
        refuse_output(save_ranges, overwrite, *inputs)
    with out.progress("quantizing") as tick:
        done = api.quantize(
            model,
            output,
            overwrite=overwrite,
            warn=out.warn,
            hooks=[Reproducer(f"{output}.reproducer")],
            progress=tick,
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


def _planned(out: Out, model: str, options: dict[str, Any]) -> Plan:
    """What would run, its selectors tried on the model, and nothing calibrated."""
    from qdqtool import api

    names = ("method", "target", "exclude", "only", "isolate", "weights", "fuse_layers", "keep_functions")
    job = api.planned(options["preset"], **{name: options[name] for name in names})
    return api.planned_for(model, job, allow_empty=options["allow_empty"], warn=out.warn)


def _render(payload: dict[str, Any], done: Quantized, source: str, output: str) -> None:
    from qdqtool.cli.saving import stored_bytes

    rows: list[tuple[str, object]] = [
        ("preset", payload["preset"]),
        ("method", f"{payload['method']} over {plural(payload['samples'], 'sample')}"),
        ("quantized nodes", str(payload["quantized_nodes"])),
        ("excluded nodes", str(len(payload["excluded_nodes"]))),
        ("QDQ pairs", str(payload["pairs"])),
    ]
    if done.comparison is not None:
        sqnr = payload["sqnr_db"]
        shown = "exact" if sqnr is None else f"{sqnr:.1f} dB"
        rows.append(("SQNR of the worst output", f"{shown} on {plural(payload['sqnr_samples'], 'sample')}"))
    rows.append(("size", f"{megabytes(stored_bytes(source))} → {megabytes(stored_bytes(output))}"))
    rows.append(("seconds", f"{payload['seconds']:.1f}"))
    table(("", ""), rows)
    if payload["excluded"]:
        say()
        table(("excluded node", "reason"), [(e["node"], e["reason"]) for e in payload["excluded"]])
    if payload["refused"]:
        say()
        table(("value that stays float", "reason"), [(r["tensor"], r["reason"]) for r in payload["refused"]])
    if payload["kept"]:
        say()
        table(("pair at an excluded node", "reason"), [(k["tensor"], k["reason"]) for k in payload["kept"]])
    say(f"wrote {output}")


command = quantize
