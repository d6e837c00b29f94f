"""round-clip-bounds"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.encode.edit.encoding_policy import Ranges
from qdq_passes.encode.look.quantized import Operators, operators_of
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.activations import BOUNDS, Bound, clip_bound, clip_bounds
from qdq_passes.graph.uses import constant_array, label
from qdq_passes.legalize.edit.replacement_prices import Numbers, replacement_price
from qdq_passes.numerics.dpu import CLIP_RANGE
from qdq_passes.qdq.edit.pairs import write_constant
from qdq_passes.select.selectors import ALL, Selector

Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class RoundClipBounds(Pass):
    """Round the bounds of every Clip to integers within −128 … 127, halves to the even one.

    Graph: ``Clip(x, -0.3, 200.0)`` → ``Clip(x, 0.0, 127.0)``; a bound that others read too is copied.
    Requires: nothing.
    Keeps: inputs, outputs and their names; bounds that are not given stay so.
    Skips: bounds that are computed; a Clip of integers; operators that are not quantized.

    Args:
        select: the operators.
        operators: ``quantized`` changes those with a QDQ pair at their input or output, ``all`` every one.
        ranges: what calibration saw, for the price.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="values between an old and a new bound are cut off or let through")
    select: Selector = ALL
    operators: Operators = "quantized"
    ranges: Named | Ranges | None = None

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Attributes before opset 11, inputs since."""
        nodes, skips = operators_of(model, self.select, self.operators, "Clip")
        yield from skips
        namer = Namer(model)
        for node in nodes:
            before, words = clip_bounds(node), []
            for which in BOUNDS:
                old = clip_bound(node, which)
                if isinstance(old, str | int):
                    yield skip(node, f"its {which} {old if isinstance(old, str) else 'is an integer'}")
                elif old is not None and (new := float(np.clip(np.round(old), *CLIP_RANGE)) + 0.0) != old:
                    _write(node, which, new, namer)
                    words.append(f"{which} {old:g} → {new:g}")
            if words:
                yield Change("edit", label(node), ", ".join(words) + self._price(node, before))

    def _price(self, node: ir.Node, old: Bounds) -> str:
        assert not isinstance(self.ranges, Named)
        new = clip_bounds(node)
        found = replacement_price(node.inputs[0], self.ranges, lambda x: _clip(x, old), lambda x: _clip(x, new))
        return "" if found is None else f"; {found}"


def _write(node: ir.Node, which: Bound, bound: float, namer: Namer) -> None:
    if which in node.attributes:
        node.attributes[which] = ir.AttrFloat32(which, bound)
        return
    index = 1 + BOUNDS.index(which)
    value, array = node.inputs[index], constant_array(node.inputs[index])
    assert value is not None
    assert array is not None
    write_constant(value, np.full(array.shape, bound, array.dtype), [(node, index)], namer)


def _clip(x: Numbers, bounds: Bounds) -> Numbers:
    low, high = bounds
    return np.clip(x, -math.inf if low is None else low, math.inf if high is None else high)
