"""The KV cache of a decoder: which input comes back as which output, found by what updates it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.flow import SHAPE_READERS, Flow, Passed, is_attention, is_product, passed_on, softmax_sides
from qdq_passes.decoder.look.record import Part, number_of, part_by_name
from qdq_passes.decoder.look.states import KvState, Update, state_of
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.sizes import rank_or
from qdq_passes.graph.uses import integer_of, is_standard, label

#: Attentions that keep a cache: inputs past key and past value; their outputs 1 and 2 are present key and value.
CACHING: dict[tuple[str, str], tuple[int, int]] = {
    ("", "Attention"): (4, 5),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): (5, 6),
    ("com.microsoft", "GroupQueryAttention"): (3, 4),
    ("com.microsoft", "MultiHeadAttention"): (6, 7),
    ("com.microsoft", "SparseAttention"): (3, 4),
}
#: Axis of the sequence in what they keep, [batch, heads, past, head size].
_CACHED_AXIS = 2
_SCATTERS = frozenset({"ScatterElements", "ScatterND", "TensorScatter"})
#: Names of states in general, and those of encoders.
_STATE = re.compile(r"past|cache|(^|[^a-z])kv([^a-z]|$)|state|memory", re.IGNORECASE)
_CROSS = re.compile(r"encoder|cross", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CachePair:
    """One tensor of the KV cache: what goes in, and what comes out.

    Args:
        layer: number of the layer, from 0 in the order of the graph.
        part: which of the two.
        past: graph input, [batch, heads, past, head size] with the axes where ``axis`` and ``batch_axis`` say.
        present: graph output: past and the new rows, or, where the host slides the cache, the new rows alone.
        axis: axis of the sequence in ``past`` and ``present``.
        batch_axis: axis of the batch.
        update: the node that makes ``present`` of ``past``: Concat, a Scatter, TensorScatter, or an attention with a
            cache inside. Of a state of several layers the Concat that joins their slices.
        layers: how many layers have their part in it, one behind the other along the first axis; ``layer`` is the first then.
            ``part`` is ``both`` where it holds all their keys, then all their values.
    """

    layer: int
    part: Part
    past: ir.Value
    present: ir.Value
    axis: int
    batch_axis: int
    update: ir.Node
    layers: int = 1


def cache_pairs(inputs: Iterable[ir.Value], nodes: Sequence[ir.Node]) -> list[tuple[CachePair, str]]:
    """The pairs, each with why key is key and value is value; by layer, key before value. Empty without a cache.

    Args:
        inputs: those of the main graph.
        nodes: those of the main graph, producers first.

    Raises:
        UnsupportedError: a state that goes in and is no KV cache, keys and values in one tensor, the cache of an encoder,
            parts that cannot be told apart.
    """
    found, states = [], []
    for past in _candidates(inputs):
        state = state_of(past, _update_of)
        if state is not None:
            states.append(state)
            continue
        _refuse_shape(past)
        pair = _pair(past)
        if pair is not None:
            found.append(pair)
        elif _is_state(past):
            _refuse(past)
    order = {node: number for number, node in enumerate(nodes)}
    found.sort(key=lambda pair: order.get(pair.update, 0))
    return [*_by_layer(_with_parts(nodes, found)), *_of_states(nodes, states)]


def extra_readers(pair: CachePair) -> list[ir.Node]:
    """Who reads the past besides its update, its shape left out: an update in place would change what they read."""
    rank = rank_or(pair.past, 4)
    passed = [p.value for p in passed_on(pair.past, rank)]
    makers = {value.producer() for value in passed}
    found = [node for value in passed for node, _ in _reads(value)]
    ends = [p.producer() for p in passed if p.is_graph_output()]
    return [
        n
        for n in dict.fromkeys([*found, *(e for e in ends if e is not None)])
        if n is not pair.update and n not in makers
    ]


def _reads(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    yield from ((use.node, use.idx) for use in value.uses() if kind_of(use.node) not in SHAPE_READERS)


def _candidates(inputs: Iterable[ir.Value]) -> list[ir.Value]:
    """Inputs that may be a cache: of three dimensions or more, or of unknown shape."""
    return [v for v in inputs if not v.is_initializer() and rank_or(v, 3) >= 3]


def _is_state(past: ir.Value) -> bool:
    return (
        bool(_STATE.search(past.name or "")) and "hidden" not in (past.name or "") and "mask" not in (past.name or "")
    )


def _refuse_shape(past: ir.Value) -> None:
    """Keys and values in one tensor: [2, batch, heads, past, head size]."""
    combined = any(
        node.domain == "com.microsoft"
        and (kind_of(node), index) in {("Attention", 4), ("DecoderMaskedSelfAttention", 4)}
        for node, index in _reads(past)
    )
    if combined or (
        past.shape is not None and len(past.shape) == 5 and 2 in (past.shape[0], past.shape[1]) and _is_state(past)
    ):
        raise UnsupportedError(
            "keys and values are one tensor of five dimensions", where=past.name,
            hint="export it with a past key and a past value per layer",
        )  # fmt: skip


def _refuse(past: ir.Value) -> None:
    """Say why an input that is named like a state is none of a pair."""
    name, nodes = past.name or "", [node for node, _ in _reads(past)]
    cross = next(
        (
            v.name
            for v in (past.graph.inputs if past.graph is not None else ())
            if _is_state(v) and _CROSS.search(v.name or "")
        ),
        None,
    )
    if cross is not None:
        raise UnsupportedError(
            "the cache of an encoder: an encoder-decoder is not handled", where=cross, hint="only decoders are split"
        )
    inside = next((n for n in nodes if n.graph is not past.graph), None)
    if inside is not None:
        raise UnsupportedError(
            f"the cache is read inside a body, by {label(inside)}", where=name,
            hint="run choose-branch first where it is merged with the decoder without a past (or export it unmerged)",
        )  # fmt: skip
    if not nodes:
        raise UnsupportedError(
            "nothing reads this cache", where=name, hint="run remove-unused, or export the model again"
        )
    cut = _cut(past)
    if cut is not None:
        raise UnsupportedError(
            f"keeps a window of its last tokens alone: {label(cut)} cuts what comes out", where=name,
            hint="only caches that grow are handled, as transformers' DynamicCache() without a configuration does",
        )  # fmt: skip
    reads = ", ".join(sorted({n.op_type for n in nodes}))
    raise UnsupportedError(
        f"is a state that no output carries on: read by {reads}, with no Concat, Scatter or caching attention before an output",
        where=name, hint="only caches of keys and values that grow along the sequence are handled",
    )  # fmt: skip


def _cut(past: ir.Value) -> ir.Node | None:
    """The Slice between the Concat that ``past`` feeds and an output."""
    rank = rank_or(past, 4)
    joined = [n.outputs[0] for p in passed_on(past, rank) for n, _ in _reads(p.value) if kind_of(n) == "Concat"]
    slices = [
        n for v in joined for p in passed_on(v, rank) for n, i in _reads(p.value) if is_standard(n, "Slice") and i == 0
    ]
    ends = (n for n in slices if any(p.value.is_graph_output() for p in passed_on(n.outputs[0], rank)))
    return next(ends, None)


@dataclass(frozen=True)
class _Found:
    past: ir.Value
    present: ir.Value
    axis: int
    update: ir.Node
    at: int  # which input of the update
    output: ir.Value


def _pair(past: ir.Value) -> _Found | None:
    """The update that ``past`` feeds and that leads on to an output."""
    rank = rank_or(past, 4)
    for passed in passed_on(past, rank):
        for node, index in _reads(passed.value):
            update = _update(node, index, passed) if node.graph is past.graph else None
            if update is None:
                continue
            output, axis = update
            for end in passed_on(output, rank):
                if end.value.is_graph_output() and _is_main(end.value, past):
                    axes = end.axes  # axis of the present → axis of the update
                    here = passed.axes[axis]
                    if axes[here] != axis:
                        raise UnsupportedError(
                            f"lies along axis {here}, and in its output {end.value.name} along axis {axes.index(axis)}",
                            where=past.name, hint="export it with one layout of past and present",
                        )  # fmt: skip
                    return _Found(past, end.value, here, node, index, output)
            rows = _new_rows(node, index, past, passed.axes)
            if rows is not None:
                return _Found(past, rows, passed.axes[axis], node, index, output)
    return None


def _new_rows(update: ir.Node, index: int, past: ir.Value, axes: Sequence[int]) -> ir.Value | None:
    """The output that gives the rows behind the past alone, where the host slides the cache; it lies as the past does.

    ``axes``: axis of what the update joins → axis of the past.
    """
    other = update.inputs[1] if kind_of(update) == "Concat" and len(update.inputs) == 2 and index == 0 else None
    root = None if other is None else _passed_from(other, len(axes))
    around = [] if root is None else passed_on(root, len(axes))
    joined = next((p.axes for p in around if p.value is other), ())
    ends = (p for p in around if p.value.is_graph_output() and _is_main(p.value, past))
    return next((p.value for p in ends if [p.axes.index(axis) for axis in joined] == list(axes)), None)


def _passed_from(value: ir.Value, rank: int) -> ir.Value:
    """The first value that holds the elements of ``value``."""
    node = value.producer()
    source = node.inputs[0] if node is not None and node.inputs else None
    if source is None or source is value or not any(p.value is value for p in passed_on(source, rank)):
        return value
    return _passed_from(source, rank)


def _update_of(value: ir.Value) -> Update | None:
    """What updates ``value``, a slice of a state: as `_pair`, but what it writes is no output itself."""
    rank = rank_or(value, 4)
    for passed in passed_on(value, rank):
        for node, index in _reads(passed.value):
            update = _update(node, index, passed)
            if update is not None:
                return node, update[0], passed.axes[update[1]]
    return None


def _of_states(nodes: Sequence[ir.Node], states: Sequence[KvState]) -> list[tuple[CachePair, str]]:
    """A pair for each state of several layers, keys before values."""
    flow = Flow.of(nodes)
    scores, sums = softmax_sides(nodes, flow) if states else (set(), set())
    pairs = []
    for state in states:
        found = [
            _part_by_use(_Found(state.past, state.present, axis, node, 0, value), flow, scores, sums)
            for node, value, axis in state.updates
        ]
        half = len(found) // 2
        is_both = len(found) % 2 == 0 and found == ["key"] * half + ["value"] * half
        part: Part | None = "both" if is_both else found[0]
        if part is None or (not is_both and len(set(found)) > 1):
            raise UnsupportedError(
                f"is a state of keys and values in the order {', '.join(str(p) for p in found)}", where=state.past.name,
                hint="all keys, then all values, or a state of each",
            )  # fmt: skip
        pair = CachePair(
            layer=0, part=part, past=state.past, present=state.present, axis=state.updates[0][2], batch_axis=0,
            update=state.join, layers=half if is_both else len(found),
        )  # fmt: skip
        pairs.append((pair, f"{part} by what it feeds, of {pair.layers} layers"))
    return sorted(pairs, key=lambda pair: pair[0].part)


def _is_main(value: ir.Value, past: ir.Value) -> bool:
    return any(value is output for output in past.graph.outputs) if past.graph is not None else False


def _update(node: ir.Node, index: int, passed: Passed) -> tuple[ir.Value, int] | None:
    """What ``node`` makes of its input ``index``, a past, and along which axis of it; None when it is no update."""
    rank, kind = len(passed.axes), kind_of(node)
    fused = CACHING.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
    if fused is not None:
        output = fused.index(index) + 1 if index in fused else 0
        return (node.outputs[output], _CACHED_AXIS) if 0 < output < len(node.outputs) and rank == 4 else None
    if kind == "Concat" and len(node.inputs) > 1:
        axis = integer_of(node, "axis", 0)
    elif kind in _SCATTERS and index == 0:
        axis = _scattered_axis(node, rank)
    else:
        return None
    return node.outputs[0], axis % rank


def _scattered_axis(node: ir.Node, rank: int) -> int:
    """The axis along which a scatter writes; of ScatterND that where rows are fewer, else the last that indices choose."""
    if is_standard(node, "ScatterElements"):
        return integer_of(node, "axis", 0)
    if is_standard(node, "TensorScatter"):
        return integer_of(node, "axis", -2)
    data, indices, rows = (
        None if value is None or value.shape is None else list(value.shape) for value in node.inputs[:3]
    )
    if data is not None and rows is not None and len(data) == len(rows):
        axes = [axis for axis, (a, b) in enumerate(zip(data, rows, strict=True)) if a != b]
        if len(axes) == 1:
            return axes[0]
    depth = indices[-1] if indices else 3
    return depth - 1 if isinstance(depth, int) else min(2, rank - 1)


def _with_parts(nodes: Sequence[ir.Node], found: Sequence[_Found]) -> list[tuple[_Found, Part, str]]:
    """Key or value: by what the cache feeds, else by name."""
    flow = Flow.of(nodes)
    scores, sums = softmax_sides(nodes, flow)
    result: list[tuple[_Found, Part, str]] = []
    for pair in found:
        used = _part_by_use(pair, flow, scores, sums)
        named = part_by_name(pair.past.name or "") or part_by_name(pair.present.name or "")
        part = used or named
        if part is None:
            is_both = {"key", "value"} <= _parts_by_use(pair, flow, scores, sums)
            raise UnsupportedError(
                "holds keys and values side by side" if is_both
                else "neither what it feeds nor its name tells whether it holds keys or values", where=pair.past.name,
                hint="export a cache of keys and one of values" if is_both
                else "rename it: past_key_values.0.key, past_key_values.0.value",
            )  # fmt: skip
        result.append((pair, part, "by what it feeds" if used is not None else "by its name"))
    return result


def _part_by_use(pair: _Found, flow: Flow, scores: set[ir.Node], sums: set[ir.Node]) -> Part | None:
    parts = _parts_by_use(pair, flow, scores, sums)
    return parts.pop() if len(parts) == 1 else None


def _parts_by_use(pair: _Found, flow: Flow, scores: set[ir.Node], sums: set[ir.Node]) -> set[Part]:
    fused = CACHING.get(("" if pair.update.domain == "ai.onnx" else pair.update.domain, pair.update.op_type))
    if fused is not None:
        return {"key" if pair.at == fused[0] else "value"}
    ends = flow.forward(
        [pair.output], lambda node, _: is_product(node) or is_attention(node) or kind_of(node) in SHAPE_READERS
    )
    parts: set[Part] = set()
    for node, index in ends:
        if is_attention(node) and index in (1, 2):
            parts.add("key" if index == 1 else "value")
        elif node in scores or node in sums:
            parts.add("key" if node in scores else "value")
    return parts


def _by_layer(found: Sequence[tuple[_Found, Part, str]]) -> list[tuple[CachePair, str]]:
    """Number the layers: keys and values each in the order of the graph, or of the numbers in their names where those fit."""
    keys, values = ([f for f in found if f[1] == part] for part in ("key", "value"))
    if len(keys) != len(values):
        raise UnsupportedError(
            f"{len(keys)} caches of keys and {len(values)} of values", where=found[0][0].past.name,
            hint="a layer keeps one of each; latent and shared caches are not handled",
        )  # fmt: skip
    numbers = {f[0].past: number_of(f[0].past.name or "") for f in found}
    by_name = {part: [numbers[f[0].past] for f in group] for part, group in (("key", keys), ("value", values))}
    fits = (
        None not in by_name["key"]
        and len(set(by_name["key"])) == len(keys)
        and set(by_name["key"]) == set(by_name["value"])
    )
    if fits:
        keys.sort(key=lambda f: numbers[f[0].past] or 0)
        values.sort(key=lambda f: numbers[f[0].past] or 0)
    how = "number by its name" if fits else "number by the order of the graph"
    pairs = []
    for layer, group in enumerate(zip(keys, values, strict=True)):
        for pair, part, why in group:
            made = CachePair(
                layer=layer,
                part=part,
                past=pair.past,
                present=pair.present,
                axis=pair.axis,
                batch_axis=0,
                update=pair.update,
            )
            pairs.append((replace(made, batch_axis=_batch_axis(made)), f"{part} {why}, {how}"))
    return pairs


def _batch_axis(pair: CachePair) -> int:
    """The first axis that is not the sequence's."""
    return 1 if pair.axis == 0 else 0
