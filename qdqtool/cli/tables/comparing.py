"""Tables of `compare` for node-by-node comparisons and for what a board dumped."""

from __future__ import annotations

from typing import Any

from qdqtool.cli.render import EXACT, plural, say, table

#: Rows of a table without -v.
SHOWN = 12
#: Causes in the order of the table.
CAUSES = ("weight", "activation", "output", "bias", "refinement", "operator", "rest")


def render_local(payload: dict[str, Any], everything: bool) -> None:
    """Nodes, worst first, with the share of each cause in their noise."""
    nodes = payload["nodes"]
    noisy = [n for n in nodes if n["sqnr_db"] is not None]
    shown = nodes if everything else noisy[:SHOWN]
    if shown:
        rows = [(n["name"], n["op"], sqnr(n), *(share(n["causes"], cause) for cause in CAUSES)) for n in shown]
        table(
            ("node, worst first", "operator", "SQNR dB", *(f"{'moved' if c == 'refinement' else c} %" for c in CAUSES)),
            rows,
        )
    exact = len(nodes) - len(noisy)
    if exact and not everything:
        say(f"{plural(exact, 'node')} exact")
    if len(noisy) > len(shown):
        say(f"{len(noisy) - len(shown)} more with -v")
    if payload["unmatched"]:
        say(
            f"{plural(len(payload['unmatched']), 'node')} without figures of their own"
            + ("" if everything else " (-v)")
        )
        for row in payload["unmatched"] if everything else ():
            say(f"  {row['name']}: {row['reason']}")
    say(f"{plural(payload['samples'], 'sample')}, local: every node on the float model's inputs")


def share(causes: dict[str, float | None] | None, cause: str) -> str:
    """The part of a node's noise that is of ``cause``, in percent; ``?`` where that is not known."""
    if causes is None:
        return "-"
    total = sum(value for value in causes.values() if value is not None)
    value = causes[cause]
    if value is None:
        return "?"
    return "-" if not total or not value else f"{100 * value / total:.0f}"


def render_dumps(payload: dict[str, Any], everything: bool) -> None:
    """Dumped tensors in the order of the graph, and where the error starts."""
    tensors = payload["tensors"]
    has_b = any("with_b" in t for t in tensors)
    below = [t for t in tensors if db(t, has_b) < payload["diverges_below"]]
    shown = tensors if everything or len(tensors) <= SHOWN else (below or tensors)[:SHOWN]
    columns = ("tensor", "dump", "SQNR dB", *(("to B dB", "B's own dB") if has_b else ()), "max LSB", "exact")
    rows = []
    for t in shown:
        other = (sqnr(t["with_b"]), sqnr(t["of_b"])) if "with_b" in t else ("", "")
        expected = t.get("with_b", t)
        rows.append((t["name"], t["dump"], sqnr(t), *(other if has_b else ()), expected.get("lsb"), expected["exact"]))
    table(columns, rows)
    if len(tensors) > len(shown):
        say(f"{len(tensors) - len(shown)} more with -v")
    for row in payload["unmatched"]:
        say(f"not compared: {row['dump']}: {row['reason']}")
    first, bound = payload["first_diverging"], payload["diverges_below"]
    say(f"first below {bound:g} dB: {first}" if first is not None else f"no tensor is below {bound:g} dB")
    say(plural(payload["samples"], "sample"))


def db(tensor: dict[str, Any], has_b: bool) -> float:
    """SQNR against what is expected, +inf when exact."""
    figure = tensor.get("with_b", tensor)["sqnr_db"] if has_b else tensor["sqnr_db"]
    return float("inf") if figure is None else float(figure)


def sqnr(figures: dict[str, Any]) -> object:
    """Two digits, or the word for no error at all."""
    return EXACT if figures["sqnr_db"] is None else round(figures["sqnr_db"], 2)
