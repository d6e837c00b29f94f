"""Who makes, reads and holds a value; bodies of If/Loop/Scan and local functions included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

#: Operators that move elements without computing on them: output and input share one encoding.
DATA_MOVEMENT = frozenset(
    {
        "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze",
        "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip

FLOAT_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})

GraphLike = ir.Graph | ir.Function


def graph_likes(model: ir.Model) -> list[GraphLike]:
    """The main graph and every local function."""
    return [model.graph, *model.functions.values()]


def all_nodes(model: ir.Model) -> list[ir.Node]:
    """Every node: main graph, bodies of control flow, local functions; in the order of the file."""
    return [node for graph_like in graph_likes(model) for node in graph_like.all_nodes()]


def all_graphs(model: ir.Model) -> list[ir.Graph]:
    """Every graph: the main graph, function bodies, control-flow bodies."""
    return list(model.graphs())


def all_values(model: ir.Model) -> list[ir.Value]:
    """Every value, each once: inputs and initializers of each graph, then outputs of its nodes."""
    return list(dict.fromkeys(_values(model)))


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs
    for function in model.functions.values():
        yield from function.inputs


def constant_array(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The array of an initializer (that is no graph input) or of a Constant node's output; None when not constant.

    An initializer that is also a graph input is a default that the caller may override, hence not constant.
    """
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def is_constant(value: ir.Value | None) -> bool:
    """Whether `constant_array` would give an array (the data is not read)."""
    if value is None or value.is_graph_input():
        return False
    if value.const_value is not None:
        return True
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant" and producer.domain in ("", "ai.onnx")


def readers(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """(node, input index) of every reader, bodies included, in a stable order."""
    return [(use.node, use.idx) for use in value.uses()]


def only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads ``value``, once; None when there are several uses or it is a graph output."""
    uses = readers(value)
    return uses[0][0] if len(uses) == 1 and not value.is_graph_output() else None


def is_standard(node: ir.Node, *op_types: str) -> bool:
    """Whether ``node`` is one of ``op_types`` of the default ONNX domain."""
    return node.domain in ("", "ai.onnx") and node.op_type in op_types


def has_body(node: ir.Node) -> bool:
    """Whether ``node`` holds a graph (If, Loop, Scan, SequenceMap)."""
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def main_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes of the main graph, without bodies."""
    return list(model.graph)
