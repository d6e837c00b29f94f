"""round-scales-pow2"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.numerics import pow2
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.qdq.edit.reencode import Edit, reencode, settled, targets, why_not_editable
from qdq_passes.qdq.look.pairs import Pair
from qdq_passes.select.selectors import ALL, Selector


@dataclass(frozen=True)
class RoundScalesPow2(Pass):
    """Round every scale to a power of two, 2^-p; stored integers are requantized from the values they stand for.

    Graph: unchanged but for scales and stored integers; parameters that pairs share are copied where only some are chosen.
    Requires: constant scales.
    Keeps: names of inputs and outputs, zero points; int32 biases at s_x·s_w follow the rounded product.
    Skips: scales that are powers of two; scales computed at run time; integers that something else than DequantizeLinear reads.

    Args:
        select: pairs, by their float value.
        nearest: round to the nearest power in log2 (may overflow the range by √2) instead of up.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the grid of every rounded pair changes")
    select: Selector = ALL
    nearest: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Choose first, then write: a scale that only chosen nodes read is changed where it is."""
        edits = []
        for pair in targets(model, self.select):
            if not isinstance(pair, Pair):
                continue
            old = pair.encoding
            reason = _why_not(pair, old)
            if reason is not None or old is None:
                yield skip(pair.dq, reason or "")
            elif old.position is None:
                scale = tuple(pow2.round_scale(s, nearest=self.nearest) for s in old.scale)
                new = settled(pair, dataclasses.replace(old, scale=scale))
                because = f"scale {old.scale[0]:.6g} → 2^{-(new.position or (0,))[0]}"
                edits.append(Edit(pair, old, new, because))
        yield from reencode(model, edits, Namer(model))


def _why_not(pair: Pair, encoding: Encoding | None) -> str | None:
    if pair.q is pair.dq:
        return "is a FixNeuron, its scale is a power of two"
    if encoding is None:
        return "its scale is not constant"
    if not all(math.isfinite(s) and s > 0 for s in encoding.scale):
        return f"its scale {min(encoding.scale):g} is not positive and finite"
    if not is_integer_type(encoding.dtype):
        return f"{encoding.dtype.name.lower()} is no integer type"
    return why_not_editable(pair, changes_type=False)
