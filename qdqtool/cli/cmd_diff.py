"""Compare two models by name: nodes, attributes, weights, inputs, outputs, encodings; exit 1 when they differ."""

from __future__ import annotations

from typing import Any

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out, plural, say, table
from qdqtool.verbs.diff import Diff


@command_of(Diff)
def diff(out: Out, asked: Diff) -> int:
    from qdqtool.comparison.difference import described_difference

    found = [d.to_json() for d in asked.run()]
    payload: dict[str, Any] = {"a": asked.a, "b": asked.b, "differences": found}

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
