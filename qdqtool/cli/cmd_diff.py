"""Compare two models by name: nodes, attributes, weights, inputs, outputs, encodings; exit 1 when they differ."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command, load_model
from qdqtool.cli.render import Out, plural, say, table


@command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
def diff(out: Out, a: str, b: str) -> int:
    """Compare two models by name: nodes, attributes, weights, inputs, outputs, encodings; exit 1 when they differ."""
    from qdqtool.comparison.difference import described_difference, differences

    found = [d.to_json() for d in differences(load_model(a), load_model(b))]
    payload: dict[str, Any] = {"a": a, "b": b, "differences": found}

    def render() -> None:
        if not found:
            say("no differences")
            return
        rows = [(d["kind"], d["where"], *(described_difference(d["kind"], d[side]) for side in "ab")) for d in found]
        table(("kind", "where", "a", "b"), rows)
        say(plural(len(found), "difference"))

    out.result(payload, render)
    return 1 if found else 0


command = diff
