"""remove-identity, written over graphsurgeon's graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from qdq_passes.core.base import EXACT, Change, skip
from qdq_passes.surgeon.edit import (
    SurgeonGraph,
    SurgeonNode,
    all_graphs,
    bypass,
    constant_values,
    is_op,
    is_output,
    remove,
)
from qdq_passes.surgeon.surgeon_pass import surgeon_pass


@surgeon_pass(keeps=EXACT, ops=("Identity", "Dropout"))
def remove_identity(graph: SurgeonGraph, *, names: Literal["producer", "removed"] = "producer") -> Iterator[Change]:
    """Remove Identity nodes, and Dropout nodes that pass their input through because they do not train.

    Graph: ``x → Relu → t → Identity → u → Conv → y`` → ``x → Relu → t → Conv → y``; in bodies and functions too.
    Requires: a model that graphsurgeon can carry (no optional types, function overloads…: refused with the loss named).
    Keeps: inputs, outputs and their names (where the node made an output, its producer makes it now); numerics bit-exact.
    Skips: a node that joins a graph input, an initializer or an outer value to a graph output, or two graph outputs: it is what
    makes the second name; a Dropout that may train (``training_mode`` not a constant false) or whose mask is read.

    Args:
        names: whose output name stays: the producer's, or that of the removed node (of several, of the last).
    """
    for inner in all_graphs(graph):
        gone: list[SurgeonNode] = []
        own = {id(node) for node in inner.nodes} if names == "removed" else None
        for node in inner.nodes:
            if is_op(node, "Identity"):
                reason = bypass(inner, node, node.inputs[0], own)
            elif is_op(node, "Dropout"):
                reason = _why_not(inner, node) or bypass(inner, node, node.inputs[0], own)
            else:
                continue
            if reason is None:
                gone.append(node)
            else:
                yield skip(node.name or node.op, reason)
        remove(inner, gone)


def _why_not(graph: SurgeonGraph, dropout: SurgeonNode) -> str | None:
    """Why ``dropout`` may do more than pass its input through (``is_test`` before opset 7, ``training_mode`` since opset 12)."""
    if any(mask.outputs or is_output(graph, mask) for mask in dropout.outputs[1:] if mask.name):
        return "its mask is read"
    if graph.opset < 7 and not dropout.attrs.get("is_test", 0):
        return "it trains: is_test is 0"
    for training_mode in (tensor for tensor in dropout.inputs[2:3] if tensor.name):
        values = constant_values(training_mode)
        if values is None:
            return "its training_mode is not constant"
        if values.any():
            return "its training_mode is true"
    return None


RemoveIdentity = remove_identity
