"""BatchNormalization, which normalizes by statistics that are given or, in training, by those of its input."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.attributes import integer_of

#: ONNX's default of the attribute epsilon.
DEFAULT_EPSILON = 1e-5
#: First opset without is_test: a BatchNormalization that computes one output does not train.
_OPSET_OF_INFERENCE = 7


def normalizes_by_input(node: ir.Node, opset: int) -> bool:
    """Whether the attributes of ``node`` say that it trains: ``training_mode`` since opset 14, no ``is_test`` before 7."""
    is_test = opset >= _OPSET_OF_INFERENCE or bool(integer_of(node, "is_test", 0))
    return bool(integer_of(node, "training_mode", 0)) or not is_test
