"""round-scales-pow2"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.analysis.qdq_pairs import Pair, encoding_of, is_dequantize, is_named, qdq_pairs
from qdq_passes.analysis.uses import constant_array, readers
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.edit import Namer, drop_unread, graph_of, new_constant, set_constant
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
        """Choose first, then write: a scale that only chosen nodes read is changed where it is."""
        hit = select(model, self.select)
        nodes, values = set(hit.nodes), set(hit.values)
        namer = Namer(model)
        chosen: dict[ir.Node, Encoding] = {}
        for pair in qdq_pairs(model):
            if pair.dq in chosen or not (self.select.is_all or is_named(pair, nodes, values)):
                continue
            old = encoding_of(pair.dq)
            reason = _why_not(old)
            if reason is not None or old is None:
                yield skip(pair.dq, reason or "")
            elif old.position is None:
                scale = tuple(pow2.round_scale(s, nearest=self.nearest) for s in old.scale)
                new = dataclasses.replace(old, scale=scale)
                chosen |= dict.fromkeys(_sharing(pair), new)
                if pair.q is None:
                    _requantize(pair, old, new, namer)
                yield Change("edit", pair.tensor, f"scale {old.scale[0]:.6g} → 2^{-(new.position or (0,))[0]}")
        for value in dict.fromkeys(node.inputs[1] for node in chosen):
            if value is not None:
                _set_scale(value, [n for n in chosen if n.inputs[1] is value], chosen, namer)


def _why_not(encoding: Encoding | None) -> str | None:
    if encoding is None:
        return "its scale is not constant"
    if not all(math.isfinite(s) and s > 0 for s in encoding.scale):
        return f"its scale {min(encoding.scale):g} is not positive and finite"
    if not is_integer_type(encoding.dtype):
        return f"{encoding.dtype.name.lower()} is no integer type"
    return None


def _sharing(pair: Pair) -> list[ir.Node]:
    """The nodes that must keep one encoding: the QuantizeLinear and every DequantizeLinear of its integers."""
    if pair.q is None:
        return [pair.dq]
    return [pair.q, *(user for user in pair.q.outputs[0].consumers() if is_dequantize(user))]


def _set_scale(value: ir.Value, nodes: list[ir.Node], encodings: dict[ir.Node, Encoding], namer: Namer) -> None:
    """Give ``nodes``, which read the scale ``value``, their new one: in place, or one copy beside it for all of them."""
    array = constant_array(value)
    assert array is not None
    scale = np.array(encodings[nodes[0]].scale, array.dtype).reshape(array.shape)
    _write(value, scale, [(node, 1) for node in nodes], namer)


def _requantize(pair: Pair, old: Encoding, new: Encoding, namer: Namer) -> None:
    integers = constant_array(pair.stored)
    assert pair.stored is not None
    assert integers is not None
    tensor = ir.tensor(quantize(dequantize(integers, old), new), dtype=new.dtype)
    _write(pair.stored, tensor, [(pair.dq, 0)], namer)


def _write(
    value: ir.Value, data: npt.NDArray[Any] | ir.TensorProtocol, inputs: list[tuple[ir.Node, int]], namer: Namer
) -> None:
    """New data for the constant ``value`` as far as ``inputs`` read it."""
    if value.const_value is not None and not value.is_graph_output() and set(readers(value)) <= set(inputs):
        set_constant(value, data)
        return
    copy = new_constant(graph_of(inputs[0][0]), namer, value.name or "constant", data, [inputs[0][0]])
    for node, index in inputs:
        node.replace_input_with(index, copy)
    drop_unread([value])
