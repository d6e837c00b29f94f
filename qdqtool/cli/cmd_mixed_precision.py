"""Raise nodes of the float MODEL out of 8 bit until a bound holds, at the least cost; quantize like that. Exit 1 if none does."""

from __future__ import annotations

from typing import Any

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.options import text
from qdqtool.cli.render import EXACT, Out, plural, say, table
from qdqtool.options import option
from qdqtool.verbs.mixed_precision import MixedPrecision

#: Names of nodes in one cell of the table.
NAMES = 3


@dataclass(frozen=True, kw_only=True)
class MixedPrecisionCommand(MixedPrecision):
    """`MixedPrecision` as a command."""

    save_ranges: str | None = option(
        None, "Also write the ranges of the result.", value="FILE", use="file", before="eval_data"
    )


@command_of(MixedPrecisionCommand)
def mixed_precision(out: Out, asked: MixedPrecisionCommand) -> int:
    found = ran(out, asked, "measuring")
    if asked.save_ranges and found.quantized is not None:
        found.quantized.quantization.ranges.write(asked.save_ranges, overwrite=asked.overwrite)
    met = found.mixed.met
    written = {"output": asked.output if met else None, "recipe": asked.recipe if met else None}
    payload = {**found.to_json(), **written}
    out.result(payload, lambda: _render(payload, found.mixed.metric.unit, text(asked.model)))
    return 0 if met else 1


def _render(payload: dict[str, Any], unit: str, model: str) -> None:
    from qdqtool.cli.tables.saving import files_of

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
    if payload["output"]:
        say(f"wrote {files_of(text(payload['output']), model)}")
    if payload["recipe"]:
        say(f"wrote {payload['recipe']}")


def _mark(point: dict[str, Any], payload: dict[str, Any]) -> str:
    return "*" if payload["met"] and point["raised"] == payload["chosen"]["raised"] else ""


def _row(point: dict[str, Any]) -> tuple[object, ...]:
    names = [name for each in point["raised"].values() for name in each]
    shown = ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES} more" if len(names) > NAMES else "")
    figure = EXACT if point["figure"] is None else round(point["figure"], 4)
    share = f"{point['share_8_bit']:.1%}"
    return figure, f"{point['cost']:.4g}", share, str(point["boundary_crossings"]), shown or "nothing"


command = mixed_precision
