"""Show the nodes and tensors of MODEL that selectors hit, before they are used anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdq_passes.graph.uses import label

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out, plural, say, table
from qdqtool.verbs.match import Match

if TYPE_CHECKING:
    import onnx_ir as ir


@command_of(Match)
def match(out: Out, asked: Match) -> None:
    from qdq_passes.graph.nesting import scope_of

    hit = asked.run()
    payload: dict[str, Any] = {
        "nodes": [label(n) for n in hit.nodes],
        "tensors": [v.name for v in hit.values],
    }

    def render() -> None:
        say(f"{plural(len(hit.nodes), 'node')}, {plural(len(hit.values), 'tensor')}")
        if hit.nodes:
            table(("node", "operator", "scope"), [(n.name, n.op_type, scope_of(n)) for n in hit.nodes])
        if hit.values:
            say()
            table(("tensor", "type", "shape"), [(v.name, *_type(v)) for v in hit.values])

    if not hit.nodes and not hit.values:
        out.warn("the selectors match nothing")
    out.result(payload, render)


def _type(value: ir.Value) -> tuple[str, object]:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    return dtype, "?" if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]


command = match
