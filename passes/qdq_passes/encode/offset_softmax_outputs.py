"""offset-softmax-outputs"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import is_standard, main_nodes
from qdq_passes.numerics.encoding import Encoding, integer_format
from qdq_passes.qdq.edit.reencode import Edit, check, reencode, settled, targets, why_not_editable
from qdq_passes.qdq.look.pairs import Pair
from qdq_passes.select.selectors import ALL, Selector, select_nodes

SIGNED = (ir.DataType.INT8, ir.DataType.INT16)


@dataclass(frozen=True)
class OffsetSoftmaxOutputs(Pass):
    """Give symmetric signed pairs on softmax outputs the whole of their type: scale 2^-bits, zero point −2^(bits−1).

    A probability is in [0, 1]: a symmetric signed grid spends half of its integers on negative numbers, and the Hexagon HTP
    computes such an output 2^(bits−1) steps too low, whatever the model says (measured, QNN SDK 2.51). 1 becomes 1 − 2^-bits.

    Graph: unchanged but for the parameters of the pairs.
    Requires: nothing.
    Keeps: names of inputs and outputs; values within half a step of 2^-bits, 1 within a step.
    Skips: pairs that have a zero point, are unsigned or not of 8 or 16 bits; scales computed at run time; integers that are
    read by something else than DequantizeLinear.

    Args:
        select: the Softmax nodes.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="another grid, twice as fine")
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Choose for all, then write."""
        wanted = select_nodes(model, self.select)
        outputs = {n.outputs[0] for n in main_nodes(model) if n in wanted and is_standard(n, "Softmax")}
        edits = []
        for target in targets(model, ALL):
            node, old = target.q if isinstance(target, Pair) else target.node, target.encoding
            if node is None or node.inputs[0] not in outputs or old is None or old.dtype not in SIGNED:
                continue
            if any(old.zero_point):
                continue
            bits = integer_format(old.dtype)[1]
            reason = why_not_editable(target, changes_type=False)
            if reason is not None:
                yield skip(target.tensor, reason)
                continue
            new = settled(target, Encoding.per_tensor(old.dtype, 2.0**-bits, -(1 << (bits - 1))))
            check(model, target, new)
            edits.append(Edit(target, old, new))
        yield from reencode(model, edits, Namer(model))
