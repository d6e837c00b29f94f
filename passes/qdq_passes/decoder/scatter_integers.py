"""scatter-integers

A scatter copies elements: those of the cache, and those of the new rows at their places. Quantizing works on each element alone,
and Q(DQ(q)) = q, as one scale and one zero point hold everywhere:

    Q(Scatter(DQ(a), i, DQ(b))) = Scatter(Q(DQ(a)), i, Q(DQ(b))) = Scatter(a, i, b)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.decoder.look.cache_tensors import NEW_ROWS
from qdq_passes.graph.edit import Namer, drop_unread, make_node, remove, replace_nodes
from qdq_passes.graph.uses import integer_of, is_standard, main_nodes, only_reader
from qdq_passes.qdq.look.exact import why_not_cancelled
from qdq_passes.qdq.look.pairs import is_dequantize, is_quantize
from qdq_passes.select.selectors import ALL, Selector, select_nodes


@dataclass(frozen=True)
class ScatterIntegers(Pass):
    """Let a scatter between pairs of one encoding write integers: a cache in 8 bits is updated where it is, not made anew.

    Graph: ``a → DQ → Scatter → Q → y``, ``b → DQ ↗`` → ``a → Scatter → y``, ``b ↗``.
    Requires: both operands dequantized, the result quantized, with one constant scale and zero point per tensor.
    Keeps: names of inputs and outputs; numerics bit-exact.
    Skips: a scatter that reduces; operands that are not dequantized, or otherwise than the result is quantized; a result that has
        another reader than its QuantizeLinear; bodies.

    Args:
        select: scatters: ScatterElements, ScatterND, TensorScatter.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One scatter after the other."""
        chosen, namer = select_nodes(model, self.select), Namer(model)
        for node in main_nodes(model):
            if node not in chosen or not is_standard(node, *NEW_ROWS):
                continue
            q = only_reader(node.outputs[0])
            sources = [_dequantizer(node.inputs[index]) for index in (0, NEW_ROWS[node.op_type])]
            reason = _why_not(node, q, sources)
            if reason:
                yield skip(node, reason)
                continue
            assert q is not None
            inputs, read = list(node.inputs), list(node.inputs)
            for index, source in zip((0, NEW_ROWS[node.op_type]), sources, strict=True):
                assert source is not None
                inputs[index] = source.inputs[0]
            new = make_node(
                node.op_type, inputs, name=namer.fresh(f"{node.name}_integers"),
                output=namer.fresh(f"{node.outputs[0].name}_integers"), like=q.outputs[0],
                attributes=node.attributes, domain=node.domain, stands_for=[node],
            )  # fmt: skip
            q_parameters = list(q.inputs[1:])
            change = replace_nodes([node, q], [new], namer, "writes integers of one encoding")
            for dq in dict.fromkeys(source for source in sources if source is not None):
                if not dq.outputs[0].uses() and not dq.outputs[0].is_graph_output():
                    read += dq.inputs
                    remove(dq, "its integers are written")
            drop_unread([*read, *q_parameters])
            yield change


def _dequantizer(value: ir.Value | None) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and is_dequantize(node) else None


def _why_not(node: ir.Node, q: ir.Node | None, sources: list[ir.Node | None]) -> str:
    """Why ``node`` cannot write integers; "" if it can."""
    reduction = node.attributes.get("reduction")
    if reduction is not None and reduction.as_string() not in ("", "none"):
        return f"reduces ({reduction.as_string()})"
    if q is None or not is_quantize(q) or node.outputs[0].is_graph_output():
        return "what it writes is not quantized, and nothing else"
    for source in sources:
        if source is None:
            return "reads floats that no DequantizeLinear writes"
        if integer_of(source, "block_size", 0):
            return "has blocks of scales"
        reason = why_not_cancelled(source, q)
        if reason:
            return reason
        scale = source.inputs[1]
        if scale is None or (scale.shape is not None and len(scale.shape) and scale.shape[0] != 1):
            return "has scales along an axis"
    return ""
