"""Shapes of which not all sizes are known: what nodes pick of them may be known all the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.evaluate.exact import exact
from qdq_passes.graph.uses import integer_of, is_standard
from qdq_passes.numerics.arrays import Array

#: Operators that pick, move or join the elements of a shape.
_PICKING = ("Cast", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")
#: First opset in which axes, bounds and shapes are inputs of all of them.
_OPSET = 13


@dataclass(frozen=True)
class Parts:
    """What is known of a value that holds sizes.

    Args:
        sizes: its elements in order; None where one is not known.
        shape: its own shape.
    """

    sizes: list[int | None]
    shape: tuple[int, ...]


def partly_known(node: ir.Node, parts: Mapping[ir.Value, Parts], arrays: Mapping[ir.Value, Array]) -> Parts | None:
    """What is known of the output of ``node``, which picks or joins sizes; None where it does something else.

    Args:
        node: the node.
        parts: values that hold sizes of which some are not known.
        arrays: constants.
    """
    if not is_standard(node, *_PICKING) or (node.op_type == "Cast" and integer_of(node, "to", 0) != ir.DataType.INT64):
        return None
    partial = [value for value in node.inputs if value is not None and value in parts]
    movable = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    if not partial or any(value not in movable for value in partial):
        return None
    if any(value is not None and value not in parts and value not in arrays for value in node.inputs):
        return None
    table: list[int | None] = []
    inputs: list[Array | None] = []
    for value in node.inputs:
        if value is None or value not in movable:
            inputs.append(None if value is None else arrays[value])
            continue
        known = parts.get(value) or Parts([int(i) for i in arrays[value].reshape(-1)], arrays[value].shape)
        places = np.arange(len(table), len(table) + len(known.sizes), dtype=np.int64)
        inputs.append(places.reshape(known.shape))
        table += known.sizes
    found = exact(node, inputs, _OPSET)
    return None if found is None else Parts([table[int(i)] for i in found[0].reshape(-1)], found[0].shape)
