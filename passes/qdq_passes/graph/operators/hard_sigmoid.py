"""The hard sigmoid of the Vitis line's DPU, x/6 + 1/2 within 0 and 1."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.uses import is_standard
from qdq_passes.numerics.dpu import HARD_SIGMOID_BETA, is_hard_sigmoid


def is_dpu_hard_sigmoid(node: ir.Node) -> bool:
    """Whether ``node`` is a HardSigmoid with alpha 1/6 and beta 1/2; alpha must be given, beta's default is 1/2."""
    if not is_standard(node, "HardSigmoid"):
        return False
    alpha, beta = (node.attributes.get(name) for name in ("alpha", "beta"))
    if alpha is None or alpha.is_ref() or (beta is not None and beta.is_ref()):
        return False
    return is_hard_sigmoid(alpha.as_float(), HARD_SIGMOID_BETA if beta is None else beta.as_float())
