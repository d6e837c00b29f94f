"""round-leaky-relu

The DPU multiplies what is below 0 by an integer and shifts it by 8: its slopes are k/256, α' = round(256·α)/256."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.encode.edit.encoding_policy import Ranges
from qdq_passes.encode.look.quantized import Operators, operators_of
from qdq_passes.graph.uses import label
from qdq_passes.legalize.edit.replacement_prices import mark, replacement_price
from qdq_passes.numerics.dpu import LEAKY_RELU_STEP, leaky_relu, rounded_slope
from qdq_passes.numerics.price import in_db, sqnr_of_rescaled
from qdq_passes.select.selectors import ALL, Selector


@dataclass(frozen=True)
class RoundLeakyRelu(Pass):
    """Round the slope of every LeakyRelu to a multiple of 1/256, halves to the even one.

    Graph: ``LeakyRelu(alpha = 0.1)`` → ``LeakyRelu(alpha = 0.1015625)``.
    Requires: nothing.
    Keeps: inputs, outputs and their names; what is above 0.
    Skips: a LeakyRelu without ``alpha``, as the reference does (its default, 0.01, would become 3/256); slopes that are multiples
    already; operators that are not quantized.

    Args:
        select: the operators.
        operators: ``quantized`` changes those with a QDQ pair at their input or output, ``all`` every one.
        ranges: what calibration saw, for the price; without it the change tells that of values that are all below 0.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="slopes are rounded, by 1/512 at most")
    select: Selector = ALL
    operators: Operators = "quantized"
    ranges: Named | Ranges | None = None

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Slope by slope."""
        assert not isinstance(self.ranges, Named)
        nodes, skips = operators_of(model, self.select, self.operators, "LeakyRelu")
        yield from skips
        for node in nodes:
            alpha = node.attributes.get("alpha")
            if alpha is None or alpha.is_ref():
                yield skip(node, "its slope is not written down")
            elif (slope := rounded_slope(alpha.as_float())) != alpha.as_float():
                mark(node, repr(alpha.as_float()))
                node.attributes["alpha"] = ir.AttrFloat32("alpha", slope)
                words = f"slope {alpha.as_float():.7g} → {round(slope / LEAKY_RELU_STEP)}/256"
                yield Change("edit", label(node), f"{words}, {self._price(node, alpha.as_float(), slope)}")

    def _price(self, node: ir.Node, old: float, new: float) -> str:
        assert not isinstance(self.ranges, Named)
        if self.ranges is not None:
            found = replacement_price(
                node.inputs[0], self.ranges, lambda x: leaky_relu(x, old), lambda x: leaky_relu(x, new)
            )
            if found is not None:
                return str(found)
        return f"at least {in_db(sqnr_of_rescaled(new / old))}"
