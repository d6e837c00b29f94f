"""convert-qoperators"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.qdq_ops import is_dequantize
from qdq_passes.graph.operators.qoperators import MICROSOFT, form_of, is_recurrent
from qdq_passes.graph.uses import all_nodes
from qdq_passes.integers._convert_forms import convert_form, convert_product, convert_recurrent
from qdq_passes.integers._convert_movement import convert_movement
from qdq_passes.integers.edit.flow import Floats
from qdq_passes.integers.look.integer_flow import QDQ_DOMAINS, integer_flow, moved_inputs
from qdq_passes.integers.look.integer_products import integer_product, is_integer_product
from qdq_passes.select.selectors import ALL, Selector, select_operators

#: Quantized operators of com.microsoft without a form in standard operators here, and why.
NOT_CONVERTED = {
    "MatMulBnb4": "its 4-bit floats are no integers on a grid",
    "MatMulFpQ4": "its weight is packed in the layout of one device",
    "MatMulInteger16": "multiplies 16-bit integers without scales",
    "MulInteger": "multiplies integers without scales",
    "QMoE": "is a whole mixture of experts",
}


@dataclass(frozen=True)
class ConvertQoperators(Pass):
    """Turn operators on integers into float operators between QDQ pairs, with the same scales, zero points and integers.

    Graph: ``QLinearConv(x_q, s_x, z_x, w_q, s_w, z_w, s_y, z_y, b)`` → ``Conv(DQ(x_q), DQ(w_q), DQ(b)) → Q(s_y, z_y)``, the bias
    at s_x·s_w; so for every QLinear operator, QGemm, QAttention, QEmbedLayerNormalization. MaxPool, Transpose, Pad… on such
    integers get a DQ before and a Q behind. ``MatMulInteger → Cast → Mul(s_a·s_b)`` (ConvInteger, MatMulIntegerToFloat,
    DynamicQuantizeMatMul, DynamicQuantizeLSTM) → ``MatMul(DQ(a), DQ(b))``; a DynamicQuantizeLinear before it stays.
    Requires: nothing. Below opset 13 a scale per axis, below 10 any scale, makes Q and DQ of com.microsoft.
    Keeps: inputs, outputs and their names, all integers that are stored; operators that move integers, exactly. The rest computes
    in floats what was computed in integers: results differ where onnxruntime's integer kernels round otherwise.
    Skips: scales that run along no single axis; an integer product whose scale cannot be told; operators without a float form.

    Args:
        select: the operators, or tensors: then those that make or read them.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "changes",
        why="a sum of products is rounded in float32 where it was exact in int32, and divided by s_y where it was multiplied by "
        "s_x·s_w / s_y: integers differ by at most 1 per operator, where that lands next to a rounding boundary (1 of 330,000 in "
        "onnxruntime 1.31); Resize between pixels, which onnxruntime truncates on integers, by 1. Operators behind add to that",
    )
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Convert in the order of the file: the integers an operator reads are made by a QuantizeLinear by then."""
        wanted = select_operators(model, self.select)
        flow, floats = integer_flow(model), Floats(model, Namer(model))
        for node in all_nodes(model):
            if node.graph is None or (node not in wanted and not is_dequantize(node)):
                continue
            form = form_of(node)
            if is_dequantize(node) and node.domain in QDQ_DOMAINS:
                floats.meet(node)
            elif form is not None:
                yield from convert_form(node, form, floats, flow)
            elif is_integer_product(node):
                product = integer_product(node, flow)
                yield from [skip(node, product)] if isinstance(product, str) else convert_product(product, floats, flow)
            elif is_recurrent(node):
                yield from convert_recurrent(node, floats)
            elif moved_inputs(node):
                yield from convert_movement(node, floats, flow)
            elif node.domain == MICROSOFT and (node.op_type in NOT_CONVERTED or node.op_type.startswith("QOrdered")):
                yield skip(node, NOT_CONVERTED.get(node.op_type, "lays its data out for one device"))
