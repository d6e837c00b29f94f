"""Quantize the float MODEL: clean, fuse, calibrate on --data, insert QDQ pairs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import (
    annotation_options,
    command,
    data_options,
    decoder_options,
    exclude_options,
    image_settings,
    model_argument,
    precision_options,
    worker_options,
)
from qdqtool.cli.recovery_options import recovery_options
from qdqtool.cli.render import Out, megabytes, plural, say, table

#: Tensors shown in the summary.
NOISIEST = 5

if TYPE_CHECKING:
    from qdqtool.api import Quantized
    from qdqtool.quantization.plan import Plan


@command()
@model_argument
@click.option("-o", "--output", metavar="FILE", help="Where to write the quantized model; parent folders are made.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--no-provenance", is_flag=True, help="Leave out the metadata entry that says what was done.")
@click.option("--preset", show_default="xint8", metavar="NAME|FILE", help="What to quantize to (`list presets`).")
@click.option("--recipe", metavar="FILE", help="Replay what `mixed-precision` wrote; no option may contradict it.")
@click.option("--target", metavar="NAME|FILE", help="Quantize the operators that this target takes (`list targets`).")
@click.option("--method", metavar="NAME", help="Calibration method instead of the preset's (`list methods`).")
@click.option("--ranges", metavar="FILE", help="Ranges from `calibrate` instead of calibrating now.")
@click.option("--save-ranges", metavar="FILE", help="Also write the ranges that were used.")
@click.option(
    "--report", metavar="FILE", help="Also write what became of each tensor: range, position, clipping, SQNR (JSON)."
)
@click.option(
    "--cache", metavar="DIR", help="Keep ranges here: reused for the same data, and an interrupted run goes on."
)
@click.option("--weights", type=click.Choice(["qdq", "dq"]), help="Pair on the float weight, or stored integers.")
@click.option("--embeddings", is_flag=True, help="Quantize the tables that Gather looks rows up in too.")
@click.option(
    "--fuse-layers/--no-fuse-layers", default=True, help="Fold BatchNormalization, keep fused groups free of pairs."
)
@click.option("--keep-sigmoid", is_flag=True, help="Leave Sigmoid as it is, not the DPU's HardSigmoid.")
@click.option(
    "--keep-functions", is_flag=True, help="Do not inline local functions; such a node counts as one operator."
)
@click.option(
    "--extra-options",
    multiple=True,
    metavar="K=V",
    help="An option of onnxruntime's or of the Vitis AI quantizer by its name, as in per_channel=true; V may be @FILE (repeat).",
)
@click.option(
    "--print-pipeline", is_flag=True, help="Print the pipeline that does the job; without --output stop there."
)
@click.option("--allow-findings", is_flag=True, help="Save although the model has errors that it came with.")
@exclude_options
@annotation_options
@precision_options
@recovery_options
@data_options
@decoder_options
@worker_options
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
    from qdqtool.foreign.options import read_extra_options
    from qdqtool.io.models.hooks import Reproducer

    options["image"] = image_settings(options)
    options["extra_options"] = read_extra_options(options["extra_options"])
    if print_pipeline and output is None and os.path.isdir(model):
        from qdqtool.cli.quantized_folder import show_pipelines

        show_pipelines(out, model, _unready(options), allow_empty=options["allow_empty"])
        return
    if print_pipeline and output is None:
        job = _planned(out, model, options)
        out.result({"pipeline": str(job.pipeline), "method": job.method}, lambda: say(str(job.pipeline)))
        return
    if output is None:
        raise UsageError("no output", hint="give -o FILE, or --print-pipeline to see what would be done")
    inputs = (model, options["data"], options["ranges"], options["statistics"])
    if not os.path.isdir(model):
        refuse_output(output, overwrite, *inputs)
    for file in filter(None, (save_ranges, options["report"], options["save_statistics"])):
        refuse_output(file, overwrite, *inputs)
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
    if os.path.isdir(model):
        from qdqtool.cli.quantized_folder import render_folder

        out.result(payload, lambda: render_folder(payload, model, output))
        return
    out.result(payload, lambda: _render(payload, done, model, output))


def _planned(out: Out, model: str, options: dict[str, Any]) -> Plan:
    """What would run, its selectors tried on the model, and nothing calibrated."""
    from qdqtool import api

    if options["recipe"]:
        from qdqtool.api.replaying import laid_under
        from qdqtool.search.recipe import Recipe

        options = laid_under(api.quantize, Recipe.read(options["recipe"]), options)
    job = _unready(options)
    return api.planned_for(model, job, allow_empty=options["allow_empty"], warn=out.warn)


def _unready(options: dict[str, Any]) -> Plan:
    """The plan that the options amount to, whatever the model."""
    from qdqtool import api
    from qdqtool.quantization.options import NAMES

    if options["ranges"]:
        from qdqtool.calibrate.ranges import Ranges

        options["method"] = Ranges.read(options["ranges"]).method
    said = {name: value for name, value in options.items() if name in NAMES}
    if said["bound_masks"] is None:
        said["bound_masks"] = api.is_text(options["data"])
    return api.planned(options["preset"] or api.DEFAULT_PRESET, target=options["target"], **said)


def _render(payload: dict[str, Any], done: Quantized, source: str, output: str) -> None:
    from qdqtool.cli.saving import stored_bytes

    rows: list[tuple[str, object]] = [
        ("preset", payload["preset"]),
        ("method", _method(payload)),
        ("quantized nodes", str(payload["quantized_nodes"])),
        ("excluded nodes", str(len(payload["excluded_nodes"]))),
        ("QDQ pairs", str(payload["pairs"])),
        ("multiply-accumulates", _shares(payload["mac_shares"], payload["boundary_crossings"])),
    ]
    if done.comparison is not None:
        sqnr = payload["sqnr_db"]
        shown = "exact" if sqnr is None else f"{sqnr:.1f} dB"
        rows.append(("SQNR of the worst output", f"{shown} on {plural(payload['sqnr_samples'], 'sample')}"))
    if payload["moves"]:
        rows.append(("positions moved", f"{len(payload['moves'])}, so that the chip can shift between them (-v)"))
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
    if payload["conversions"]:
        say()
        table(("converted node", "how"), [(c["node"], c["reason"]) for c in payload["conversions"][:NOISIEST]])
        if len(payload["conversions"]) > NOISIEST:
            say(f"and {len(payload['conversions']) - NOISIEST} more (-v)")
    _render_tensors(payload["tensors"])
    say(f"wrote {output}")


def _shares(shares: dict[str, float], crossings: int) -> str:
    """``98.2 % in 8 bit, 1.8 % in float, 4 boundary crossings``."""
    shown = [f"{share:.1%} in {name}{'' if name == 'float' else ' bit'}" for name, share in shares.items() if share]
    return ", ".join([*(shown or ["none"]), *([plural(crossings, "boundary crossing")] if crossings else [])])


def _method(payload: dict[str, Any]) -> str:
    if payload["method"] is None:
        return "none, activations stay float"
    return f"{payload['method']} over {plural(payload['samples'], 'sample')}"


def _render_tensors(tensors: list[dict[str, Any]]) -> None:
    """The noisiest tensors; all are in --report."""
    noisy = [t for t in tensors if t["sqnr_db"] is not None][:NOISIEST]
    if noisy:
        say()
        table(("noisiest tensor", "kind", "range", "position", "clipped", "SQNR dB"), [_noise(t) for t in noisy])


def _noise(tensor: dict[str, Any]) -> tuple[str, ...]:
    low, high = tensor["range"]
    position = tensor["position"]
    return (
        tensor["tensor"],
        tensor["kind"],
        f"{low:.4g} to {high:.4g}",
        "-" if position is None else str(position) if isinstance(position, int) else "per-axis",
        f"{tensor['clipped']:.2%}",
        f"{tensor['sqnr_db']:.1f}",
    )


command = quantize
