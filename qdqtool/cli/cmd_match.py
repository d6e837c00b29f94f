"""Show the nodes and tensors of MODEL that selectors hit, before they are used anywhere."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import allow_empty_option, command, load_model, model_argument
from qdqtool.cli.render import Out, say, table


@command()
@model_argument
@click.argument("selectors", nargs=-1, required=True, metavar="SEL...")
@allow_empty_option
def match(out: Out, model: str, selectors: tuple[str, ...], allow_empty: bool) -> None:
    """Show the nodes and tensors of MODEL that selectors hit, before they are used anywhere."""
    from qdq_passes.analysis.scopes import scope_of
    from qdq_passes.core.select import Selector, select

    graph = load_model(out, model)
    hit = select(graph, Selector.of(*selectors), allow_empty=allow_empty)
    payload: dict[str, Any] = {
        "nodes": [n.name or n.op_type for n in hit.nodes],
        "tensors": [v.name for v in hit.values],
    }

    def render() -> None:
        say(f"{len(hit.nodes)} nodes, {len(hit.values)} tensors")
        if hit.nodes:
            table(("node", "operator", "scope"), [(n.name, n.op_type, scope_of(n)) for n in hit.nodes])
        if hit.values:
            say()
            table(("tensor", "type"), [(v.name, f"{v.type} {v.shape}") for v in hit.values])

    if not hit.nodes and not hit.values:
        out.warn("the selectors match nothing")
    out.result(payload, render)


command = match
