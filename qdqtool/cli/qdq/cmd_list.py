"""List everything quantized: pairs, stored integers, integer operators; with encoding, position and nodes."""

from __future__ import annotations

from typing import Any

from qdqtool.cli.options import allow_empty_option, command, load_model, model_argument, select_option
from qdqtool.cli.render import Out, Precise, plural, say, table


@command(name="list")
@model_argument
@select_option
@allow_empty_option
def list_pairs(out: Out, model: str, select: tuple[str, ...], allow_empty: bool) -> None:
    """List everything quantized in MODEL: pairs, stored integers, integer operators; encoding, position, nodes."""
    from qdq_passes.integers.look.quantized_table import qdq_rows
    from qdq_passes.select.selectors import Selector
    from qdq_passes.select.selectors import select as evaluate

    graph = load_model(model)
    rows = qdq_rows(graph)
    if select:
        hit = evaluate(graph, Selector.of(*select), allow_empty=allow_empty)
        nodes, values = set(hit.nodes), set(hit.values)
        rows = [row for row in rows if row.is_hit(nodes, values, hit.named)]
    data = [row.to_json() for row in rows]
    columns = ["tensor", "kind", "dtype", "scale", "zero_point", "position", "axis", "block_size", "form"]
    columns += [name for name in ("domain", "graph") if any(row[name] for row in data)]
    columns = [c for c in columns if c not in ("axis", "block_size") or any(row[c] is not None for row in data)]

    def render() -> None:
        if data:
            table(tuple(columns), [[_short(row[c]) for c in columns] for row in data])
            say(plural(len(data), "row"))
        else:
            say("nothing quantized" + (" there" if select else ""))

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


command = list_pairs
