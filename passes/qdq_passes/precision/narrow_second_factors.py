"""narrow-second-factors"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import is_standard, main_nodes
from qdq_passes.precision.edit.conversions import Conversions
from qdq_passes.precision.look.boundaries import Input, Width, quantized_inputs
from qdq_passes.qdq.edit.biases import drop_pair_of
from qdq_passes.qdq.look.pairs import encoding_of, half_pairs, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select_nodes

#: Types of 16 bits, and those of 8 that take their place.
_NARROW = {ir.DataType.UINT16: ir.DataType.UINT8, ir.DataType.INT16: ir.DataType.INT8}


@dataclass(frozen=True)
class NarrowSecondFactors(Pass):
    """Store the second of two activations of 16 bits that are multiplied in 8 bits: matrix units multiply 16 by 8 bits.

    Graph: ``DQ16(a), DQ16(b) → MatMul`` → ``DQ16(a), DQ16(b) → Q8 → DQ8 → MatMul``. Keys and values are second factors.
    Requires: nothing.
    Keeps: names of inputs and outputs; numerics: the second factor is rounded to 8 bits over the same range.
    Skips: products with a weight, and those whose second factor has 8 bits.

    Args:
        select: the products.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the second factor is rounded to 8 bits")
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Product by product."""
        wanted = select_nodes(model, self.select)
        names = {pair.dq: pair.tensor for pair in qdq_pairs(model)} | {h.node: h.tensor for h in half_pairs(model)}
        conversions = Conversions(model, Namer(model), names)
        for node in main_nodes(model):
            found = {one.index: one for one in quantized_inputs(node)} if node in wanted else {}
            if not is_standard(node, "MatMul") or set(found) != {0, 1}:
                continue
            if any(one.dtype not in _NARROW for one in found.values()):
                yield skip(node, f"its factors are {' and '.join(one.dtype.name.lower() for one in found.values())}")
                continue
            yield from _narrow(node, found[1], conversions)


def _narrow(node: ir.Node, second: Input, conversions: Conversions) -> Iterator[Change]:
    if encoding_of(second.dq) is None:
        yield skip(node, "the scale of its second factor is not constant")
        return
    width = Width(_NARROW[second.dtype], second.dq.domain)
    conversions.check(second, width)
    yield from conversions.connect(node, second, width)
    yield from drop_pair_of(second.dq)
