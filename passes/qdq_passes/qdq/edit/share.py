"""Making one of what is there several times: Q and DQ nodes that compute the same from the same value, and their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, put_first, remove, replace_value
from qdq_passes.graph.nesting import Nesting, is_constant_node
from qdq_passes.graph.uses import all_nodes, constant_array, dtype_of, readers
from qdq_passes.qdq.look.exact import exact_text, rounding_of
from qdq_passes.qdq.look.pairs import dequantizers, is_quantize


def merge_twins(
    model: ir.Model, halves: Iterable[ir.Node], nesting: Nesting, namer: Namer, *, refuse: bool = True
) -> Iterator[Change]:
    """Let one of the Q (or DQ) nodes in ``halves`` that round the same value in the same way stand for all of them.

    The outermost stays, of several the first; where it stands too late for a reader of another, it moves behind the producer of
    what it reads. Nodes in bodies that do not see each other both stay.

    Args:
        model: the model.
        halves: Q and DQ nodes; those that read the same value are compared.
        nesting: the bodies of ``model``.
        namer: names of this run.
        refuse: whether different encodings on one value are reported.
    """
    order = {node: place for place, node in enumerate(all_nodes(model))}
    groups: dict[tuple[ir.Value, bool], list[ir.Node]] = {}
    for node in sorted(set(halves), key=lambda n: (len(nesting.around(n.graph)), order[n])):
        if node.inputs[0] is not None:
            groups.setdefault((node.inputs[0], is_quantize(node)), []).append(node)
    for (value, _), nodes in groups.items():
        kept: list[ir.Node] = []
        for node in nodes:
            twin, reason = _twin(node, kept, nesting)
            if twin is None:
                kept.append(node)
                if reason and refuse:
                    yield skip(node, f"{value.name} {reason}")
                continue
            _put_early_enough(twin, node, order, nesting)
            parameters = list(node.inputs)
            for reader in dequantizers(node) if is_quantize(node) else []:
                adopt_axis(reader, node, twin)
            replace_value(node.outputs[0], twin.outputs[0], namer)
            yield from remove(node, f"{twin.name} does the same to {value.name}")
            yield from drop_unread(parameters)


def _twin(node: ir.Node, kept: Sequence[ir.Node], nesting: Nesting) -> tuple[ir.Node | None, str]:
    """Which of the ``kept`` nodes can stand for ``node``; else why none can, if there is a reason to tell."""
    rounding, reason = rounding_of(node) if kept else None, ""
    for other in kept:
        its, is_copy = rounding_of(other), _inputs(other) == _inputs(node) and other.attributes == node.attributes
        if not is_copy and (its is None or rounding is None):
            reason = reason or f"has a scale computed at run time at {(node if rounding is None else other).name}"
        elif its != rounding and its is not None and rounding is not None:
            told = "has two encodings" if its.encoding != rounding.encoding else "is rounded by two operators"
            pair = f"{exact_text(its.encoding)} at {other.name}, {exact_text(rounding.encoding)} at {node.name}"
            reason = reason or f"{told}: {pair}"
        elif (other.domain, other.op_type) != (node.domain, node.op_type):
            reason = reason or f"is rounded by operators of two domains, {_place(other)} and {_place(node)}"
        elif nesting.sees(graph_of(node), other.outputs[0]):
            return other, ""
    return None, reason


def _inputs(node: ir.Node) -> list[ir.Value | None]:
    return [value for value in node.inputs if value is not None]


def _place(node: ir.Node) -> str:
    return f"{node.domain or 'ai.onnx'} at {node.name}"


def _put_early_enough(twin: ir.Node, node: ir.Node, order: dict[ir.Node, int], nesting: Nesting) -> None:
    """Let ``twin`` stand before whatever reads ``node``, which stands in the same graph or inside of it."""
    graph = graph_of(twin)
    place = nesting.step_in(graph, node)
    if place is None or order[twin] <= order[place]:
        return
    source = twin.inputs[0]
    producer = source.producer() if source is not None else None
    constants = [v.producer() for v in twin.inputs[1:] if v is not None and is_constant_node(v)]
    first = next(iter(graph))
    for constant in constants:
        if constant is not None and constant.graph is graph and constant is not first:
            graph.insert_before(first, constant)
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, twin)
        order[twin] = order[producer]
    else:
        put_first(graph, [twin])
        order[twin] = -1


def adopt_axis(reader: ir.Node, old: ir.Node, new: ir.Node) -> None:
    """Let the DequantizeLinear ``reader``, which is about to change from ``old`` to ``new``, count its axis as ``new`` does.

    Both count the same axis, one perhaps from the end; where the rank is no longer told, nobody else can see that."""
    mine, its = rounding_of(reader), rounding_of(old)
    if mine is None or its is None or mine.encoding != its.encoding or mine.encoding.axis is None:
        return
    reader.attributes.pop("axis", None)
    if "axis" in new.attributes:
        reader.attributes["axis"] = new.attributes["axis"]


def share_parameters(owner: ir.Node, others: Iterable[ir.Node]) -> list[Change]:
    """Let Q or DQ nodes behind ``owner`` read its scale and zero point where theirs are equal constants."""
    changes = []
    for node in others:
        for index in (1, 2):
            mine, its = (n.inputs[index] if index < len(n.inputs) else None for n in (owner, node))
            if mine is None or its is None or mine is its or not _is_same(mine, its):
                continue
            node.replace_input_with(index, mine)
            word = "scale" if index == 1 else "zero point"
            changes.append(Change("share", its.name or "", f"{word} of {node.name} is {mine.name} of {owner.name}"))
            changes += drop_unread([its])
    return changes


def _is_same(one: ir.Value, other: ir.Value) -> bool:
    first, second = constant_array(one), constant_array(other)
    if first is None or second is None:
        return False
    return (dtype_of(one), first.shape, first.tobytes()) == (dtype_of(other), second.shape, second.tobytes())


def is_unread(node: ir.Node) -> bool:
    """Whether nobody reads the output of the Q or DQ ``node``, and it is no graph output."""
    return not readers(node.outputs[0]) and not node.outputs[0].is_graph_output()
