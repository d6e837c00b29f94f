"""remove-qdq"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.analysis.qdq_pairs import Pair, is_named, qdq_pairs
from qdq_passes.analysis.uses import all_nodes, constant_array
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.edit import Namer, bypass, drop_unread, graph_of, new_constant, remove
from qdq_passes.core.select import ALL, Selector, select
from qdq_passes.errors import ModelError
from qdq_passes.numerics.quantize import dequantize


@dataclass(frozen=True)
class RemoveQdq(Pass):
    """Remove QDQ pairs, leaving the float value; stored integers (any type, per-axis, blocked) are dequantized.

    Graph: ``t → Q → DQ → A`` → ``t → A``; ``w_quantized → DQ → A`` → ``w → A`` with w = (q − zero_point)·scale.
    Requires: constant scales and zero points on stored integers.
    Keeps: names of inputs and outputs; activations are no longer rounded.
    Skips: pairs that ``select`` does not name; a DequantizeLinear that reads a graph input or computed integers; a
    QuantizeLinear whose integers feed an integer operator.

    Args:
        select: pairs, by their float value or by their Q or DQ node.
        keep_weights: leave pairs and stored integers of weights and biases.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="activations are no longer rounded to a grid")
    select: Selector = ALL
    keep_weights: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Bypass pair after pair, then drop what nobody reads."""
        hit = select(model, self.select)
        nodes, values = set(hit.nodes), set(hit.values)
        chosen = [pair for pair in qdq_pairs(model) if self.select.is_all or is_named(pair, nodes, values)]
        namer = Namer(model)
        for pair in chosen:
            if self.keep_weights and pair.kind != "activation":
                continue
            yield from _remove(pair, namer)
        if self.select.is_all and not self.keep_weights:
            for node in all_nodes(model):
                if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                    yield skip(node, "its integers come from or go to something else than a pair")


def _remove(pair: Pair, namer: Namer) -> Iterator[Change]:
    parameters = [*pair.dq.inputs, *(pair.q.inputs[1:] if pair.q is not None else [])]
    if pair.q is not None:
        source = pair.q.inputs[0]
        assert source is not None
        yield bypass(pair.dq, namer, "remove-qdq", source=source)
        if not pair.q.outputs[0].uses() and not pair.q.outputs[0].is_graph_output():
            yield from remove(pair.q, "remove-qdq")
    else:
        source = _dequantized(pair, namer)
        yield bypass(pair.dq, namer, "remove-qdq: dequantized", source=source)
    yield from drop_unread(parameters)


def _dequantized(pair: Pair, namer: Namer) -> ir.Value:
    """A float initializer with the values of the stored integers."""
    stored, encoding = pair.stored, pair.encoding
    integers = constant_array(stored)
    if stored is None or integers is None or encoding is None:
        raise ModelError(
            "scale or zero point is not constant", where=pair.dq.name, hint="fold-constants may make it so"
        )
    scale = constant_array(pair.dq.inputs[1])
    assert scale is not None
    wanted = pair.dq.attributes.get("output_dtype")  # since opset 23; 0 stands for the type of the scale
    dtype = ir.DataType(wanted.as_int()).numpy() if wanted is not None and wanted.as_int() else scale.dtype
    array = dequantize(integers, encoding, dtype)
    return new_constant(graph_of(pair.dq), namer, pair.tensor or "weight", array, [pair.dq])
