"""Outputs that are orders or indices, or were selected by such: they are compared before the operator that selects.

One step of a score turns an ArgMax or reorders a TopK, and a NonMaxSuppression keeps another number of boxes: the SQNR of what
they write says nothing about noise. What stands between them and the output selects and moves; behind a product of matrices or a
convolution what was selected is data like any other."""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir
from qdq_passes.graph.operators.macs import macs_of
from qdq_passes.graph.uses import constant_array, is_standard

#: Operators that write an order, indices, or what such select.
SELECTING = ("ArgMax", "ArgMin", "Compress", "NonMaxSuppression", "NonZero", "TopK", "Unique")


def compared_before(model: ir.Model, tensors: Callable[[], Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Output → the float tensors that it is selected from, in graph order; outputs that nothing selects are left out.

    Args:
        model: the reference, only read.
        tensors: gives the names of the float tensors that can be compared; called where anything selects.
    """
    chosen = _chosen(model)
    if not chosen:
        return {}
    shared = set(tensors())
    found = {value.name: _sources(value, chosen, shared) for value in model.graph.outputs if value in chosen}
    return {name: sources for name, sources in found.items() if name and sources}


def _chosen(model: ir.Model) -> set[ir.Value]:
    """The values of the main graph that are an order or indices, or were selected by such."""
    found: set[ir.Value] = set()
    for node in model.graph:
        passes_on = macs_of(node) == 0
        if is_standard(node, *SELECTING) or (
            passes_on and not found.isdisjoint(v for v in node.inputs if v is not None)
        ):
            found |= set(node.outputs)
    return found


def _sources(output: ir.Value, chosen: set[ir.Value], shared: set[str]) -> tuple[str, ...]:
    """The first tensors on the way back from ``output`` that nothing selects, are floats, and stand in both models."""
    seen: set[ir.Value] = set()
    names, rest = list[str](), [output]
    while rest:
        value = rest.pop()
        if value in seen or constant_array(value) is not None:
            continue
        seen.add(value)
        producer = value.producer()
        if value not in chosen and value.name in shared:
            names += [value.name] if producer is not None and value.name else []
        elif producer is not None and not is_standard(producer, "Shape", "Size"):
            rest += [each for each in producer.inputs if each is not None]
    return tuple(reversed(names))
