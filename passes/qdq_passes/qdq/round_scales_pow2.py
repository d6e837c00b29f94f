"""round-scales-pow2"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.qdq_pairs import Pair, encoding_of, is_dequantize, is_named, qdq_pairs
from qdq_passes.analysis.uses import constant_array
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.edit import Namer, drop_unread, graph_of, new_constant
from qdq_passes.core.select import ALL, Selector, select
from qdq_passes.numerics import pow2
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.quantize import dequantize, quantize


@dataclass(frozen=True)
class RoundScalesPow2(Pass):
    """Round every scale to a power of two, 2^-p; stored integers are requantized from the values they stand for.

    Graph: unchanged but for scales and stored integers; parameters that pairs share are copied where only some are chosen.
    Requires: constant scales.
    Keeps: names of inputs and outputs, zero points.
    Skips: scales that are powers of two; scales computed at run time.

    Args:
        select: pairs, by their float value.
        nearest: round to the nearest power in log2 (may overflow the range by √2) instead of up.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the grid of every rounded pair changes")
    select: Selector = ALL
    nearest: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Round pair by pair."""
        hit = select(model, self.select)
        nodes, values = set(hit.nodes), set(hit.values)
        namer = Namer(model)
        for pair in qdq_pairs(model):
            if not self.select.is_all and not is_named(pair, nodes, values):
                continue
            old = encoding_of(pair.dq)
            reason = _why_not(old)
            if reason is not None or old is None:
                yield skip(pair.dq, reason or "")
            elif old.position is None:
                scale = tuple(pow2.round_scale(s, nearest=self.nearest) for s in old.scale)
                new = dataclasses.replace(old, scale=scale)
                if pair.q is None:
                    _requantize(pair, old, new, namer)
                for node in _sharing(pair):
                    _set_scale(node, new, namer)
                yield Change("edit", pair.tensor, f"scale {old.scale[0]:.6g} → 2^{-(new.position or (0,))[0]}")


def _why_not(encoding: Encoding | None) -> str | None:
    if encoding is None:
        return "its scale is not constant"
    if not is_integer_type(encoding.dtype):
        return f"{encoding.dtype.name.lower()} is no integer type"
    return None


def _sharing(pair: Pair) -> list[ir.Node]:
    """The nodes that must keep one encoding: the QuantizeLinear and every DequantizeLinear of its integers."""
    if pair.q is None:
        return [pair.dq]
    return [pair.q, *(user for user in pair.q.outputs[0].consumers() if is_dequantize(user))]


def _set_scale(node: ir.Node, encoding: Encoding, namer: Namer) -> None:
    old = node.inputs[1]
    assert old is not None
    array = constant_array(old)
    assert array is not None
    scale = np.array(encoding.scale, array.dtype).reshape(array.shape)
    node.replace_input_with(1, new_constant(graph_of(node), namer, old.name or "scale", scale, [node]))
    drop_unread([old])


def _requantize(pair: Pair, old: Encoding, new: Encoding, namer: Namer) -> None:
    stored = pair.stored
    integers = constant_array(stored)
    assert stored is not None
    assert integers is not None
    tensor = ir.tensor(quantize(dequantize(integers, old), new), dtype=new.dtype)
    pair.dq.replace_input_with(0, new_constant(graph_of(pair.dq), namer, stored.name or "weight", tensor, [pair.dq]))
    drop_unread([stored])
