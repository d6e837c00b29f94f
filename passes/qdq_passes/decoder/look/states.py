"""One state for the KV cache of several layers: [L·B, H, C, D], of which each layer updates its slice."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.flow import passed_on
from qdq_passes.graph.sizes import rank_or, size_at
from qdq_passes.graph.uses import constant_array, integer_of, is_standard, readers

#: (node that updates a slice, what it writes, axis of the sequence).
Update = tuple[ir.Node, ir.Value, int]


@dataclass(frozen=True)
class KvState:
    """A state that holds a tensor of the cache for each of several layers, one behind the other along the first axis.

    Args:
        past: graph input.
        present: graph output, joined of what the layers give back; between the two there may be a pair.
        updates: what updates each slice, in the order of the slices.
        join: the Concat.
    """

    past: ir.Value
    present: ir.Value
    updates: tuple[Update, ...]
    join: ir.Node


def state_of(past: ir.Value, update_of: Callable[[ir.Value], Update | None]) -> KvState | None:
    """``past`` as a state, or None.

    Args:
        past: a graph input.
        update_of: what updates a value that is a slice of the past; None where nothing does.
    """
    updates = [update_of(value) for value in _slices(past)]
    known = tuple(update for update in updates if update is not None)
    join = _join(known[0][1]) if known else None
    if join is None or len(known) < len(updates) or len(known) != len(join.inputs):
        return None
    given = [{passed.value for passed in passed_on(value, rank_or(value, 4))} for _, value, _ in known]
    is_whole = all(value in values for value, values in zip(join.inputs, given, strict=True))
    outputs = past.graph.outputs if past.graph is not None else ()
    present = next((value for value in _same(join.outputs[0]) if any(value is output for output in outputs)), None)
    return KvState(past, present, known, join) if is_whole and present is not None else None


def _same(value: ir.Value) -> list[ir.Value]:
    """``value``, and what holds its elements in the same order: behind pairs and casts."""
    return [
        passed.value for passed in passed_on(value, rank_or(value, 4)) if passed.axes == tuple(range(rank_or(value, 4)))
    ]


def _slices(past: ir.Value) -> list[ir.Value]:
    """The equal slices along the first axis that all readers of ``past``, or of what is behind its pair, take, in their order;
    empty where there are none."""
    found: dict[int, tuple[int, ir.Value]] = {}
    same = _same(past)
    for node, index in [read for value in same for read in readers(value)]:
        if any(output in same for output in node.outputs):
            continue
        bounds = _bounds(node) if index == 0 else None
        if bounds is None or bounds[0] in found:
            return []
        found[bounds[0]] = (bounds[1], node.outputs[0])
    size = size_at(past, 0)
    order = sorted(found)
    ends = [found[start][0] for start in order]
    lengths = {end - start for start, end in zip(order, ends, strict=True)}
    fits = len(order) > 1 and order[0] == 0 and ends[:-1] == order[1:] and ends[-1] == size and len(lengths) == 1
    return [found[start][1] for start in order] if fits else []


def _bounds(node: ir.Node) -> tuple[int, int] | None:
    """(start, end) of a Slice along the first axis."""
    if not is_standard(node, "Slice") or len(node.inputs) < 4:
        return None
    arrays = [constant_array(value) for value in node.inputs[1:]]
    numbers = [int(array.ravel()[0]) for array in arrays if array is not None and array.size == 1]
    if len(numbers) != len(arrays) or numbers[2] != 0 or numbers[3:] not in ([], [1]):
        return None
    return numbers[0], numbers[1]


def _join(value: ir.Value) -> ir.Node | None:
    """The Concat along the first axis that ``value`` goes to."""
    for passed in passed_on(value, rank_or(value, 4)):
        for node, _ in readers(passed.value):
            if is_standard(node, "Concat") and integer_of(node, "axis", 0) == 0:
                return node
    return None
