"""Gains of linear layers: ``(x·W + b)·k = x·(W·k) + b·k`` with k along the last axis."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, new_constant, take_over
from qdq_passes.graph.sizes import rank_of
from qdq_passes.graph.uses import all_nodes, constant_array, integer_of, is_standard, label, only_reader
from qdq_passes.numerics.arrays import Array

#: A node, the index of its constant, and what it becomes.
_Edit = tuple[ir.Node, int, Array]


def fold_gains(model: ir.Model) -> Iterator[Change]:
    """Fold every Mul by a constant along the last axis into the MatMul, with its Add, or the Gemm before it."""
    namer = Namer(model)
    for node in [node for node in all_nodes(model) if is_standard(node, "Mul")]:
        for data, factor in (tuple(node.inputs), tuple(node.inputs)[::-1]):
            gain = _along_last(factor, data)
            if gain is None or data is None:
                continue
            edits = _edits(data, node, gain)
            if isinstance(edits, str):
                yield skip(node, edits)
            elif edits:
                yield Change("edit", label(edits[-1][0]), f"takes over {node.name}")
                base = node.outputs[0].name or node.name or "folded"
                for changed, index, array in edits:
                    name = f"{base}_{'weight' if changed is edits[-1][0] and index == 1 else 'bias'}"
                    yield from _set_constant(changed, index, namer, name, array)
                yield from take_over(data, node, namer, f"folded into {label(edits[-1][0])}")
            break


def _edits(data: ir.Value, node: ir.Node, gain: Array) -> list[_Edit] | str:
    """What folds ``gain`` into what writes ``data``, the layer last; nothing where no layer does, or why not."""
    found: list[_Edit] = []
    value, reader = data, node
    producer = value.producer()
    if producer is not None and is_standard(producer, "Add"):
        place = next((i for i in (0, 1) if _along_last(producer.inputs[i], producer.inputs[1 - i]) is not None), None)
        inner = producer.inputs[1 - place] if place is not None else None
        if place is None or inner is None or inner.producer() is None:
            return []
        shift = constant_array(producer.inputs[place])
        assert shift is not None
        found.append((producer, place, np.asarray(shift * gain)))
        value, reader, producer = inner, producer, inner.producer()
    if producer is None or not is_standard(producer, "MatMul", *(() if found else ("Gemm",))):
        return []
    for written, by in ((data, node), (value, reader)):
        if only_reader(written) is not by:
            return f"{written.name} has other readers"
    weight = constant_array(producer.inputs[1])
    if weight is None or weight.ndim != 2 or weight.dtype != gain.dtype or not np.isfinite(gain).all():
        return f"{label(producer)} has no constant weight of its type, or its factor is not finite"
    if is_standard(producer, "Gemm"):
        bias = producer.inputs[2] if len(producer.inputs) > 2 else None
        summand = None if bias is None else constant_array(bias)
        if bias is not None and summand is None:
            return f"the bias of {label(producer)} is not constant"
        if summand is not None:
            found.append((producer, 2, np.asarray(summand * gain)))
    columns = gain.reshape(-1, 1) if integer_of(producer, "transB", 0) else gain
    if gain.size not in (1, weight.shape[0 if integer_of(producer, "transB", 0) else 1]):
        return "its factor repeats what the layer writes"
    return [*found, (producer, 1, np.asarray(weight * columns))]


def _along_last(value: ir.Value | None, data: ir.Value | None) -> Array | None:
    """The elements of a real constant that has several along its last axis alone, and adds no axes to ``data``; None of any other
    value."""
    array, rank = constant_array(value), rank_of(data) if data is not None else None
    if array is not None and array.ndim > (1 if rank is None else rank):
        return None
    if array is None or array.dtype not in (np.float32, np.float64) or array.size not in (1, *array.shape[-1:]):
        return None
    return array.reshape(-1)


def _set_constant(node: ir.Node, index: int, namer: Namer, name: str, data: Array) -> list[Change]:
    old = node.inputs[index]
    node.replace_input_with(index, None)
    changes = drop_unread([old] if old is not None else [])
    node.replace_input_with(index, new_constant(graph_of(node), namer, name, data, [node]))
    return changes
