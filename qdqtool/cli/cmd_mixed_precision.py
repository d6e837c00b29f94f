"""Raise nodes of the float MODEL out of 8 bit until a bound holds, at the least cost; quantize like that. Exit 1 if none does."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command, image_settings, model_argument, worker_options
from qdqtool.cli.render import EXACT, Out, plural, say, table
from qdqtool.cli.searching import judging_options, with_plan_options

#: Names of nodes in one cell of the table.
NAMES = 3


@command()
@model_argument
@click.option("-o", "--output", metavar="FILE", help="Where to write the quantized model; parent folders are made.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--no-provenance", is_flag=True, help="Leave out the metadata entry that says what was done.")
@click.option("--allow-findings", is_flag=True, help="Save although the model has errors that it came with.")
@click.option("--min-sqnr", type=float, metavar="DB", help="Bound: SQNR of the worst output, in dB.")
@click.option(
    "--metric",
    default="sqnr",
    metavar="NAME|M:F",
    help="cosine, accuracy, or function F of module M (or file.py): f(outputs, feeds) -> number, higher is better.",
)
@click.option("--min-metric", type=float, metavar="X", help="Bound: figure of --metric.")
@click.option(
    "--types",
    default="int16,fp16,float",
    show_default=True,
    metavar="T,T",
    help="What nodes may be raised to: int16, fp16, bf16, float; of these what --target takes of a node.",
)
@click.option("--recipe", metavar="FILE", help="Write what `quantize --recipe` replays to the same bytes.")
@click.option("--save-ranges", metavar="FILE", help="Also write the ranges of the result.")
@judging_options
@worker_options
def mixed_precision(out: Out, model: str, output: str | None, save_ranges: str | None, **options: Any) -> int:
    """Raise nodes of the float MODEL out of 8 bit until a bound holds, at the least cost; quantize like that.

    The cost counts multiply-accumulates out of 8 bit and tensors that change their width, not nodes. Exit 1 with the best there
    is when the bound cannot be met.
    """
    from qdqtool import api
    from qdqtool.cli.saving import refuse_output
    from qdqtool.foreign.options import read_extra_options

    options["image"] = image_settings(options)
    options["extra_options"] = read_extra_options(options["extra_options"])
    options["preset"] = options["preset"] or api.DEFAULT_PRESET
    options["types"] = [name.strip() for name in options["types"].split(",") if name.strip()]
    for file in filter(None, (output, options["recipe"], save_ranges)):
        refuse_output(file, options["overwrite"], model, options["data"], options["eval_data"], options["ranges"])
    with out.progress("measuring") as tick:
        found = api.mixed_precision(model, options.pop("data"), output, progress=tick, warn=out.warn, **options)
    if save_ranges and found.quantized is not None:
        found.quantized.quantization.ranges.write(save_ranges, overwrite=options["overwrite"])
    met = found.mixed.met
    written = {"output": output if met else None, "recipe": options["recipe"] if met else None}
    payload = {**found.to_json(), **written}
    out.result(payload, lambda: _render(payload, found.mixed.metric.unit))
    return 0 if met else 1


def _render(payload: dict[str, Any], unit: str) -> None:
    rows = [(_mark(point, payload), *_row(point)) for point in payload["pareto"]]
    table(("", f"{payload['metric']} {unit}".strip(), "cost", "MACs in 8 bit", "crossings", "raised"), rows)
    say("cost: multiply-accumulates in 8 bit that take as long as what is not in 8 bit takes longer; * is chosen")
    say()
    say(f"{plural(payload['measured'], 'variant')} measured; bound {payload['bound']:g} {unit}".rstrip())
    if not payload["met"]:
        say(f"failed: the bound cannot be met: {payload['limit']}")
        return
    for precision, names in payload["chosen"]["raised"].items():
        say(f"{precision}: {', '.join(names)}")
    if not payload["chosen"]["raised"]:
        say("the plain quantization holds it: nothing is raised")
    for file in filter(None, (payload["output"], payload["recipe"])):
        say(f"wrote {file}")


def _mark(point: dict[str, Any], payload: dict[str, Any]) -> str:
    return "*" if payload["met"] and point["raised"] == payload["chosen"]["raised"] else ""


def _row(point: dict[str, Any]) -> tuple[object, ...]:
    names = [name for each in point["raised"].values() for name in each]
    shown = ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES} more" if len(names) > NAMES else "")
    figure = EXACT if point["figure"] is None else round(point["figure"], 4)
    share = f"{point['share_8_bit']:.1%}"
    return figure, f"{point['cost']:.4g}", share, str(point["boundary_crossings"]), shown or "nothing"


command = with_plan_options(mixed_precision)
