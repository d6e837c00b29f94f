"""Attentions of one model, each replaced by its pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from qdq_passes.attention.edit.dot_product import Parts
from qdq_passes.core.base import Change, skip
from qdq_passes.graph.build import Builder, Once, take_place
from qdq_passes.graph.edit import drop_unread
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import all_nodes
from qdq_passes.select.selectors import Selector, select_operators


def decompose_attentions(
    model: ir.Model,
    select: Selector,
    is_attention: Callable[[ir.Node], bool],
    parts_of: Callable[[Builder, ir.Node, Inferred, Once], Parts | str],
) -> Iterator[Change]:
    """Replace node by node; masks are made once for all that have the same lengths.

    Args:
        model: edited in place.
        select: the operators.
        is_attention: whether a node is of the kind to replace.
        parts_of: its parts, or the reason why it stays.
    """
    wanted, builder, inferred, once = select_operators(model, select), Builder(model), Inferred(model), Once()
    for node in all_nodes(model):
        if not is_attention(node) or node not in wanted:
            continue
        parts = parts_of(builder, node, inferred, once)
        if isinstance(parts, str):
            yield skip(node, parts)
            continue
        read = list(node.inputs)
        yield take_place(node, parts.result(), builder.namer, "standard operators that compute the same")
        drop_unread(read)
