"""scale-hard-sigmoid

The DPU multiplies by 2731 and shifts by 14 where HardSigmoid multiplies by 1/6: y' = y·2731 / 2^14·6 = 1.0001220703125·y."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Keeps
from qdq_passes.graph.operators.activations import is_dpu_hard_sigmoid
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.legalize.edit.factors import ScalePass
from qdq_passes.legalize.edit.replacement_prices import mark
from qdq_passes.numerics.dpu import HARD_SIGMOID_FACTOR


@dataclass(frozen=True)
class ScaleHardSigmoid(ScalePass):
    """Multiply what a HardSigmoid(1/6, 1/2) writes by what the DPU's slope makes of it.

    Graph: ``x → HardSigmoid → t`` → ``x → HardSigmoid → t_Mul → Mul(t_Scale = 1.0001220703125) → t``.
    Requires: nothing; it belongs behind insert-qdq, which would take the factor for a weight and quantize it.
    Keeps: inputs, outputs and their names; the DPU's numbers, 78 dB from the exact ones.
    Skips: other slopes; what has its factor already; operators that are not quantized; float16 and bfloat16, which do not hold
    the factor.

    Args:
        select: the operators.
        operators: ``quantized`` changes those with a QDQ pair at their input or output, ``all`` every one.
        constant: the factor is an ``initializer``, or a Constant ``node`` of its own.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the DPU's slope is 1.0001220703125 times 1/6")
    op_types: ClassVar[tuple[str, ...]] = ("HardSigmoid",)

    def factor(self, node: ir.Node, inferred: Inferred) -> float | str | None:
        """That of the slope."""
        if not is_dpu_hard_sigmoid(node):
            return "has another slope or offset than the DPU's, 1/6 and 1/2"
        mark(node, node.op_type)
        return HARD_SIGMOID_FACTOR
