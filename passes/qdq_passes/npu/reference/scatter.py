"""Operators of the reference that choose by indices: GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter.

Of two updates of one element the last stays; negative indices count from the end, as numpy's do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.npu.reference.values import NotRepresentable
from qdq_passes.numerics.arrays import Array

Inputs = Sequence[Array | None]


def expected(inputs: Inputs, index: int) -> Array:
    """Input ``index``.

    Raises:
        NotRepresentable: it is left out.
    """
    found = inputs[index] if index < len(inputs) else None
    if found is None:
        raise NotRepresentable(f"it has no input {index}")
    return found


def _gather_elements(node: ir.Node, inputs: Inputs) -> Array:
    """y[i, j, k] = x[i, indices[i, j, k], k] for axis 1."""
    x, indices = expected(inputs, 0), _indices(inputs, 1)
    axis, grid = node.attributes.get_int("axis", 0) % x.ndim, np.indices(indices.shape, np.int64)
    return np.asarray(x[tuple(indices if number == axis else grid[number] for number in range(x.ndim))])


def _gather_nd(node: ir.Node, inputs: Inputs) -> Array:
    """y[b…, i…] = x[b…, indices[b…, i…]…], b along batch_dims axes."""
    x, indices = expected(inputs, 0), _indices(inputs, 1)
    batch = node.attributes.get_int("batch_dims", 0)
    blocks = [
        x[at][tuple(np.moveaxis(indices[at], -1, 0))] for at in itertools.product(*(range(n) for n in x.shape[:batch]))
    ]
    return np.reshape(np.array(blocks), (*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :]))


def _scatter_elements(node: ir.Node, inputs: Inputs) -> Array:
    """y[i, indices[i, j, k], k] = updates[i, j, k] for axis 1."""
    _refuse_reduction(node)
    y, indices, updates = expected(inputs, 0).copy(), _indices(inputs, 1), expected(inputs, 2)
    axis = node.attributes.get_int("axis", 0)
    for place in np.ndindex(*indices.shape):
        to = list(place)
        to[axis] = int(indices[place])
        y[tuple(to)] = updates[place]
    return y


def _scatter_nd(node: ir.Node, inputs: Inputs) -> Array:
    """y[indices[i…]…] = updates[i…]"""
    _refuse_reduction(node)
    y, indices, updates = expected(inputs, 0).copy(), _indices(inputs, 1), expected(inputs, 2)
    for place in np.ndindex(*indices.shape[:-1]):
        y[tuple(indices[place])] = updates[place]
    return y


def _tensor_scatter(node: ir.Node, inputs: Inputs) -> Array:
    """y[b, …, write_indices[b] + i, …] = update[b, …, i, …] along ``axis``; circular: beyond the end from the start on."""
    axis = node.attributes.get_int("axis", -2)
    circular = node.attributes.get_string("mode", "linear") == "circular"
    starts = _indices(inputs, 2) if len(inputs) > 2 and inputs[2] is not None else None
    y = np.moveaxis(expected(inputs, 0), axis, 1).copy()
    update, size = np.moveaxis(expected(inputs, 1), axis, 1), y.shape[1]
    for batch in range(len(y)):
        for i in range(update.shape[1]):
            at = i + (0 if starts is None else int(starts[batch]))
            y[batch, at % size if circular else at] = update[batch, i]
    return np.moveaxis(y, 1, axis)


#: Operator → what computes it of its inputs.
SCATTERS: Mapping[str, Callable[[ir.Node, Inputs], Array]] = {
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}


def _indices(inputs: Inputs, index: int) -> npt.NDArray[np.int64]:
    return expected(inputs, index).astype(np.int64)


def _refuse_reduction(node: ir.Node) -> None:
    reduction = node.attributes.get_string("reduction", "none")
    if reduction != "none":
        raise NotRepresentable(f"it reduces ({reduction})")
