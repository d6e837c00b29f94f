"""Tensors in which a mask hides keys: what is hidden is no signal, -3.4e38 in one model and -64 in the other."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from qdq_passes.attention.look.masks import HUGE, before_softmax, float_constant, hiding_constants, is_two_valued
from qdq_passes.graph.uses import is_standard, main_nodes
from qdq_passes.numerics.arrays import Array


def hidden_below(model: ir.Model) -> dict[str, float]:
    """Of what a Softmax of ``model`` reads, and of the masks and scores in it, by name: where keys are hidden.

    At -2^13, or half way to the number of a constant mask of 0 and that number.
    """
    found: dict[str, float] = {}
    for softmax in main_nodes(model):
        if not is_standard(softmax, "Softmax"):
            continue
        for value in before_softmax(softmax.inputs[0]):
            arrays = [float_constant(node.inputs[index]) for node, index in hiding_constants(value)]
            lows = [float(array.min()) / 2 for array in arrays if array is not None and is_two_valued(array)]
            found[value.name or ""] = max([HUGE, *lows])
    return found


def seen(x: Array, y: Array, below: float | None) -> Array:
    """``y``, but 0 where ``x`` hides a key, and ``y`` does as well: there it is at or below all that is seen.

    Args:
        x: the reference.
        y: the tensor, of the same shape.
        below: where ``x`` hides keys; None: nowhere.
    """
    if below is None or x.dtype.kind != "f" or y.dtype.kind != "f":
        return y
    hidden = x <= below
    if not hidden.any() or not float(y[hidden].max()) <= float(y[~hidden].min(initial=np.inf)):
        return y
    return np.where(hidden, y.dtype.type(0), y)
