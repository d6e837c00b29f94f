"""Surgery that changes where pairs stand: past an operator (plans of `qdq.look.moves`), or copied onto another value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.graph.edit import (
    Namer,
    drop_unread,
    graph_of,
    inherit,
    make_node,
    move_annotations,
    new_constant,
    remove,
    replace_nodes,
    replace_value,
)
from qdq_passes.graph.evaluate.exact import rearranged_by
from qdq_passes.graph.nesting import INHERITED_KEYS, Nesting, is_constant_node
from qdq_passes.graph.uses import constant_array, label, readers
from qdq_passes.qdq.edit.pairs import hand_over_output
from qdq_passes.qdq.look.exact import Rounding, rounding_of
from qdq_passes.qdq.look.moves import Move, float_outputs, reads_shape_only
from qdq_passes.qdq.look.pairs import Pair, encoding_of, is_quantize


def copy_half(
    half: ir.Node, source: ir.Value, namer: Namer,
    *, base: str, like: ir.Value, near: ir.Node,
    attributes: Sequence[ir.Attr] | None = None, parameters: Sequence[ir.Value | None] | None = None,
) -> ir.Node:  # fmt: skip
    """A Q or DQ like ``half`` that reads ``source``, with names from ``base``; not yet in a graph.

    Args:
        half: the Q or DQ.
        source: the floats or the integers that the new node reads.
        namer: names of this run.
        base: the tensor after which it is called.
        like: float value whose shape (and, for a DQ, type) the output has.
        near: node whose scope it belongs to; its origin is that of ``half``.
        attributes: its attributes, those of ``half`` by default.
        parameters: scale and zero point, those of ``half`` by default.
    """
    word = "QuantizeLinear" if is_quantize(half) else "DequantizeLinear"
    node = make_node(
        half.op_type, [source, *(half.inputs[1:] if parameters is None else parameters)], domain=half.domain,
        name=namer.fresh(f"{base}_{word}"), output=namer.fresh(f"{base}_{word}_Output"), like=like,
        attributes=list(half.attributes.values()) if attributes is None else attributes,
    )  # fmt: skip
    node.metadata_props.update({key: near.metadata_props[key] for key in INHERITED_KEYS if key in near.metadata_props})
    inherit(node, [half])
    encoding = encoding_of(half)
    if is_quantize(half):
        known = ir.TensorType(encoding.dtype) if encoding is not None else None
        node.outputs[0].type = half.outputs[0].type or known
    elif like.type is None:
        node.outputs[0].type = half.outputs[0].type
    return node


def _along(half: ir.Node, axis: int | None) -> list[ir.Attr]:
    """The attributes of ``half`` with another axis, or none per-tensor."""
    kept = [attribute for attribute in half.attributes.values() if attribute.name != "axis"]
    return kept if axis is None else [*kept, ir.AttrInt64("axis", axis)]


#: What a move did, the new DequantizeLinear nodes, and parameters that may be read no more: pairs share them, so that to look at
#: their readers after each move would take as long as there are pairs.
Moved = tuple[list[Change], list[ir.Node], list[ir.Value | None]]


def drop_pair(pair: Pair) -> list[ir.Value | None]:
    """Remove the halves of ``pair`` that nobody reads any more; what they read beside each other."""
    parameters: list[ir.Value | None] = []
    for node in (pair.dq, pair.q):
        if node is not None and node.graph is not None and not _is_read(node.outputs[0]):
            parameters += node.inputs[1:] if pair.q is not None else node.inputs
            remove(node, "nobody reads it")
    return parameters


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def move_down(move: Move, namer: Namer) -> Moved:
    """Carry out a plan downward."""
    lead = next(iter(move.pairs.values()))
    if lead.q is None or _is_rearranged(move, lead):
        return _move_stored(move, lead, namer)
    node, made = move.node, []
    for index, pair in move.pairs.items():
        node.replace_input_with(index, pair.source)
    outputs = [value for value in float_outputs(node) if _is_read(value)]
    names = [value.name or "" for value in outputs]
    for value in reversed(outputs):
        made += _put_behind(value, lead, move.axes[0], namer)
    below = f"down across {node.op_type} {node.name} to {', '.join(names)}"
    if not made:
        below += ", where the same pair stands"
    changes, parameters = _leave(move, below)
    return changes, made, parameters


def _put_behind(value: ir.Value, pair: Pair, axis: int | None, namer: Namer) -> list[ir.Node]:
    """Put a copy of ``pair`` between ``value`` and its readers, but for those that round just so; the DQ, if any."""
    assert pair.q is not None
    producer = value.producer()
    assert producer is not None
    rounding = rounding_of(pair.q)
    assert rounding is not None
    moved = rounding.along(axis)
    behind = [(n, i) for n, i in readers(value) if not (reads_shape_only(n) or _rounds_so(n, i, moved))]
    if not behind and not value.is_graph_output():
        return []
    base = value.name or "value"
    q = copy_half(pair.q, value, namer, base=base, like=value, attributes=_along(pair.q, axis), near=producer)
    dq = copy_half(
        pair.dq,
        q.outputs[0],
        namer,
        base=base,
        like=value,
        attributes=_along(pair.dq, axis),
        near=producer,
    )
    for node, index in behind:
        node.replace_input_with(index, dq.outputs[0])
    graph_of(producer).insert_after(producer, [q, dq])
    if value.is_graph_output():
        hand_over_output(value, dq.outputs[0], namer)
        move_annotations(value, dq.outputs[0])
    return [dq]


def _rounds_so(node: ir.Node, index: int, rounding: Rounding) -> bool:
    return index == 0 and is_quantize(node) and rounding.is_idempotent and rounding_of(node) == rounding


def _leave(move: Move, text: str) -> tuple[list[Change], list[ir.Value | None]]:
    """Take away what the pairs leave behind, and say so; with their parameters."""
    changes: dict[str, Change] = {}
    parameters: list[ir.Value | None] = []
    for pair in dict.fromkeys(move.pairs.values()):
        readers = list(dict.fromkeys(u.node for u in pair.output.uses()))
        if all(map(reads_shape_only, readers)) and pair.source is not None and pair.q is not None:
            pair.output.replace_all_uses_with(pair.source) if not pair.output.is_graph_output() else None
            readers = []
        parameters += drop_pair(pair)
        kept = [label(reader) for reader in readers]
        kept += ["the graph output"] if pair.output.is_graph_output() else []
        because = text + (f"; it stays for {', '.join(kept)}" if kept else "")
        because += f"; approximate: {move.problem}" if move.problem else ""
        changes.setdefault(pair.tensor, Change("move", pair.tensor, because))
    return list(changes.values()), parameters


def _is_rearranged(move: Move, lead: Pair) -> bool:
    """Whether the pair stands on a float weight that the node only rearranges, so that the weight itself can be rearranged."""
    array = constant_array(lead.stored)
    return array is not None and len(move.pairs) == 1 and rearranged_by(move.node, array) is not None


def _move_stored(move: Move, pair: Pair, namer: Namer) -> Moved:
    """Rearrange the weight (or its integers) itself; the node goes."""
    node, stored = move.node, pair.stored
    assert stored is not None
    array = constant_array(stored)
    assert array is not None
    made = rearranged_by(node, array)
    assert made is not None
    base, axis, y = f"{pair.tensor}_{node.op_type}", move.axes[0], node.outputs[0]
    dtype = stored.const_value.dtype if stored.const_value is not None else ir.DataType.from_numpy(array.dtype)
    tensor = ir.tensor(np.ascontiguousarray(made), dtype=dtype)
    value = new_constant(graph_of(node), namer, base if pair.q is not None else f"{base}_quantized", tensor, [node])
    nodes = []
    if pair.q is not None:
        nodes.append(copy_half(pair.q, value, namer, base=base, like=y, attributes=_along(pair.q, axis), near=node))
    source = nodes[0].outputs[0] if nodes else value
    nodes.append(copy_half(pair.dq, source, namer, base=base, like=y, attributes=_along(pair.dq, axis), near=node))
    others = list(node.inputs[1:])
    replace_nodes([node], nodes, namer, "computed on the weight")
    drop_unread(others)
    text = f"down across {node.op_type} {node.name}, which is computed on it: {value.name}"
    changes, parameters = _leave(move, text)
    return changes, [nodes[-1]], [*parameters, *([stored] if pair.q is not None else [])]


def move_up(move: Move, nesting: Nesting, namer: Namer) -> Moved:
    """Carry out a plan upward."""
    node, lead = move.node, next(iter(move.pairs.values()))
    assert lead.q is not None
    made: dict[ir.Value, ir.Node] = {}
    read = _visible(lead, node, nesting, namer) if move.axes else {}
    for index, axis in move.axes.items():
        value = node.inputs[index]
        assert value is not None
        if value not in made:
            base, producer = value.name or "value", value.producer()
            near = producer if producer is not None and not is_constant_node(value) else node
            source, halves = value, []
            for half in (lead.q, lead.dq):
                halves.append(
                    copy_half(
                        half, source, namer, base=base, like=value, near=near, attributes=_along(half, axis),
                        parameters=[read[v] if v is not None else None for v in half.inputs[1:]],
                    )
                )  # fmt: skip
                source = halves[-1].outputs[0]
            graph_of(node).insert_before(node, halves)
            made[value] = halves[-1]
        node.replace_input_with(index, made[value].outputs[0])
    names = ", ".join(value.name or "" for value in made)
    above = f"up across {node.op_type} {node.name}" + (
        f" to {names}" if names else ", which reads what is rounded like this"
    )
    for pair in move.pairs.values():
        assert pair.source is not None
        replace_value(pair.output, pair.source, namer)
    changes, parameters = _leave(move, above)
    return changes, list(made.values()), parameters


def _visible(pair: Pair, node: ir.Node, nesting: Nesting, namer: Namer) -> dict[ir.Value, ir.Value]:
    """The parameters of ``pair`` for a pair before ``node``: as they are, moved to the front of the graph, or copied into it."""
    graph, found = graph_of(node), {}
    for value in [v for half in (pair.q, pair.dq) if half is not None for v in half.inputs[1:] if v is not None]:
        producer = value.producer()
        if value in found:
            continue
        found[value] = value
        if not nesting.sees(graph, value):
            array = constant_array(value)
            assert array is not None
            tensor = value.const_value if value.const_value is not None else ir.tensor(array)
            found[value] = new_constant(graph, namer, value.name or "parameter", tensor, [node])
        elif producer is not None and producer.graph is graph and graph[0] is not producer:
            graph.insert_before(graph[0], producer)
    return found
