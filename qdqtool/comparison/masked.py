"""Tensors in which a mask hides keys: what is hidden is no signal, -3.4e38 in one model and -64 in the other.

A key whose score lies 24·ln 2 below the largest of its row has a weight below 2^-24 of the largest: a sum in float32 does not see
it. Where such scores lie apart from the others, further than these lie from each other, a mask made them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes.attention.look.masks import HUGE, before_softmax, operands
from qdq_passes.graph.sizes import data_shape, known_rank
from qdq_passes.graph.uses import is_standard, main_nodes
from qdq_passes.numerics.arrays import Array

_UNSEEN = 24 * math.log(2)


def may_hide(model: ir.Model) -> frozenset[str]:
    """The names of what each Softmax of ``model`` reads, and of masks and scores in it, where one may come in."""
    found: set[str] = set()
    for softmax in main_nodes(model):
        values = list(before_softmax(softmax.inputs[0])) if is_standard(softmax, "Softmax") else []
        if any(_joins(node) for value in values if (node := value.producer()) is not None):
            found |= {value.name for value in values if value.name}
    return frozenset(found)


def _joins(node: ir.Node) -> bool:
    """Whether a mask may come in at ``node``; a bias of one axis is none."""
    if is_standard(node, "Add", "Sum"):
        return all(data_shape(value) is None or known_rank(value) != 1 for value in node.inputs)
    return len(operands(node)) > 1


def seen(x: Array, y: Array) -> Array:
    """``y``, a form of ``x``, but 0 where ``x`` hides a key, and ``y`` does as well: there it is at or below all that is seen."""
    hidden = _hidden(x) if y.dtype.kind == "f" else None
    if hidden is None or not float(y[hidden].max()) <= float(y[~hidden].min(initial=np.inf)):
        return y
    return np.where(hidden, y.dtype.type(0), y)


def _hidden(x: Array) -> npt.NDArray[np.bool_] | None:
    """Where ``x`` hides keys; None where nothing in it lies apart."""
    if x.dtype.kind != "f" or not x.ndim or not x.size:
        return None
    hidden: npt.NDArray[np.bool_] = (x <= HUGE) | (x < x.max(axis=-1, keepdims=True) - _UNSEEN)
    if not hidden.any() or hidden.all():
        return hidden if hidden.any() else None
    low, high = float(x[~hidden].min()), float(x[~hidden].max())
    return hidden if low - float(x[hidden].max()) > high - low else None
