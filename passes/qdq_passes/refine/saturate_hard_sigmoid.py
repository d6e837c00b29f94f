"""saturate-hard-sigmoid

h(x) = min(max(x/6 + 1/2, 0), 1) is constant outside of [-3, 3]. With n bits and position p = n - 3 a grid ends at
±2^(n-1)·2^-p = ±4, and what saturates there has the h that it had: h(x) of x rounded to 2^-p is within 2^-p/12 of h(x)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.activations import is_dpu_hard_sigmoid
from qdq_passes.graph.operators.qdq_ops import is_dequantize
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type
from qdq_passes.qdq.edit.pairs import insert_pairs
from qdq_passes.qdq.look.pairs import encoding_of
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types


@dataclass(frozen=True)
class SaturateHardSigmoid(Pass):
    """Give a HardSigmoid(1/6, 1/2) a pair of its own, within ±4, where its input is too coarse for a DPU and read by others too.

    The DPU wants its input at position 0 or above (`adjust-hard-sigmoid`); of x·h(x) with an x beyond ±127 that would cut off x.

    Graph: ``x → Q(2^2) → DQ → HardSigmoid, Mul`` → ``x → Q(2^2) → DQ → Mul, Q(2^-5) → DQ → HardSigmoid``.
    Requires: a constant scale 2^-p, zero point 0; it belongs before `refine-positions`.
    Keeps: inputs, outputs and their names; numerics bit-exact: what lies within ±4 on a grid of position 0 or below stays
    as it is, and all else has the same h.
    Skips: positions from 0 on; inputs that nothing else reads, which lose nothing when they move; other slopes and offsets.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "exact", why="h is constant beyond ±3, and multiples of 2^-p, p < 0, within ±4 are on the grid"
    )
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One by one; those that read one value share a pair."""
        namer, wanted = Namer(model), dict[ir.Value, list[tuple[ir.Node, int]]]()
        for node in nodes_of_types(model, self.select, "HardSigmoid"):
            source = node.inputs[0]
            if source is not None and is_dpu_hard_sigmoid(node) and _finer(source) is not None:
                wanted.setdefault(source, []).append((node, 0))
        for source, uses in wanted.items():
            finer = _finer(source)
            if finer is not None and len(uses) < len(source.uses()) + source.is_graph_output():
                yield from insert_pairs(model, source, finer, namer, uses=uses, domain=_domain_of(source))


def _finer(value: ir.Value) -> Encoding | None:
    """An encoding within ±4 of the type of ``value``'s, of which the position is below 0; None where it is none, or not."""
    node = value.producer()
    encoding = encoding_of(node) if node is not None and is_dequantize(node) else None
    position = None if encoding is None or encoding.shape or any(encoding.zero_point) else encoding.position
    if encoding is None or position is None or position[0] >= 0 or not is_integer_type(encoding.dtype):
        return None
    signed, bits = integer_format(encoding.dtype)
    return Encoding.per_tensor(encoding.dtype, 2.0 ** (3 - bits)) if signed and bits > 2 else None


def _domain_of(value: ir.Value) -> str:
    node = value.producer()
    return "" if node is None else node.domain
