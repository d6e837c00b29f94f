"""convert-bias"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unread
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.uses import all_nodes, constant_array, label, readers
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.encoding import FLOAT32_TINY, SMALLEST_SCALE, Encoding
from qdq_passes.numerics.quantize import quantize
from qdq_passes.numerics.reencode import Rule, cover_values, rounded_to
from qdq_passes.qdq.edit.biases import drop_pair, fits, store_bias, values_of
from qdq_passes.qdq.edit.checks import check_encoding
from qdq_passes.qdq.edit.pairs import Use, fresh_base, members, requantize, write_encodings
from qdq_passes.qdq.look.biases import bias_uses, coupled_biases, dequantizer_of, float_type_of, product_at
from qdq_passes.qdq.look.grids import change_in_words, grid_text
from qdq_passes.qdq.look.pairs import Pair, encoding_of, is_dequantize, is_named, pair_of
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class ConvertBias(Pass):
    """Store biases as int32 at the scale s_x·s_w of their layer, or as int8 with a scale of their own.

    Y = Σ W·X + B with X = s_x·(q_x − z_x), W = s_w·q_w: at the scale s_x·s_w and zero point 0 a bias is added to the sum of
    integer products as it is. q_b = round_half_even(B/(s_x·s_w)), so that |ΔB| ≤ s_x·s_w/2.

    Graph: ``b → layer``, ``b → Q → DQ → layer`` or ``b_quantized → DQ → layer`` → ``b_quantized → DQ → layer``; a bias that
    layers of different products share is copied for each.
    Requires: opset 10; 13 for a scale per channel.
    Keeps: names of inputs and outputs; biases within half a step.
    Skips: layers whose input (int32) or weight has no constant encoding, or has scales that are not one per output channel;
    biases that are computed, or that int32 does not reach; products that the float type does not hold.

    Args:
        to: ``int32``, or ``int8``: per-tensor, symmetric, a power of two where the scale of the weight is one.
        select: biases, by their float value, their Q or DQ, or the layer that reads them.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="biases are rounded to another grid")
    to: Literal["int32", "int8"] = "int32"
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Choose for all layers, then write bias by bias."""
        hit = select(model, self.select)
        nodes, values = set(hit.nodes), set(hit.values)
        settled = {(one.node, one.index) for one in coupled_biases(all_nodes(model))} if self.to == "int32" else set()
        work: dict[ir.Value, dict[Encoding, list[Use]]] = {}
        for node, index in bias_uses(all_nodes(model)):
            source = node.inputs[index]
            assert source is not None
            pair = _pair_behind(source)
            is_chosen = source in values or (pair is not None and is_named(pair, nodes, values))
            if not (self.select.is_all or is_chosen) or (node, index) in settled:
                continue
            target = self._target(node, index, pair)
            if isinstance(target, str):
                yield skip(source, target)
            elif pair is None or pair.encoding != target:
                _check(model, (node, index), source, target)
                work.setdefault(source, {}).setdefault(target, []).append((node, index))
        namer = Namer(model)
        for source, groups in work.items():
            yield from _write(source, groups, namer)

    def _target(self, node: ir.Node, index: int, pair: Pair | None) -> Encoding | str:
        """The encoding of the bias that ``node`` reads as input ``index``, or why it has none."""
        source = node.inputs[index]
        data = _data(source, pair)
        if data is None:
            return "is computed, not stored"
        if not np.isfinite(data).all():
            return "holds values that are not finite"
        if self.to == "int8":
            return _own_encoding(node, index, pair, data)
        target = product_at(node, index)
        if isinstance(target, Encoding) and not fits(data, target):
            return f"is beyond what int32 holds at s_x·s_w of {label(node)}"
        return target


def _own_encoding(node: ir.Node, index: int, pair: Pair | None, data: Reals) -> Encoding | str:
    """An int8 encoding that covers the bias; what has one already keeps it."""
    of_bias = pair.encoding if pair is not None else None
    if of_bias is not None and of_bias.dtype == ir.DataType.INT8:
        return of_bias
    dq = dequantizer_of(node.inputs[1])
    of_weight = encoding_of(dq) if dq is not None else None
    if of_weight is None:
        return f"the weight of {label(node)} has no constant encoding"
    float_type = float_type_of(node, index)
    rule = Rule(
        dtype=ir.DataType.INT8,
        symmetric=True,
        power_of_two=of_weight.position is not None,
        smallest=SMALLEST_SCALE.get(float_type, FLOAT32_TINY),
    )
    return rounded_to(cover_values(data, None, rule), float_type.numpy())


def _pair_behind(source: ir.Value) -> Pair | None:
    dq = dequantizer_of(source)
    return pair_of(dq) if dq is not None else None


def _data(source: ir.Value | None, pair: Pair | None) -> Reals | None:
    if pair is not None:
        return values_of(pair)
    array = constant_array(source)
    return None if array is None or array.dtype.kind not in "fV" else array.astype(np.float64)


def _check(model: ir.Model, use: Use, source: ir.Value, encoding: Encoding) -> None:
    tensor = ir.Value(name=source.name, type=ir.TensorType(float_type_of(*use)), shape=source.shape)
    check_encoding(tensor, encoding, opset_at(model, use[0]), stored=True, domain=_domain(use[0]))


def _domain(node: ir.Node) -> str:
    """Whose DequantizeLinear a new bias gets: that of the weight, or the standard one beside a FixNeuron."""
    dq = dequantizer_of(node.inputs[1])
    return dq.domain if dq is not None and is_dequantize(dq) else ""


def _write(source: ir.Value, groups: dict[Encoding, list[Use]], namer: Namer) -> Iterator[Change]:
    """Where all readers agree and integers are stored already, in place; else a copy for each group of readers."""
    pair, everyone = _pair_behind(source), set(readers(source))
    data = _data(source, pair)
    assert data is not None
    base = pair.tensor if pair is not None else source.name or "bias"
    if pair is not None and pair.q is None and len(groups) == 1 and not source.is_graph_output():
        new, uses = next(iter(groups.items()))
        old = pair.encoding
        if set(uses) == everyone and old is not None:
            requantize(pair, new, namer, integers=quantize(data, new))
            write_encodings(dict.fromkeys(members(pair), new), namer)
            yield Change("edit", base, change_in_words(old, new))
            return
    for new, uses in groups.items():
        name = fresh_base(namer, base)
        store_bias(source, data, new, uses, namer, base=name, domain=_domain(uses[0][0]))
        layers = ", ".join(dict.fromkeys(label(node) for node, _ in uses))
        yield Change("insert", name, f"{grid_text(new)} for {layers}")
    yield from drop_pair(pair) if pair is not None else drop_unread([source])
