"""List and edit QuantizeLinear/DequantizeLinear pairs: insert, remove, move, set, share, dedicate, fold, convert."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.commands import command_of
from qdqtool.cli.main import SubCommands
from qdqtool.cli.render import Out, Precise, plural, say, table
from qdqtool.verbs.qdq.list import List


@click.group(name="qdq", cls=SubCommands, verbs="qdqtool.verbs.qdq")
def qdq() -> None:
    """List and edit QuantizeLinear/DequantizeLinear pairs, of whatever tool they are."""


@command_of(List, group=qdq, name="list")
def list_pairs(out: Out, asked: List) -> None:
    """List everything quantized: pairs, stored integers, integer operators; with encoding, position and nodes."""
    rows = asked.run()
    data = [row.to_json() for row in rows]
    columns = ["tensor", "kind", "dtype", "scale", "zero_point", "position", "axis", "block_size", "form"]
    columns += [name for name in ("domain", "graph") if any(row[name] for row in data)]
    columns = [c for c in columns if c not in ("axis", "block_size") or any(row[c] is not None for row in data)]

    def render() -> None:
        if data:
            table(tuple(columns), [[_short(row[c]) for c in columns] for row in data])
            say(plural(len(data), "row"))
        else:
            say("nothing quantized" + (" there" if asked.select else ""))

    out.result({"pairs": data}, render)


def _short(value: object) -> object:
    """A cell; a list of three and more as its length and its extremes."""
    if isinstance(value, float):
        return Precise(value)
    if not isinstance(value, list) or len(value) < 3:
        return value
    numbers = sorted(_flat(value))
    low, high = f"{numbers[0]:.6g}", f"{numbers[-1]:.6g}"
    return f"{len(numbers)}: {low}" if low == high else f"{len(numbers)}: {low}..{high}"


def _flat(value: Any) -> list[Any]:
    return [x for item in value for x in _flat(item)] if isinstance(value, list) else [value]


command = qdq
