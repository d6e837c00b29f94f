"""scale-average-pool

The DPU multiplies the sum over a k·k window by m and shifts it by n where the operator divides it: y' = y·k²·m / 2^n."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Keeps
from qdq_passes.graph.operators.activations import AVERAGE_POOLS
from qdq_passes.graph.operators.reductions import averaged_axes, is_graph_end, kernel_of
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.legalize.edit.factors import ScalePass
from qdq_passes.numerics.dpu import pool_factor


@dataclass(frozen=True)
class ScaleAveragePool(ScalePass):
    """Multiply what an AveragePool or GlobalAveragePool writes by what the DPU's multiplier and shift make of the window's 1/k².

    Graph: ``x → AveragePool(3x3) → t`` → ``x → AveragePool(3x3) → t_Mul → Mul(t_Scale = 0.984375) → t``. At a graph output whose
    pair is there the names begin with ``o_QuantizeLinear_Input``, which is what the pool writes.
    Requires: nothing; it belongs behind insert-qdq, which would take the factor for a weight and quantize it.
    Keeps: inputs, outputs and their names; the DPU's numbers, whose distance from the exact ones each change tells.
    Skips: windows that are not square; a GlobalAveragePool whose height and width are not known; what has its factor already;
    operators that are not quantized.

    Args:
        select: the operators.
        operators: ``quantized`` changes those with a QDQ pair at their input or output, ``all`` every one.
        constant: the factor is an ``initializer``, or a Constant ``node`` of its own.
        ones: a window that the DPU averages exactly (2, 4, 8… a side) has its Mul too; compilers expect one behind every pool.
        reference: as the reference does, leave a GlobalAveragePool alone that reads an input or output of the graph, whose shape
            it does not see.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the DPU's average is k²·m / 2^n times the exact one")
    op_types: ClassVar[tuple[str, ...]] = AVERAGE_POOLS
    ones: bool = True
    reference: bool = False

    def factor(self, node: ir.Node, inferred: Inferred) -> float | str | None:
        """That of the window."""
        window = self._window(node, inferred)
        if isinstance(window, str):
            return window
        found = pool_factor(window)
        if found is None:
            return f"the DPU has no factor for a window of {'x'.join(map(str, window))}, which is not square"
        return found if found != 1 or self.ones else None

    def _window(self, node: ir.Node, inferred: Inferred) -> list[int] | str:
        """Sizes of the window, or why they are not known."""
        if node.op_type == "AveragePool":
            return kernel_of(node) or "an attribute of the function gives its window"
        source = node.inputs[0]
        if source is None:
            return "reads nothing"
        if self.reference and is_graph_end(source):
            return "reads an input or output of the graph, whose shape the reference does not see"
        rank = inferred.rank(source)
        sizes = None if rank is None else inferred.sizes(source, averaged_axes(node, rank) or [])
        if not sizes or 0 in sizes:
            return "height and width of what it reads are not known; run infer-shapes or fix-shapes first"
        return sizes
