"""adjust-ranges"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.encode.edit.encoding_policy import Ranges, range_of
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import OBSERVED, Observed
from qdq_passes.graph.uses import is_standard, main_nodes

#: Operators behind which nothing is left of what their range leaves out.
CUTTING = ("Clip", "Relu")
#: Range of a Softmax, whatever was seen.
SOFTMAX_RANGE = Observed(0.0, 1.0)


@dataclass(frozen=True)
class AdjustRanges(Pass):
    """Narrow observed ranges to what readers make of them: before Relu and Clip to what comes out, behind Softmax to [0, 1].

    `annotate-encodings` takes the ranges from here. The reference looks at every node twice in the order of the graph, so that
    in ``Clip → Clip → Relu`` a tensor gets the range of the tensor two activations later (read in Quark 0.13).

    Graph: unchanged; values gain the annotation ``observed``.
    Requires: nothing.
    Keeps: everything; numerics bit-exact (what is inserted later depends on the ranges).
    Skips: the input of a Relu or Clip that is read elsewhere too, or is a graph output; an input or output without a range, or
    with a ready encoding; bodies of If and Loop.

    Args:
        ranges: tensor name → observed range or encoding; normally ``@ranges``.
        rounds: how often the nodes are looked at.
        softmax: outputs of Softmax have the range [0, 1].
        sigmoid_bits: outputs of Sigmoid and HardSigmoid have the range [0, 1 − 2^-bits]: in so many bits the scale 2^-bits and
            the zero point 0, as ExecuTorch's quantizer for Qualcomm has it; 0 leaves what was seen.
        reference: that an input is a graph output does not count, as in the reference, where the output is cut off.
    """

    keeps: ClassVar[Keeps] = EXACT
    ranges: Named | Ranges
    rounds: int = 2
    softmax: bool = True
    sigmoid_bits: int = 0
    reference: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Adjust round by round, in place, then annotate; where a run begins, earlier annotations do not count."""
        if self.rounds < 1:
            raise UsageError(f"{self.rounds} rounds", where=self.name(), hint="rounds=1 or more")
        if not 0 <= self.sigmoid_bits <= 32:
            raise UsageError(f"a grid of {self.sigmoid_bits} bits", where=self.name(), hint="sigmoid-bits=8 or 16")
        nodes, found = main_nodes(model), dict[ir.Value, tuple[Observed, str]]()
        for number in range(self.rounds):
            for node in nodes:
                source = self._source(node, found)
                if isinstance(source, tuple):
                    value, adjusted, because = source
                    found[value] = (adjusted, because)
                elif source is not None and number == 0:
                    yield skip(node, source)
        for value, (adjusted, because) in found.items():
            if OBSERVED.get(value) != adjusted:
                OBSERVED.set(value, adjusted)
                text = f"range {adjusted.low:.6g} to {adjusted.high:.6g}, {because}"
                yield Change("annotate", value.name or "", text)

    def _source(
        self, node: ir.Node, found: Mapping[ir.Value, tuple[Observed, str]]
    ) -> tuple[ir.Value, Observed, str] | str | None:
        """The value that ``node`` gives a range, with that range and its origin; or why it gives none; None if it never does."""
        bounded = self._bounded(node)
        if bounded is not None:
            output = node.outputs[0]
            return (
                f"{output.name} has no range" if self._range(output, found) is None else (output, bounded, node.op_type)
            )
        value = node.inputs[0] if node.inputs else None
        if value is None or not is_standard(node, *CUTTING):
            return None
        if len(value.uses()) != 1:
            return f"{value.name} has other readers"
        if value.is_graph_output() and not self.reference:
            return f"{value.name} is a graph output"
        before, behind = self._range(value, found), self._range(node.outputs[0], found)
        if before is None or behind is None:
            return f"{(value if before is None else node.outputs[0]).name} has no range"
        return value, behind, f"that of {node.outputs[0].name}"

    def _bounded(self, node: ir.Node) -> Observed | None:
        """The range that the operator of ``node`` has by itself, where it is to have it."""
        if self.softmax and is_standard(node, "Softmax"):
            return SOFTMAX_RANGE
        if self.sigmoid_bits and is_standard(node, "Sigmoid", "HardSigmoid"):
            return Observed(0.0, 1 - 2.0**-self.sigmoid_bits)
        return None

    def _range(self, value: ir.Value, found: Mapping[ir.Value, tuple[Observed, str]]) -> Observed | None:
        assert not isinstance(self.ranges, Named)
        if value in found:
            return found[value][0]
        seen = range_of(self.ranges, value.name or "")
        return Observed(*seen) if seen is not None else None
