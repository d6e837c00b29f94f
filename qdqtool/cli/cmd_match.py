"""Show the nodes and tensors of MODEL that selectors hit, before they are used anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from qdq_passes.graph.uses import label

from qdqtool.cli.options import allow_empty_option, command, load_model, model_argument
from qdqtool.cli.render import Out, plural, say, table

if TYPE_CHECKING:
    import onnx_ir as ir


@command()
@model_argument
@click.argument("selectors", nargs=-1, required=True, metavar="SEL...")
@allow_empty_option
def match(out: Out, model: str, selectors: tuple[str, ...], allow_empty: bool) -> None:
    """Show the nodes and tensors of MODEL that selectors hit, before they are used anywhere."""
    from qdq_passes.graph.nesting import scope_of
    from qdq_passes.select.selectors import Selector, select

    graph = load_model(model)
    hit = select(graph, Selector.of(*selectors), allow_empty=allow_empty)
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
