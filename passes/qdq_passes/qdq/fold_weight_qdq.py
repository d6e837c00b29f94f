"""fold-weight-qdq"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, new_constant, remove
from qdq_passes.graph.uses import all_nodes, constant_array
from qdq_passes.numerics.encoding import is_integer_type
from qdq_passes.numerics.quantize import quantize
from qdq_passes.qdq.look.pairs import encoding_of, is_dequantize, is_quantize
from qdq_passes.select.selectors import ALL, Selector, select_values


@dataclass(frozen=True)
class FoldWeightQdq(Pass):
    """Store quantized weights as integers: the QuantizeLinear of a constant is computed once and for all.

    Graph: ``w → Q → DQ → A`` → ``w_quantized → DQ → A``.
    Requires: w, scale and zero point constant.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: storage types that are no integers; w holds integers or is a graph input or the integers are a graph output.

    Args:
        select: the weights.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Fold one QuantizeLinear after the other."""
        wanted = select_values(model, self.select)
        namer = Namer(model)
        for node in all_nodes(model):
            source = node.inputs[0] if is_quantize(node) and node.inputs else None
            array = constant_array(source)
            if source is None or array is None or source not in wanted:
                continue
            encoding = encoding_of(node)
            reason = None
            if encoding is None:
                reason = "its scale is not constant"
            elif node.outputs[0].is_graph_output() or not all(is_dequantize(u) for u in node.outputs[0].consumers()):
                reason = "its integers are read by something else than DequantizeLinear"
            elif array.dtype.kind in "iu":
                reason = f"{source.name} holds integers already"
            elif (scale := constant_array(node.inputs[1])) is None or scale.dtype != array.dtype:
                reason = "its scale has another float type"
            elif "precision" in node.attributes:
                reason = "it asks for a precision of its own"
            elif not is_integer_type(encoding.dtype):
                reason = f"{encoding.dtype.name.lower()} is no integer type"
            if reason is not None or encoding is None:
                yield skip(node, reason or "")
                continue
            graph = graph_of(node)
            tensor = ir.tensor(quantize(array, encoding), dtype=encoding.dtype)
            stored = new_constant(graph, namer, f"{source.name}_quantized", tensor, [node])
            node.outputs[0].replace_all_uses_with(stored)
            parameters = list(node.inputs)
            yield from remove(node, "its input is constant")
            yield Change("insert", stored.name or "", "integers of " + (source.name or ""))
            yield from drop_unread(parameters)
