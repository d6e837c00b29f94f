"""Measure which nodes of the float MODEL hurt: the figure when only one is quantized, and when only it is left out."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command, image_settings, model_argument, select_option, worker_options
from qdqtool.cli.render import EXACT, Out, plural, say, table
from qdqtool.cli.searching import judging_options, with_plan_options

#: Rows of the table without -v.
SHOWN = 15


@command()
@model_argument
@click.option("-o", "--output", metavar="FILE", help="Where to write the figures (JSON).")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--metric",
    default="sqnr",
    show_default=True,
    metavar="NAME|M:F",
    help="sqnr, cosine, accuracy, or function F of module M (or file.py): f(outputs, feeds) -> number, higher is better.",
)
@click.option(
    "--by",
    type=click.Choice(["node", "layer", "scope", "type"]),
    default="node",
    show_default=True,
    help="What is measured together.",
)
@click.option(
    "--mode",
    type=click.Choice(["only", "without", "both"]),
    default="both",
    show_default=True,
    help="Only it quantized, all without it, or both.",
)
@select_option
@click.option("--plot", metavar="FILE", help="Also draw the figures as bars (SVG).")
@judging_options
@worker_options
def sensitivity(out: Out, model: str, output: str | None, **options: Any) -> None:
    """Measure which nodes of the float MODEL hurt: the figure when only one is quantized, and when only it is left out.

    Worst first. Two runs over the samples a node; with -o or --resume an interrupted run can be gone on with.
    """
    from qdqtool import api
    from qdqtool.cli.saving import refuse_output
    from qdqtool.foreign.options import read_extra_options

    options["image"] = image_settings(options)
    options["extra_options"] = read_extra_options(options["extra_options"])
    options["preset"] = options["preset"] or api.DEFAULT_PRESET
    for file in filter(None, (output, options["plot"])):
        refuse_output(file, options["overwrite"], model, options["data"], options["eval_data"], options["ranges"])
    with out.progress("measuring") as tick:
        found = api.sensitivity(model, options.pop("data"), output, progress=tick, warn=out.warn, **options)
    payload = {**found.to_json(), "output": output}
    out.result(payload, lambda: _render(payload, found.metric.unit, out.verbose))


def _render(payload: dict[str, Any], unit: str, everything: bool) -> None:
    rows = payload["nodes"] if everything else payload["nodes"][:SHOWN]
    keys = [key for key in ("only", "without") if payload["mode"] in (key, "both")]
    titles = {"only": f"only it {unit}".strip(), "without": f"without it {unit}".strip()}
    table(
        (payload["by"], "operator", *(titles[key] for key in keys), "MACs"),
        [(row["name"], row["op"] or "-", *(_figure(row, key) for key in keys), str(row["macs"])) for row in rows],
    )
    if len(payload["nodes"]) > len(rows):
        say(f"{len(payload['nodes']) - len(rows)} more with -v")
    say()
    figure = EXACT if payload["quantized"] is None else f"{payload['quantized']:.4g} {unit}".strip()
    say(
        f"all quantized: {figure}; {payload['metric']} on {plural(payload['samples'], 'sample')}, preset {payload['preset']}"
    )
    for row in payload["nodes"]:
        if "reason" in row:
            say(f"not measured: {row['name']}: {row['reason']}")
    if payload["output"]:
        say(f"wrote {payload['output']}")


def _figure(row: dict[str, Any], key: str) -> object:
    if key not in row:
        return "-"
    return EXACT if row[key] is None else round(row[key], 4)


command = with_plan_options(sensitivity)
