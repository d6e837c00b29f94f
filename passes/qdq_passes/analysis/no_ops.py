"""No-ops: nodes whose output is one of their inputs, element for element."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.analysis.qdq_opsets import opset_at
from qdq_passes.analysis.uses import constant_array, is_standard

#: Operator → (its neutral constant, the inputs that may be it).
NEUTRAL = {"Add": (0, (1, 0)), "Div": (1, (1,)), "Mul": (1, (1, 0)), "Sub": (0, (1,))}


def passed_on(model: ir.Model, node: ir.Node) -> tuple[ir.Value | None, str]:
    """The input that ``node`` passes on, or None and why it does not (nothing where it is no candidate at all).

    Candidates are Identity, Dropout, and x·1, x/1, x+0, x−0 with a constant of one element.
    """
    first = node.inputs[0] if node.inputs else None
    if is_standard(node, "Identity"):
        return first, ""
    if is_standard(node, "Dropout"):
        reason = _why_it_trains(model, node)
        return (first, "") if reason is None else (None, reason)
    if not is_standard(node, *NEUTRAL) or len(node.inputs) != 2:
        return None, ""
    neutral, places = NEUTRAL[node.op_type]
    for place in places:
        constant, x = constant_array(node.inputs[place]), node.inputs[1 - place]
        if constant is None or x is None or constant.size != 1 or constant.reshape(()) != neutral:
            continue
        if place == 0 and "broadcast" in node.attributes:  # before opset 7 the second input is broadcast to the first
            continue
        if constant.ndim and x.shape is None:
            return None, "the number of dimensions of its input is not known (infer-shapes)"
        if x.shape is not None and constant.ndim > len(x.shape):
            return None, "its constant has more dimensions than its input"
        return x, ""
    return None, ""


def _why_it_trains(model: ir.Model, dropout: ir.Node) -> str | None:
    """Why ``dropout`` may do more than pass its input on (``is_test`` before opset 7, ``training_mode`` since opset 12)."""
    if any(mask.uses() or mask.is_graph_output() for mask in dropout.outputs[1:]):
        return "its mask is read"
    is_test = dropout.attributes.get("is_test")
    if opset_at(model, dropout) < 7 and (is_test is None or is_test.is_ref() or not is_test.as_int()):
        return "it trains: is_test is 0"
    for training_mode in (value for value in dropout.inputs[2:3] if value is not None):
        values = constant_array(training_mode)
        if values is None or values.any():
            return f"its training_mode is {'not constant' if values is None else 'true'}"
    return None
