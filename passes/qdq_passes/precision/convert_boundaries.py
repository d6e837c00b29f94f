"""convert-boundaries"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import all_nodes
from qdq_passes.numerics.encoding import is_integer_type, parse_dtype
from qdq_passes.precision.edit.conversions import Conversions
from qdq_passes.precision.look.boundaries import Input, Width, quantized_inputs, why_not_operator, width_of_outputs
from qdq_passes.qdq.edit.biases import drop_pair_of, follow_biases
from qdq_passes.qdq.look.biases import coupled_biases
from qdq_passes.qdq.look.pairs import encoding_of, half_pairs, is_dequantize, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select_nodes


@dataclass(frozen=True)
class ConvertBoundaries(Pass):
    """Where an operator of one width reads a tensor of another, insert the converting pair: 8-bit integers become 16-bit ones.

    The width of an operator is that of the pair on its output (behind a Relu, LeakyRelu, PRelu or Clip that alone reads it);
    without one, the widest of the activations it reads. A conversion has the encoding of its tensor in the other type: exact when
    it widens. It stands once per tensor and type, for all its readers, and is listed as ``t_converted``.

    Graph: ``t → Q8 → DQ8 → A`` → ``t → Q8 → DQ8 → Q16 → DQ16 → A``.
    Requires: an opset (or domain) whose QuantizeLinear knows both types.
    Keeps: names of inputs and outputs; numerics bit-exact where it widens; int32 biases at s_x·s_w follow.
    Skips: operators that only move data, nodes with bodies, outputs of several widths; types that are no integers; scales
    computed at run time; a FixNeuron.

    Args:
        select: the operators whose inputs are converted.
        dtype: type that every activation they read shall have, instead of the width of what they write.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="an input that gets narrower is rounded; wider ones stay exact")
    select: Selector = ALL
    dtype: str = ""

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Refuse first, then operator by operator; biases follow at the end."""
        wanted, forced = select_nodes(model, self.select), parse_dtype(self.dtype) if self.dtype else None
        names = {pair.dq: pair.tensor for pair in qdq_pairs(model)} | {h.node: h.tensor for h in half_pairs(model)}
        conversions, coupled = Conversions(model, Namer(model), names), coupled_biases(all_nodes(model))
        work: list[tuple[ir.Node, Input, Width]] = []
        for node in all_nodes(model):
            inputs = quantized_inputs(node) if node in wanted else []
            reason = why_not_operator(node)
            width = _width(node, inputs, forced) if inputs and reason is None else None
            if inputs and (isinstance(width, str) or (reason is not None and forced is not None)):
                yield skip(node, width if isinstance(width, str) else reason or "")
            elif isinstance(width, Width):
                found = [(one, _why_not(one, width)) for one in inputs if self._differs(one, width)]
                yield from (skip(node, reason) for _, reason in found if reason is not None)
                work += [(node, one, width) for one, reason in found if reason is None]
        for _, one, width in work:
            conversions.check(one, width)
        for node, one, width in work:
            yield from conversions.connect(node, one, width)
            yield from drop_pair_of(one.dq)
        yield from follow_biases(coupled, conversions.made, conversions.namer)

    def _differs(self, one: Input, width: Width) -> bool:
        return one.dtype != width.dtype and (self.dtype != "" or one.dtype.bitwidth != width.dtype.bitwidth)


def _width(node: ir.Node, inputs: list[Input], forced: ir.DataType | None) -> Width | str | None:
    """What ``node`` shall read, why that cannot be told, or None when all its inputs agree and nothing else is asked."""
    if forced is not None:
        return Width(forced, "")
    written = width_of_outputs(node)
    if written is not None:
        return written
    widest = max(inputs, key=lambda one: one.dtype.bitwidth)
    return Width(widest.dtype, widest.dq.domain)


def _why_not(one: Input, width: Width) -> str | None:
    tensor = one.dq.outputs[0].name
    for dtype in (one.dtype, width.dtype):
        if not is_integer_type(dtype):
            return f"{tensor} is not converted, {dtype.name.lower()} is no integer type"
    if not is_dequantize(one.dq):
        return f"{tensor} is not converted behind a FixNeuron; run convert-qdq-domain{{to=onnx}} first"
    return None if encoding_of(one.dq) is not None else f"{tensor} is not converted, its scale is not constant"
