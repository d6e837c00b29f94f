"""scale-reduce-mean

The DPU multiplies the sum over c elements by k = round(2^n / c) and shifts by n where the mean divides: y' = y·c·k / 2^n."""

from __future__ import annotations

import math
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Keeps
from qdq_passes.graph.operators.reductions import averaged_axes, is_graph_end, written_axes
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.legalize.edit.factors import ScalePass
from qdq_passes.numerics.dpu import mean_factor


@dataclass(frozen=True)
class ScaleReduceMean(ScalePass):
    """Multiply what a ReduceMean writes by what the DPU's multiplier and shift make of one over the number of elements.

    Graph: ``x → ReduceMean(10 elements) → t`` → ``x → ReduceMean → t_Mul → Mul(t_Scale = 0.99609375) → t``.
    Requires: nothing; it belongs behind insert-qdq, which would take the factor for a weight and quantize it.
    Keeps: inputs, outputs and their names; the DPU's numbers, whose distance from the exact ones each change tells.
    Skips: axes that are computed, not given, or whose sizes are not known; means of integers; what has its factor already;
    operators that are not quantized.

    Args:
        select: the operators.
        operators: ``quantized`` changes those with a QDQ pair at their input or output, ``all`` every one.
        constant: the factor is an ``initializer``, or a Constant ``node`` of its own.
        ones: a count that the DPU averages exactly (powers of two) has its Mul too.
        reference: as the reference does, leave means alone that read an input or output of the graph, whose shape it does not
            see.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the DPU's mean of c elements is c·k / 2^n times the exact one")
    op_types: ClassVar[tuple[str, ...]] = ("ReduceMean",)
    ones: bool = True
    reference: bool = False

    def factor(self, node: ir.Node, inferred: Inferred) -> float | str | None:
        """That of the number of elements."""
        count = self._count(node, inferred)
        if isinstance(count, str):
            return count
        found = mean_factor(count)
        return found if found != 1 or self.ones else None

    def _count(self, node: ir.Node, inferred: Inferred) -> int | str:
        """Number of elements that one mean takes in, or why it is not known."""
        source, written = node.inputs[0], written_axes(node)
        if source is None or not written:
            return "its axes are computed, or it has none"
        if self.reference and is_graph_end(source):
            return "reads an input or output of the graph, whose shape the reference does not see"
        rank = inferred.rank(source)
        axes = None if rank is None else averaged_axes(node, rank)
        sizes = None if axes is None else inferred.sizes(source, axes)
        if sizes is None or 0 in sizes:
            return "sizes along its axes are not known; run infer-shapes or fix-shapes first"
        return math.prod(sizes)
