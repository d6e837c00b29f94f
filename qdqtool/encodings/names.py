"""Tensors of a model by name, as encodings files mean them: inputs, weights and results of the main graph and of bodies."""

from __future__ import annotations

import onnx_ir as ir


def values_by_name(model: ir.Model) -> dict[str, ir.Value]:
    """Values of the main graph and of bodies; of two with one name (in sibling bodies) neither. Local functions are left out."""
    found: dict[str, ir.Value] = {}
    twice: set[str] = set()
    for graph in model.graphs():
        values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
        for value in dict.fromkeys(v for v in values if v.name):
            name = value.name or ""
            if name in found:
                twice.add(name)
            found[name] = value
    return {name: value for name, value in found.items() if name not in twice}
