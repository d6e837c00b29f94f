"""isolate-divisors

In integers of scale s a divisor d ≤ s/2 is 0: x/√(σ² + ε) of a row of zeros divides by 0 instead of √ε. Of a d below s the error
is as large as d."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass
from qdq_passes.encode.edit.encoding_policy import Ranges, histogram_of, range_of
from qdq_passes.encode.isolate_operators import leave_float
from qdq_passes.graph.annotate import PART
from qdq_passes.graph.operators.macs import MULTIPLYING
from qdq_passes.graph.uses import (
    DATA_MOVEMENT,
    Reach,
    constant_array,
    input_at,
    is_constant,
    is_standard,
    label,
    main_nodes,
    may_be_float,
    reach,
)
from qdq_passes.numerics.encoding import encoding_of_range, parse_dtype
from qdq_passes.select.selectors import ALL, NONE, Selector, select_nodes

#: Operators that give 0 for 0.
_ZERO_OF_ZERO = DATA_MOVEMENT | {"Abs", "Cast", "Div", "Mul", "Pow", "Sqrt"}


@dataclass(frozen=True)
class IsolateDivisors(Pass):
    """Leave a division float whose divisor has less than one level, and what computes the divisor of the data.

    A normalization in pieces divides rows of zeros by √ε, which 8 bits round to 0: the quotient is infinite, or saturates.

    Graph: unchanged; nodes gain the annotation ``precision``, which `annotate-encodings` heeds, and a note of why in their
    metadata, which `analyze` reads. Float are the Div (or the Reciprocal, or the Pow of a negative exponent, and what multiplies
    by it), and what lies between what is divided and the divisor, so that both come of the same integers.
    Requires: nothing.
    Keeps: everything; numerics bit-exact.
    Skips: divisors that are 0 themselves, constants, or were not seen; layers, which multiply and accumulate; parts of an
    operator that is quantized as one; nodes that have a precision keep it.

    Args:
        ranges: tensor name → observed range; normally ``@ranges``.
        dtype: storage type of activations.
        symmetric: whether their zero point is 0.
        scales: ``pow2`` where scales are powers of two.
        levels: fewest levels of the smallest divisor.
        exclude: nodes that are not quantized anyhow.
        only: the only ones that are.
    """

    keeps: ClassVar[Keeps] = EXACT
    ranges: Named | Ranges
    dtype: str = "int8"
    symmetric: bool = True
    scales: Literal["pow2", "any"] = "pow2"
    levels: float = 1.0
    exclude: Selector = NONE
    only: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Division by division, in the order of the graph."""
        nodes, edges = main_nodes(model), None
        wanted = select_nodes(model, self.only) - select_nodes(model, self.exclude)
        for node in nodes:
            divisor = _divisor(node) if node in wanted and PART.get(node) is None else None
            if divisor is not None and (why := self._starved(divisor)):
                edges = edges or reach(nodes)
                yield from leave_float(_around(node, divisor, edges), f"{why}, by which {label(node)} divides")

    def _starved(self, value: ir.Value | None) -> str:
        """What has too few levels among ``value`` and what it is 0 of, in words; ``""`` where all have enough."""
        assert not isinstance(self.ranges, Named)
        while value is not None and not is_constant(value):
            name = value.name or ""
            seen, histogram = range_of(self.ranges, name), histogram_of(self.ranges, name)
            low, high = (
                (histogram.low, histogram.high) if histogram is not None and histogram.total else seen or (0.0, 0.0)
            )
            least = max(low, -high)
            if seen is not None and least > 0:
                scale = encoding_of_range(
                    *seen, dtype=parse_dtype(self.dtype), symmetric=self.symmetric, power_of_two=self.scales == "pow2"
                ).scale[0]
                if least < self.levels * scale:
                    return f"{name} ({low:.3g} to {high:.3g}) would have {least / scale:.2g} levels"
            node = value.producer()
            inputs = node.inputs if node is not None and is_standard(node, *_ZERO_OF_ZERO) else ()
            value = next((each for each in inputs if each is not None and not is_constant(each)), None)
        return ""


def _divisor(node: ir.Node) -> ir.Value | None:
    """What ``node`` divides by, where that is computed."""
    if is_standard(node, "Div"):
        found = node.inputs[1]
    elif is_standard(node, "Reciprocal"):
        found = node.inputs[0]
    else:
        power = constant_array(input_at(node, 1)) if is_standard(node, "Pow") else None
        found = node.inputs[0] if power is not None and power.size and power.max() < 0 else None
    return None if found is None or is_constant(found) else found


def _around(node: ir.Node, divisor: ir.Value, edges: Reach) -> list[ir.Node]:
    """``node``, what multiplies by its inverse, and what computes ``divisor`` of what is divided; who else reads that, too."""
    first = input_at(node, 0)
    is_inverse = not is_standard(node, "Div") or is_constant(first)
    quotients = [each for each in _readers(node, edges) if is_inverse] or [node]
    inverses = {node, *(n for n in edges.before(quotients) if n in edges.after([node]))}
    divided = [
        value.producer() for each in quotients for value in each.inputs
        if value is not None and value is not divisor and value.producer() not in inverses
    ]  # fmt: skip
    data = [each for each in divided if each is not None]
    shared = {*data, *edges.before(data)}
    found, left = dict.fromkeys([*inverses, *quotients]), [divisor.producer()]
    while left:
        each = left.pop()
        if each is None or each in found or each in shared or not _is_computed(each):
            continue
        found[each] = None
        left += edges.predecessors.get(each, ())
        found |= dict.fromkeys(reader for reader in edges.successors.get(each, ()) if _is_computed(reader))
    order = {each: index for index, each in enumerate(edges.predecessors)}
    return sorted(found, key=order.__getitem__)


def _readers(node: ir.Node, edges: Reach) -> list[ir.Node]:
    """What computes with what ``node`` writes, behind what moves it."""
    found: list[ir.Node] = []
    for reader in edges.successors[node]:
        found += _readers(reader, edges) if is_standard(reader, *DATA_MOVEMENT) else [reader]
    return [each for each in found if _is_computed(each)]


def _is_computed(node: ir.Node) -> bool:
    """Whether ``node`` computes floats, element by element or along rows."""
    return not is_standard(node, *MULTIPLYING) and any(may_be_float(value) for value in node.outputs)
