"""merge-duplicates"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unread, remove, replace_value
from qdq_passes.graph.evaluate.rare import RANDOM
from qdq_passes.graph.operators.qdq_ops import is_quantization
from qdq_passes.graph.uses import GraphLike, all_graph_likes, constant_array, in_order, is_constant, is_standard, label

#: Elements of a constant up to which it is compared with others by what it holds: shapes, axes, scalars. Weights are not read.
COMPARED = 64


@dataclass(frozen=True)
class MergeDuplicates(Pass):
    """Let one node compute what several compute alike: the same operator of the same values with the same attributes.

    Graph: ``x → Sqrt → a; x → Sqrt → b`` → ``x → Sqrt → a`` for the readers of both. Constants of up to 64 elements are the same
    values where they hold the same. In bodies and functions too, each by itself.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact. Names of the first of the nodes, that of an output before it.
    Skips: Q, DQ and Constant nodes; random numbers and Dropout; control flow; other domains than onnx's own, of which nobody
    knows whether they give the same twice; nodes that both make outputs of the graph.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Graph after graph, producers first: what reads merged values is the same in turn."""
        namer = Namer(model)
        for graph in all_graph_likes(model):
            yield from _merge(graph, namer)


def _merge(graph: GraphLike, namer: Namer) -> Iterator[Change]:
    found: dict[object, ir.Node] = {}
    for node in in_order(graph):
        key = _key(node)
        first = node if key is None else found.setdefault(key, node)
        if first is node:
            continue
        pairs = list(zip(node.outputs, first.outputs, strict=True))
        if any(old.is_graph_output() and new.is_graph_output() for old, new in pairs):
            yield skip(node, f"it is the same as {label(first)}, but both make outputs of the graph")
            continue
        parameters = list(node.inputs)
        for old, new in pairs:
            replace_value(old, new, namer)
        yield from remove(node, f"is the same as {label(first)}")
        yield from drop_unread(parameters)


def _key(node: ir.Node) -> object:
    """What nodes that compute the same have in common; None for those that are left alone."""
    if node.domain not in ("", "ai.onnx") or is_standard(node, *RANDOM, "Constant", "Dropout") or is_quantization(node):
        return None
    attributes = {name: _plain(attribute) for name, attribute in node.attributes.items()}
    if None in attributes.values():
        return None
    named = tuple(bool(value.name) for value in node.outputs)
    return node.op_type, named, tuple(map(_identity, node.inputs)), tuple(sorted(attributes.items()))


def _plain(attribute: ir.Attr) -> object:
    if attribute.is_ref() or attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return (str(tensor.dtype), tuple(tensor.shape.numpy()), tensor.tobytes()) if tensor.size <= COMPARED else None
    value = attribute.value
    return tuple(value) if isinstance(value, list | tuple) else value if isinstance(value, int | float | str) else None


def _identity(value: ir.Value | None) -> object:
    """The value itself, or what it holds where it is a small constant."""
    tensor = None if value is None else value.const_value
    if value is None or not is_constant(value) or (tensor is not None and tensor.size > COMPARED):
        return value
    array = constant_array(value)
    if array is None or array.size > COMPARED or array.dtype.kind == "O":
        return value
    return str(value.dtype or array.dtype), array.shape, array.tobytes()
