"""restore-relu

With zero point z = qmin the integers stand for [0, (qmax − qmin)·s]: Q saturates at 0, so Q(x) = Q(max(x, 0)) bit for bit.
Quantizers use that to leave a Relu out of the file; once the pair is removed, nothing clamps any more. A Clip(0, b) goes
likewise, and where calibration saw values at b, the range ends there: Q(x) = Q(clip(x, 0, b))."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.edit import Namer
from qdq_passes.qdq.edit.clips import put_relu
from qdq_passes.qdq.look.pairs import encoding_of, half_pairs, is_named, qdq_pairs
from qdq_passes.qdq.look.value_ranges import begins_at_zero, is_clamped_at_zero, whole_bound
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class RestoreRelu(Pass):
    """Put a Relu where a zero point does its work, so that it is still there when the pair is removed.

    Graph: ``Conv → t → Q(z = qmin) → DQ`` → ``Conv → t_Relu_Input → Relu → t → Q(z = qmin) → DQ``; behind a Conv, Add… whose
    range ends at a whole number b, as that of a Relu6 does, a ``Clip(0, b)``; before a Q that writes an integer output likewise.
    Requires: constant scales and zero points.
    Keeps: names of inputs and outputs; numerics bit-exact, as the Q saturates at 0 and at b anyway.
    Skips: values that are never below 0 (behind a Relu, a Sigmoid, another such pair, sums and products of such…), or by less
    than half a step (behind a Gelu); inputs of the graph, which were just calibrated on numbers that are not; encodings that
    reach below 0. Bounds that are not whole, or that calibration did not reach, cannot be told: a Relu stands for those.

    Args:
        select: pairs, by their float value.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One Relu per value, for all its pairs."""
        hit = select(model, self.select)
        nodes, values = set(hit.nodes), set(hit.values)
        namer, made = Namer(model), dict[ir.Value, ir.Value]()
        for pair in qdq_pairs(model):
            if not (self.select.is_all or is_named(pair, nodes, values)) or pair.q is None or pair.q is pair.dq:
                continue
            if pair.q.inputs[0] in made or is_clamped_at_zero(pair):
                yield _restored(model, pair.q, namer, made)
        for half in half_pairs(model):
            encoding, source = half.encoding, half.node.inputs[0]
            if not (half.is_q and (self.select.is_all or half.node in nodes or source in values)) or encoding is None:
                continue
            if source in made or begins_at_zero(source, encoding):
                yield _restored(model, half.node, namer, made)


def _restored(model: ir.Model, q: ir.Node, namer: Namer, made: dict[ir.Value, ir.Value]) -> Change:
    encoding = encoding_of(q)
    return put_relu(model, q, namer, made, None if encoding is None else whole_bound(q.inputs[0], encoding))
