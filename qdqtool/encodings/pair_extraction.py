"""Take the pairs out of a model: the float model without them, and the tensors that had them, with all that is special."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.operators.qdq_ops import OPERATORS, is_qdq
from qdq_passes.graph.uses import all_nodes, constant_array, label
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import quantize
from qdq_passes.qdq.edit.pairs import can_hand_over
from qdq_passes.qdq.look.pairs import Half, half_pairs, qdq_pairs
from qdq_passes.qdq.remove_qdq import RemoveQdq

from qdqtool.encodings.entries import Lpbq
from qdqtool.encodings.hints import PairHint, TensorHint
from qdqtool.encodings.lpbq import fold_scales
from qdqtool.encodings.pair_records import PairRecord, is_end, record_of_half, record_of_pair

#: Operators that quantize without a pair, by the start of their names.
WITHOUT_PAIR = ("DynamicQuantizeLinear", "MatMulNBits", "QLinear", "QGemm", "ConvInteger", "MatMulInteger")


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """A tensor that has pairs.

    Args:
        value: the tensor in the float model.
        encoding: its encoding.
        lpbq: the factors of its scales, where the model computes them from such.
        second: the encoding of pairs behind the first pair, None without.
        second_readers: names of the nodes that read the second; None for all readers.
        hint: what is special about its pairs; None where they are those that `insert-qdq` makes of the encoding.
    """

    value: ir.Value
    encoding: Encoding
    lpbq: Lpbq | None
    second: Encoding | None
    second_readers: tuple[str, ...] | None
    hint: TensorHint | None


@dataclass(frozen=True, kw_only=True)
class ExtractedPairs:
    """What `extract_pairs` took out of a model.

    Args:
        tensors: tensors that had pairs, in the order of the file.
        left: (node, reason) of the quantizing nodes that are still there.
        notes: what the float model with its encodings does not tell.
    """

    tensors: tuple[QuantizedTensor, ...]
    left: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def extract_pairs(model: ir.Model) -> ExtractedPairs:
    """Take every pair out of ``model``, in place; what is left is the float model.

    Raises:
        UnsupportedError: something has no name in an encodings file: a pair in a local function, two values of one name, two
            encodings on one tensor.
        ModelError: a Q and its DQ differ, or a scale is computed at run time.
    """
    _refuse_functions(model)
    factors = fold_scales(model)
    pairs = qdq_pairs(model)
    by_output = {pair.output: pair for pair in pairs}
    quantizers = dict.fromkeys(pair.q for pair in pairs if pair.q is not None and pair.q is not pair.dq)
    records = [record_of_pair(pair, by_output, quantizers, factors) for pair in pairs]
    records += [record_of_half(half) for half in half_pairs(model) if is_end(half, model)]
    ends = [
        Half(q.inputs[0].name or "", q, True) for q in quantizers if q.inputs[0] is not None and _is_result(q, model)
    ]
    records += [record_of_half(half) for half in ends]
    reasons = {change.where: change.because for change in RemoveQdq(float_io=True)(model) if change.is_skip}
    by_dq: dict[ir.Node | None, PairRecord] = {one.nodes[1]: one for one in records if one.nodes[1] is not None}
    groups: dict[ir.Value, list[PairRecord]] = {}
    for one in records:
        root = _root(one, by_dq)
        if root is not None and all(node is None or node.graph is None for node in one.nodes):
            groups.setdefault(root, []).append(one)
    _refuse_names(model, groups)
    fixed = [value.name for value, members in groups.items() if any(one.is_one_node for one in members)]
    return ExtractedPairs(
        tensors=tuple(_quantized_tensor(value, members, by_dq) for value, members in groups.items()),
        left=tuple(_left(model, reasons)),
        notes=tuple(f"{name}: its FixNeuron comes back as a QDQ pair" for name in fixed),
    )


def _is_result(q: ir.Node, model: ir.Model) -> bool:
    """Whether the integers of ``q``, which a DequantizeLinear reads, are an output of the main graph besides."""
    return q.outputs[0].graph is model.graph and q.outputs[0].is_graph_output()


def _refuse_functions(model: ir.Model) -> None:
    for function in model.functions.values():
        for node in function.all_nodes():
            if is_qdq(node):
                raise UnsupportedError(
                    f"stands in the local function {function.name}, whose tensors have no names of their own",
                    where=node.name,
                    hint="run inline-functions first",
                )


def _refuse_names(model: ir.Model, values: Iterable[ir.Value]) -> None:
    count = Counter(
        value.name
        for graph in model.graphs()
        for value in {*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)}
    )
    for value in values:
        if count[value.name] > 1:
            raise UnsupportedError(
                f"{count[value.name]} values bear this name, in different bodies", where=value.name, hint="rename one"
            )


def _root(one: PairRecord, by_dq: Mapping[ir.Node | None, PairRecord]) -> ir.Value | None:
    """The float value that the pair stood on, in the float model; None when nobody reads it."""
    while one.parent is not None:
        one = by_dq[one.parent]
    if one.source is not None:
        return one.source
    for node, index in one.uses:
        return node.inputs[index]
    for graph, index in one.outputs:
        value = graph.outputs[index]
        producer = value.producer()
        return producer.inputs[0] if producer is not None and producer.op_type == "Identity" else value
    return None


def _left(model: ir.Model, reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    names = {name for pair in OPERATORS.values() for name in pair}
    found = []
    for node in all_nodes(model):
        name = label(node)
        if node.op_type in names:
            found.append((name, reasons.get(name, "is half of a pair")))
        elif node.op_type.startswith(WITHOUT_PAIR):
            found.append((name, f"{node.op_type} is no QDQ pair"))
    return found


def _quantized_tensor(
    value: ir.Value, members: list[PairRecord], by_dq: Mapping[ir.Node | None, PairRecord]
) -> QuantizedTensor:
    firsts = [one for one in members if one.parent is None]
    seconds = [one for one in members if one.parent is not None]
    if any(by_dq[one.parent].parent is not None for one in seconds):
        raise UnsupportedError("is quantized three times in a row", where=value.name, hint="qdq fold makes it fewer")
    for group, words in ((firsts, "two encodings"), (seconds, "two second encodings")):
        if len({one.encoding for one in group}) > 1:
            raise UnsupportedError(
                f"has {words}, and encodings files hold one per tensor",
                where=value.name,
                hint="qdq share makes them one",
            )
    first = firsts[0]
    everybody = bool(seconds) and all(not one.uses and not one.outputs for one in firsts)
    readers = dict.fromkeys(node.name or "" for one in seconds for node, _ in one.uses)
    return QuantizedTensor(
        value=value,
        encoding=first.encoding,
        lpbq=first.lpbq,
        second=seconds[0].encoding if seconds else None,
        second_readers=None if everybody else tuple(readers),
        hint=None if any(one.is_one_node for one in members) else _hint(value, members, by_dq),
    )


def _hint(value: ir.Value, members: list[PairRecord], by_dq: Mapping[ir.Node | None, PairRecord]) -> TensorHint:
    first = next(one for one in members if one.parent is None)
    pairs = _unlisted(value, tuple(_pair_hint(value, one, by_dq) for one in members))
    return TensorHint(
        pairs=pairs,
        ranks=first.ranks,
        stored=first.stored,
        integers=_unlike(value, first),
        source=first.source_name if any(pair.output for pair in pairs) and not first.stored else "",
    )


def _pair_hint(value: ir.Value, one: PairRecord, by_dq: Mapping[ir.Node | None, PairRecord]) -> PairHint:
    readers = [(_first_output(node), index) for node, index in one.uses]
    is_output = False
    for graph, index in one.outputs:
        if graph.outputs[index] is value:
            is_output = True
        else:
            readers.append((graph.outputs[index].name or "", 0))
    parent = by_dq[one.parent].dq if one.parent is not None else None
    on = parent.name if parent is not None else ""
    return PairHint(q=one.q, dq=one.dq, readers=tuple(readers), on=on, output=is_output)


def _first_output(node: ir.Node) -> str:
    return next((value.name for value in node.outputs if value.name), "")


def _unlisted(value: ir.Value, pairs: tuple[PairHint, ...]) -> tuple[PairHint, ...]:
    """A single pair that serves every reader needs no list of them."""
    everybody = {(_first_output(use.node), use.idx) for use in value.uses()}
    if len(pairs) == 1 and set(pairs[0].readers or ()) == everybody and pairs[0].output == can_hand_over(value):
        return (PairHint(q=pairs[0].q, dq=pairs[0].dq, output=pairs[0].output),)
    return pairs


def _unlike(value: ir.Value, one: PairRecord) -> tuple[tuple[int, int], ...]:
    """(flat index, integer) of the stored integers that quantizing the float values does not give: float32 holds 24 bits."""
    array = constant_array(value)
    if one.integers is None or array is None:
        return ()
    stored = one.integers.numpy().reshape(-1)
    again = quantize(array, one.encoding).reshape(-1)
    differing = np.flatnonzero(stored.astype(np.int64) != again.astype(np.int64))
    return tuple((int(index), int(stored[index])) for index in differing)


def as_float(model: ir.Model) -> ir.Model:
    """``model`` without its pairs, which are taken out of it: names of encodings are those of the float model."""
    if qdq_pairs(model):
        extract_pairs(model)
    return model
