"""restore-relu

With zero point z = qmin the integers stand for [0, (qmax − qmin)·s]: Q saturates at 0, so Q(x) = Q(max(x, 0)) bit for bit.
Quantizers use that to leave a Relu out of the file; once the pair is removed, nothing clamps any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.edit import Namer
from qdq_passes.qdq.edit.clips import put_relu
from qdq_passes.qdq.look.pairs import is_named, qdq_pairs
from qdq_passes.qdq.look.value_ranges import is_clamped_at_zero
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class RestoreRelu(Pass):
    """Put a Relu where a zero point does its work, so that it is still there when the pair is removed.

    Graph: ``Conv → t → Q(z = qmin) → DQ`` → ``Conv → t_Relu_Input → Relu → t → Q(z = qmin) → DQ``.
    Requires: constant scales and zero points.
    Keeps: names of inputs and outputs; numerics bit-exact, as the Q saturates at 0 anyway.
    Skips: values that are never below 0 (behind a Relu, a Sigmoid, another such pair…); inputs of the graph, which were just
    calibrated on numbers that are not; encodings that reach below 0.

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
            source = pair.q.inputs[0]
            if source in made or is_clamped_at_zero(pair):
                yield put_relu(model, pair, namer, made)
