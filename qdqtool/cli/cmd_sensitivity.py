"""Measure which nodes of the float MODEL hurt: the figure when only one is quantized, and when only it is left out."""

from __future__ import annotations

from typing import Any

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import EXACT, Out, plural, say, table
from qdqtool.verbs.sensitivity import Sensitivity

#: Rows of the table without -v.
SHOWN = 15


@command_of(Sensitivity)
def sensitivity(out: Out, asked: Sensitivity) -> None:
    found = ran(out, asked, "measuring")
    payload = {**found.to_json(), "output": asked.output}
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


command = sensitivity
