"""Say how long a model takes on a chip, with an 80 % interval, without a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out, plural, say, table
from qdqtool.verbs.estimate import Estimate

#: Nodes shown without -v.
SHOWN = 10


@command_of(Estimate)
def estimate(out: Out, asked: Estimate) -> int | None:
    found = replace(asked, warn=out.warn).run()
    if "predictions" in found:
        out.result(found, lambda: say(_rows_line(found)))
        return 0
    out.result(found, lambda: _render(found, out))
    return None


def _rows_line(found: dict[str, Any]) -> str:
    failed = f", {len(found['failed'])} without an answer" if found["failed"] else ""
    where = f", in {found['output']}" if found["output"] else ""
    return f"{plural(len(found['predictions']), 'row')} predicted{failed}{where}"


def _render(found: dict[str, Any], out: Out) -> None:
    estimates = found["estimates"]
    first = estimates[0]
    profile = first["profile"]
    told = (
        f"{plural(profile['rows'], 'row')}, {profile['date']}"
        if profile["rows"]
        else f"carried over from {profile['carried']}"
    )
    say(f"{first['chip']}, {first['stack']}, {first['precision']} (profile: {told}); 80 % intervals")
    say()
    decode = any("token at" in one["what"] for one in estimates)
    head = ("", "ms", "from", "to", *(("tokens/s",) if decode else ()), "spent on")
    table(head, [_row(one, decode=decode) for one in estimates])
    for text in dict.fromkeys(text for one in estimates for text in (*one["widens"], *one["notes"])):
        say(f"- {text}")
    if first["nearest"] is not None:
        say(f"nearest measured: {_nearest(first['nearest'])}")
    nodes = first["nodes"]
    if nodes:
        say()
        shown = nodes if out.verbose else nodes[:SHOWN]
        table(("node", "operator", "ms", "bound by"), [(n["name"], n["op"], n["ms"], n["resource"]) for n in shown])
        if len(shown) < len(nodes):
            say(f"… and {len(nodes) - len(shown)} more; -v shows all")


def _row(one: dict[str, Any], *, decode: bool) -> tuple[Any, ...]:
    speed = (f"{1000 / one['ms']:.1f}" if "token at" in one["what"] else "",) if decode else ()
    total = sum(one["resources"].values()) or 1.0
    parts = sorted(one["resources"].items(), key=lambda item: -item[1])
    spent = ", ".join(f"{name} {100 * ms / total:.0f} %" for name, ms in parts if ms >= total / 100)
    return (one["what"], one["ms"], one["low"], one["high"], *speed, spent)


def _nearest(row: dict[str, Any]) -> str:
    told = [str(row[key]) for key in ("precision", "phase") if key in row]
    told += [f"{row[key]} {key}" for key in ("tokens", "context") if key in row and row[key] > 1]
    return f"{row['model']}, {', '.join([*told, row['place']])}: {row['ms']:.4g} ms"


command = estimate
