"""The undoing of `keep-last-logits`."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.decoder.keep_last_logits import LAST_INDEX
from qdq_passes.decoder.look.flow import depending_on
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.graph.uses import in_order, is_standard, readers


def give_all_logits(model: ir.Model) -> None:
    """Of a decoder that gives the logits of one token, told by an input: make it give those of all, in place."""
    index = next((value for value in model.graph.inputs if value.name == LAST_INDEX), None)
    found = [] if index is None else [node for node, _ in readers(index)]
    if (
        index is None
        or not found
        or any(not is_standard(node, "Gather") or node.inputs[1] is not index for node in found)
    ):
        return
    if any(node.outputs[0].is_graph_output() for node in found):
        return
    behind = depending_on(in_order(model.graph), [node.outputs[0] for node in found], by_shape=True)
    for node in found:
        value = node.inputs[0]
        assert value is not None
        node.outputs[0].replace_all_uses_with(value)
        model.graph.remove(node, safe=True)
    model.graph.inputs.remove(index)
    for other in behind:
        other.shape = None
    infer_shapes(model)
