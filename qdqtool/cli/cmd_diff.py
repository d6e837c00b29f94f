"""Compare two models by name: nodes, attributes, weights, inputs, outputs, encodings; exit 1 when they differ."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command, load_model
from qdqtool.cli.render import Out, say, table


@command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
def diff(out: Out, a: str, b: str) -> int:
    """Compare two models by name: nodes, attributes, weights, inputs, outputs, encodings; exit 1 when they differ."""
    from qdqtool.comparison.difference import differences

    found = [d.to_json() for d in differences(load_model(out, a), load_model(out, b))]
    payload: dict[str, Any] = {"a": a, "b": b, "differences": found}

    def render() -> None:
        if not found:
            say("no differences")
            return
        table(("kind", "where", "a", "b"), [(d["kind"], d["where"], d["a"], d["b"]) for d in found])
        say(f"{len(found)} differences")

    out.result(payload, render)
    return 1 if found else 0


command = diff
