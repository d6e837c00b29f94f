"""isolate-concats

The output of a Concat has one scale s. A branch that holds values up to m has m/s levels on either side of 0 there: scores up
to 1 beside boxes up to 640 have 1·127/640 = 0.2 of 8 bits, so all of them are 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.encode.edit.encoding_policy import Ranges, range_of
from qdq_passes.encode.isolate_operators import leave_float
from qdq_passes.graph.annotate import OBSERVED, PRECISION
from qdq_passes.graph.operators.macs import MULTIPLYING
from qdq_passes.graph.uses import is_standard, label, main_nodes, reach
from qdq_passes.numerics.encoding import encoding_of_range, parse_dtype
from qdq_passes.select.selectors import ALL, NONE, Selector, select_nodes

#: Why a Concat does not stay float.
BEHIND = "layers behind it read one scale too"


@dataclass(frozen=True)
class IsolateConcats(Pass):
    """Leave a Concat float, and the head behind it, where the one scale of its output leaves a branch hardly a level.

    A detector joins boxes in pixels and scores up to 1: in 8 bits no score is left. With the Concat float, and all behind it,
    each branch keeps the scale that its own layer gives it.

    Graph: unchanged; nodes gain the annotation ``precision``, which `annotate-encodings` heeds, and a note of why in their
    metadata, which `analyze` reads.
    Requires: nothing.
    Keeps: everything; numerics bit-exact.
    Skips: a Concat behind which layers multiply and accumulate (their input has one scale too), unless ``layers``; one of
    which the output or all branches but one have no range, or are 0 throughout; nodes that have a precision.

    Args:
        ranges: tensor name → observed range; normally ``@ranges``.
        dtype: storage type of activations.
        symmetric: whether their zero point is 0.
        scales: ``pow2`` where scales are powers of two.
        levels: fewest levels of a branch, on either side of 0.
        layers: leave the next layers behind the Concat float with it, and nothing behind those.
        exclude: nodes that are not quantized anyhow.
        only: the only ones that are.
    """

    keeps: ClassVar[Keeps] = EXACT
    ranges: Named | Ranges
    dtype: str = "int8"
    symmetric: bool = True
    scales: Literal["pow2", "any"] = "pow2"
    levels: float = 2.0
    layers: bool = False
    exclude: Selector = NONE
    only: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Concat by Concat, in the order of the graph."""
        nodes = main_nodes(model)
        edges, wanted = reach(nodes), select_nodes(model, self.only) - select_nodes(model, self.exclude)
        for node in nodes:
            is_concat = is_standard(node, "Concat") and node in wanted and PRECISION.get(node) is None
            starved = self._starved(node) if is_concat else ""
            if not starved:
                continue
            behind = edges.after([node])
            layers = {after for after in behind if is_standard(after, *MULTIPLYING)}
            if layers and not self.layers:
                yield skip(node, f"{starved}; {BEHIND}")
                continue
            behind -= edges.after(layers)
            yield from leave_float(
                [n for n in nodes if n is node or n in behind], f"{starved} in the one scale of {label(node)}"
            )

    def _starved(self, node: ir.Node) -> str:
        """The branch that has too few levels in the output of ``node``, in words; ``""`` where none has."""
        output = self._range(node.outputs[0])
        found = {value.name: reach for value in node.inputs if value is not None and (reach := self._reach(value))}
        if output is None or len(found) < 2:
            return ""
        scale = encoding_of_range(
            *output, dtype=parse_dtype(self.dtype), symmetric=self.symmetric, power_of_two=self.scales == "pow2"
        ).scale[0]
        name, least = min(found.items(), key=lambda item: item[1])
        largest = max(found, key=lambda key: found[key])
        if least >= self.levels * scale:
            return ""
        return f"{name} (up to {least:.3g}) would have {least / scale:.2g} levels beside {largest} (up to {found[largest]:.3g})"

    def _reach(self, value: ir.Value) -> float:
        """Largest absolute value that was seen of ``value``; 0 where nothing was."""
        seen = self._range(value)
        return 0.0 if seen is None else max(map(abs, seen))

    def _range(self, value: ir.Value) -> tuple[float, float] | None:
        assert not isinstance(self.ranges, Named)
        adjusted = OBSERVED.get(value)
        return (adjusted.low, adjusted.high) if adjusted is not None else range_of(self.ranges, value.name or "")
