"""reduce-mean-to-global-pool"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import drop_unread
from qdq_passes.graph.operators.qdq_ops import OPSET_OF_BFLOAT16, opset_at
from qdq_passes.graph.operators.reductions import averaged_axes, written_axes
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, integer_of, label
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types


@dataclass(frozen=True)
class ReduceMeanToGlobalPool(Pass):
    """Turn a mean over height and width into a GlobalAveragePool.

    Graph: ``x [N, C, H, W] → ReduceMean(axes = [2, 3], keepdims = 1) → y`` → ``x → GlobalAveragePool → y``.
    Requires: nothing.
    Keeps: inputs, outputs and all names; numerics within the bound.
    Skips: other axes; ``keepdims=0``, whose result has another shape; axes that are computed; inputs that are not known to have
    four dimensions; means of integers.

    Args:
        select: the operators.
        reference: as the reference does, only axes that are written as 2, 3, not as −2, −1 or 3, 2.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-8,
        why="the sums of H·W elements associate differently, H·W·2^-24 of the mean of |x| at worst, which may be 2^6 times that "
        "of y at H·W = 2^10; float16 rounds the result once more, 2^-11",
    )
    select: Selector = ALL
    reference: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """In place: names, scope and wiring stay."""
        inferred = Inferred(model)
        for node in nodes_of_types(model, self.select, "ReduceMean"):
            reason = self._why_not(node, opset_at(model, node), inferred)
            if reason:
                yield skip(node, reason)
                continue
            axes = node.inputs[1:]
            node.op_type = "GlobalAveragePool"
            node.attributes.clear()
            node.resize_inputs(1)
            drop_unread(axes)
            yield Change("replace", label(node), "mean over height and width")

    def _why_not(self, node: ir.Node, opset: int, inferred: Inferred) -> str:
        """Why ``node`` is no GlobalAveragePool; empty where it is."""
        source, written = node.inputs[0], written_axes(node)
        keepdims = node.attributes.get("keepdims")
        if source is None or written is None or (keepdims is not None and keepdims.is_ref()):
            return "its axes are computed, or attributes of its function"
        if not integer_of(node, "keepdims", 1):
            return "drops the axes it averages over"
        if self.reference and written != [2, 3]:
            return f"its axes are written as {written}, not as [2, 3]"
        rank, dtype = inferred.rank(source), inferred.dtype(source)
        if rank is None or dtype is None:
            return "rank or type of what it reads is not known; run infer-shapes first"
        if rank != 4 or averaged_axes(node, rank) != [2, 3]:
            return f"averages over axes {averaged_axes(node, rank)} of {rank}, not over height and width"
        if dtype not in FLOAT_TYPES or (dtype == ir.DataType.BFLOAT16 and opset < OPSET_OF_BFLOAT16):
            return f"is of {dtype.name.lower()}, which GlobalAveragePool of opset {opset} does not take"
        return ""
