"""Other encodings for existing pairs and halves: all that belongs to one tensor together, stored integers requantized, biases at
s_x·s_w following."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.qdq_ops import is_dequantize, opset_at
from qdq_passes.graph.uses import all_nodes, constant_array, dtype_of, label
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.numerics.reencode import clipped, real_range, requantized, rounded_to
from qdq_passes.qdq.edit.biases import follow_biases
from qdq_passes.qdq.edit.checks import check_encoding
from qdq_passes.qdq.edit.clips import clips_at_zero
from qdq_passes.qdq.edit.pairs import Use, members, write_constant, write_encodings
from qdq_passes.qdq.look.biases import CoupledBias, coupled_biases
from qdq_passes.qdq.look.grids import change_in_words
from qdq_passes.qdq.look.pairs import Half, Pair, encoding_of, half_pairs, is_named, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select

Target = Pair | Half
#: Names of tensors shown in a remark.
SHOWN = 3


@dataclass(frozen=True)
class Edit:
    """A new encoding for one tensor.

    Args:
        target: its pair (any one of a shared QuantizeLinear), or the half.
        old: what it has.
        new: what it gets.
        because: what the report says instead of both in words.
    """

    target: Target
    old: Encoding
    new: Encoding
    because: str = ""


def targets(model: ir.Model, selector: Selector) -> list[Target]:
    """Pairs and halves that ``selector`` names, one entry per QuantizeLinear, in the order of the file; halves last."""
    hit = select(model, selector)
    nodes, values = set(hit.nodes), set(hit.values)
    pairs: dict[ir.Node, Target] = {}
    for pair in qdq_pairs(model):
        if selector.is_all or is_named(pair, nodes, values):
            pairs.setdefault(pair.q or pair.dq, pair)
    ends = [v for v in half_pairs(model) if selector.is_all or _is_named_half(v, nodes, values)]
    return [*pairs.values(), *ends]


def with_sharing(model: ir.Model, found: Sequence[Target]) -> list[Target]:
    """``found``, and behind it the tensors that read the scale of one of them."""
    scales = {scale for target in found if (scale := _scale_of(target)) is not None}
    sharing = [t for t in targets(model, ALL) if _scale_of(t) in scales]
    own = {node for target in found for node in nodes_of(target)}
    return [*found, *(target for target in sharing if not own & set(nodes_of(target)))]


def without_pair(model: ir.Model, selector: Selector) -> list[Change]:
    """A skip for every value that ``selector`` names, for when none of them has a pair; the default names none."""
    return [] if selector.is_all else [skip(value, "has no pair") for value in select(model, selector).values]


def nodes_of(target: Target) -> list[ir.Node]:
    """The nodes that must keep one encoding."""
    return [target.node] if isinstance(target, Half) else members(target)


def why_not_editable(target: Target, *, changes_type: bool) -> str | None:
    """Why the encoding of ``target`` cannot be changed, in words; None when it can.

    Args:
        target: the pair or half.
        changes_type: whether the type of its integers changes, which outside readers would see.
    """
    if isinstance(target, Pair) and target.q is target.dq:
        return f"is a {target.dq.op_type}; run convert-qdq-domain{{to=onnx}} first"
    if target.encoding is None:
        return "its scale is not constant"
    if isinstance(target, Pair) and target.q is not None and not _agree(target):
        return "its QuantizeLinear and DequantizeLinear have different encodings"
    integers = _integers(target)
    readers = [use.node for use in integers.uses() if not is_dequantize(use.node) or use.idx != 0]
    if readers:
        return f"its integers are read by {label(readers[0])} too"
    if isinstance(target, Half) and not target.is_q and not integers.is_graph_input():
        producer = integers.producer()
        return f"its integers come from {label(producer) if producer is not None else 'elsewhere'}"
    is_end = integers.is_graph_output() or (isinstance(target, Half) and integers.is_graph_input())
    if is_end and changes_type:
        end = "an output" if integers.is_graph_output() else "an input"
        return f"its integers are {end} of the graph, whose type stays"
    return None


def float_tensor(target: Target) -> ir.Value:
    """The float tensor of ``target`` as far as the file knows it: name, type (that of the scale) and shape; in no graph."""
    node = target.node if isinstance(target, Half) else target.dq
    known = [v for v in (*node.inputs[:1], *node.outputs[:1]) if v is not None]
    if isinstance(target, Pair) and target.q is not None and target.q.inputs[0] is not None:
        known.insert(0, target.q.inputs[0])
    shapes = [v.shape for v in known if v.shape is not None]
    scale = node.inputs[1] if len(node.inputs) > 1 else None
    dtype = (dtype_of(scale) if scale is not None else None) or ir.DataType.FLOAT
    array = constant_array(known[0]) if not shapes and known else None
    shape = shapes[0].copy() if shapes else None if array is None else ir.Shape(array.shape)
    return ir.Value(name=target.tensor, type=ir.TensorType(dtype), shape=shape)


def settled(target: Target, encoding: Encoding) -> Encoding:
    """``encoding`` with its scales in the float type that the nodes of ``target`` store them in."""
    return rounded_to(encoding, (float_tensor(target).dtype or ir.DataType.FLOAT).numpy())


def check(model: ir.Model, target: Target, encoding: Encoding) -> None:
    """Refuse an encoding that the opset, the domain or the tensor of ``target`` cannot hold.

    Raises:
        UnsupportedError: an opset too old, or a type that the operators do not take.
        UsageError: scales that do not fit the tensor or its float type.
    """
    node = target.node if isinstance(target, Half) else target.dq
    stored = isinstance(target, Pair) and target.q is None
    check_encoding(float_tensor(target), encoding, opset_at(model, node), stored=stored, domain=node.domain)


def reencode(model: ir.Model, edits: Sequence[Edit], namer: Namer) -> Iterator[Change]:
    """Make ``edits`` real.

    A bias at s_x·s_w follows where its layer's input or weight is edited, even if it is among ``edits`` itself; edited alone it
    goes its own way. Parameters that other tensors read too are copied, and the report names those tensors.
    """
    coupled = coupled_biases(all_nodes(model))
    chosen = {node: edit.new for edit in edits for node in nodes_of(edit.target)}
    following, own = _following(coupled, chosen), []
    for edit in edits:
        if following.isdisjoint(nodes_of(edit.target)):
            own.append(edit)
        else:
            yield skip(edit.target.tensor, "is at s_x·s_w and follows it")
    chosen = {node: edit.new for edit in own for node in nodes_of(edit.target)}
    sharing = _Sharing(model, chosen)
    remarks = [_clipping(edit) + _floor(edit) + sharing.remark(edit.target) for edit in own]
    _store(own, namer)
    write_encodings(chosen, namer)
    for edit, remark in zip(own, remarks, strict=True):
        yield Change("edit", edit.target.tensor, (edit.because or change_in_words(edit.old, edit.new)) + remark)
    yield from follow_biases(coupled, set(chosen), namer)


def _following(coupled: Sequence[CoupledBias], edited: Collection[ir.Node]) -> set[ir.Node]:
    """The DequantizeLinear of every bias whose input or weight is edited."""
    return {one.bias.dq for one in coupled if any(source in edited for source in one.sources)}


def _store(edits: Sequence[Edit], namer: Namer) -> None:
    """Requantize stored integers; several DequantizeLinear of one tensor that change alike keep sharing it."""
    groups: dict[tuple[ir.Value, Encoding, Encoding], list[Use]] = {}
    for edit in edits:
        target = edit.target
        if isinstance(target, Pair) and target.q is None and target.stored is not None:
            groups.setdefault((target.stored, edit.old, edit.new), []).append((target.dq, 0))
    for (stored, old, new), uses in groups.items():
        array = constant_array(stored)
        assert array is not None
        write_constant(stored, ir.tensor(requantized(array, old, new), dtype=new.dtype), uses, namer)


def _clipping(edit: Edit) -> str:
    """A remark when values of a constant lie outside of the new range."""
    target, old, new = edit.target, edit.old, edit.new
    if not isinstance(target, Pair) or target.stored is None:
        return ""
    if target.q is None and old.shape == new.shape:
        (low, high), (new_low, new_high) = real_range(old), real_range(new)
        if bool(np.all(new_low <= low) and np.all(new_high >= high)):
            return ""  # integers of the old range lie in the new one; the data need not be read
    array = constant_array(target.stored)
    assert array is not None
    values = array if target.q is not None else dequantize(array, old)
    count = clipped(values, new)
    return f"; {count} of {values.size} values are clipped" if count else ""


def _floor(edit: Edit) -> str:
    """A remark when an activation was cut off at 0, where a Relu may have stood, and is no longer."""
    is_lost = isinstance(edit.target, Pair) and clips_at_zero(edit.target, edit.old, edit.new)
    return "; what is below 0 was cut off and is no longer" if is_lost else ""


class _Sharing:
    """Which tensors read the scale of which, before anything is edited."""

    def __init__(self, model: ir.Model, chosen: Collection[ir.Node]) -> None:
        self._others: dict[ir.Value | None, list[str]] = {}
        every: list[Target] = [*qdq_pairs(model), *half_pairs(model)]
        for target in every:
            scale = _scale_of(target)
            if scale is not None and not any(node in chosen for node in nodes_of(target)):
                self._others.setdefault(scale, []).append(target.tensor)

    def remark(self, target: Target) -> str:
        """The tensors that shared the scale of ``target`` and keep it, in words."""
        names = list(dict.fromkeys(self._others.get(_scale_of(target), [])))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"; its old scale stays with {', '.join(names[:SHOWN])}{more}" if names else ""


def _scale_of(target: Target) -> ir.Value | None:
    node = target.node if isinstance(target, Half) else target.dq
    return node.inputs[1] if len(node.inputs) > 1 else None


def _is_named_half(half: Half, nodes: Collection[ir.Node], values: Collection[ir.Value]) -> bool:
    own = [v for v in (half.node.inputs[0], half.node.outputs[0]) if v is not None]
    return half.node in nodes or any(v in values for v in own)


def _integers(target: Target) -> ir.Value:
    if isinstance(target, Half) and target.is_q:
        return target.node.outputs[0]
    value = target.q.outputs[0] if isinstance(target, Pair) and target.q is not None else None
    found = value or (target.node if isinstance(target, Half) else target.dq).inputs[0]
    assert found is not None
    return found


def _agree(pair: Pair) -> bool:
    """Whether all nodes of ``pair`` mean the same numbers, however they write them."""
    found = [encoding_of(node) for node in members(pair)]
    return all(e is not None and _meaning(e) == _meaning(found[0]) for e in found)


def _meaning(encoding: Encoding | None) -> tuple[object, ...]:
    if encoding is None:
        return ()
    shape = encoding.shape if len(encoding.scale) > 1 else ()  # one scale is per-tensor, whatever its shape
    return encoding.dtype, encoding.scale, encoding.zero_point, shape, encoding.block_size
