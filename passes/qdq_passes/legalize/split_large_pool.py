"""split-large-pool

The mean over H·W elements is the mean of the means over equal windows: H = a·c, W = b·d, windows of a·b, then c·d of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, graph_of, make_node
from qdq_passes.graph.operators.reductions import is_graph_end
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types


@dataclass(frozen=True)
class SplitLargePool(Pass):
    """Average in two steps where a GlobalAveragePool takes in more elements than a pooling engine holds.

    Graph: ``x [N, C, 28, 28] → GlobalAveragePool → y`` → ``x → AveragePool(4x4) → x_Split → GlobalAveragePool → y``. The first
    window is the largest divisor of each side up to its square root.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: sides that are not known; sides whose divisors leave one of the two steps too large, as those of a prime do.

    Args:
        select: the operators.
        largest: elements that one step may take in; 512 in the reference.
        reference: as the reference does, leave a pool alone that reads an input or output of the graph, whose shape it does not
            see.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-8,
        why="sums of H·W elements associate differently, H·W·2^-24 of the mean of |x| at worst, which may be 2^4 times that of y "
        "at H·W = 2^12; float16 rounds the means in between, 2^-11",
    )
    select: Selector = ALL
    largest: int = 512
    reference: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """An AveragePool before each."""
        namer, inferred = Namer(model), Inferred(model)
        for node in nodes_of_types(model, self.select, "GlobalAveragePool"):
            window = self._window(node, inferred)
            if isinstance(window, str):
                yield skip(node, window)
            elif window:
                source = node.inputs[0]
                assert source is not None
                pool = _pool(node, source, window, namer)
                yield Change("insert", pool.name or "", f"windows of {window[0]}x{window[1]} before {node.name}")

    def _window(self, node: ir.Node, inferred: Inferred) -> list[int] | str:
        """The window of the first step; why there is none; empty where none is needed."""
        source = node.inputs[0]
        sizes = inferred.sizes(source, [2, 3]) if source is not None and inferred.rank(source) == 4 else None
        if source is None or sizes is None:
            return "height and width of what it reads are not known; run infer-shapes or fix-shapes first"
        if math.prod(sizes) <= self.largest:
            return []
        if self.reference and is_graph_end(source):
            return "reads an input or output of the graph, whose shape the reference does not see"
        window = [largest_divisor(size) for size in sizes]
        steps = math.prod(window), math.prod(sizes) // math.prod(window)
        if max(steps) > self.largest:
            return f"{sizes[0]}x{sizes[1]} splits into windows of {steps[0]} and {steps[1]}, more than {self.largest}"
        return window


def largest_divisor(size: int) -> int:
    """The largest divisor of ``size`` that is no more than its square root.

    >>> largest_divisor(28), largest_divisor(29), largest_divisor(36)
    (4, 1, 6)
    """
    return next(divisor for divisor in range(math.isqrt(size), 0, -1) if size % divisor == 0)


def _pool(node: ir.Node, source: ir.Value, window: list[int], namer: Namer) -> ir.Node:
    name = namer.fresh(f"{source.name}_Split")
    attributes = [ir.AttrInt64s(key, window) for key in ("kernel_shape", "strides")] + [ir.AttrInt64s("pads", [0] * 4)]
    pool = make_node(
        "AveragePool", [source], name=name, output=name, like=source, attributes=attributes, stands_for=[node]
    )
    value = pool.outputs[0]
    if source.shape is not None:
        steps = [
            size // side if isinstance(size, int) else None for size, side in zip(source.shape[2:], window, strict=True)
        ]
        value.shape = ir.Shape([*source.shape[:2], *steps])
    graph_of(node).insert_before(node, pool)
    node.replace_input_with(0, value)
    return pool
