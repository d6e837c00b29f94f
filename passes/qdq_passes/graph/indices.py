"""Floats that are indices in disguise: computed of integers alone, and soon integers again.

T5 puts distances between tokens into buckets: Cast → Div → Log → Mul → Cast → Gather. There are no data in it to quantize."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes.graph.uses import FLOAT_TYPES, dtype_of, has_body, is_constant, is_standard, may_be_float

#: Operators that compute element by element, or move elements.
_PLAIN = (
    "Abs", "Add", "Cast", "Ceil", "Clip", "Concat", "Div", "Exp", "Expand", "Floor", "Identity", "Log", "Max", "Min", "Mod",
    "Mul", "Neg", "Pow", "Reciprocal", "Reshape", "Round", "Sign", "Slice", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze",
    "Where",
)  # fmt: skip


def index_nodes(nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """Nodes that compute floats of integers alone which all become integers or booleans again, and those that make them such, of
    constants too.

    Args:
        nodes: of one graph, in topological order.
    """
    made: set[ir.Value] = set()
    for node in nodes:
        if is_standard(node, *_PLAIN) and not has_body(node) and _is_of_integers(node, made):
            made.update(value for value in node.outputs if may_be_float(value))
    found: set[ir.Node] = set()
    for node in reversed(nodes):
        if made.isdisjoint(node.outputs):
            ends = _is_end(node, made) and not any(may_be_float(value) for value in node.outputs)
        else:
            ends = all(_is_followed(value, found) for value in node.outputs)
        if ends and not has_body(node):
            found.add(node)
    return found


def _is_of_integers(node: ir.Node, made: set[ir.Value]) -> bool:
    """Whether ``node`` reads floats that are made of integers and constants alone, or makes the first of them."""
    computed = [value for value in node.inputs if value is not None and not is_constant(value)]
    floats = [value for value in computed if may_be_float(value)]
    if is_standard(node, "Cast") and not floats:
        return bool(computed) and dtype_of(node.outputs[0]) in FLOAT_TYPES
    return bool(floats) and made.issuperset(floats)


def _is_end(node: ir.Node, made: set[ir.Value]) -> bool:
    """Whether all floats that ``node`` reads are ``made``, or all that it reads is constant: integers beside scales are data."""
    read = [value for value in node.inputs if value is not None]
    floats = [value for value in read if may_be_float(value)]
    if all(is_constant(value) for value in floats):
        return bool(floats) and all(is_constant(value) for value in read)
    return all(value in made or is_constant(value) for value in floats)


def _is_followed(value: ir.Value, found: set[ir.Node]) -> bool:
    return bool(value.uses()) and not value.is_graph_output() and found.issuperset(value.consumers())
