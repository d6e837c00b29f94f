"""Operators that put the elements of one tensor into another order or shape, computed on constants of any type."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.uses import constant_array, is_standard
from qdq_passes.numerics.arrays import Array

#: Operators that write every element of their first input, in another order or shape.
REARRANGING = ("Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")


def rearranged_by(node: ir.Node, array: Array) -> Array | None:
    """What ``node`` makes of ``array``, its first input; None where it is no such operator or depends on what is not constant."""
    if not is_standard(node, *REARRANGING):
        return None
    given = [constant_array(value) for value in node.inputs[1:] if value is not None]
    if any(a is None for a in given) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    numbers = [int(i) for i in np.ravel(given[0])] if given and given[0] is not None else None
    for name in ("perm", "axes", "shape"):  # attributes of older opsets, but for perm
        if name in node.attributes:
            numbers = list(node.attributes[name].as_ints())
    if node.op_type == "Identity":
        return array
    if node.op_type == "Transpose":
        return np.transpose(array, numbers)
    if node.op_type == "Flatten":
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
        axis += array.ndim if axis < 0 else 0
        return array.reshape(int(np.prod(array.shape[:axis], dtype=np.int64)), -1) if array.size else None
    if node.op_type == "Squeeze":
        return np.squeeze(array, tuple(numbers) if numbers else None)
    if numbers is None:
        return None
    if node.op_type == "Unsqueeze":
        return np.expand_dims(array, tuple(numbers))
    if not array.size or ("allowzero" in node.attributes and node.attributes["allowzero"].as_int()):
        return None
    return array.reshape([array.shape[i] if n == 0 else n for i, n in enumerate(numbers)])
