"""Static shapes that contradict each other at a node, as after a size was set that the graph cannot take."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.sizes import data_shape
from qdq_passes.graph.uses import all_nodes, is_standard

#: Operators whose result has the shape that their inputs are broadcast to.
_BROADCASTING = (
    "Abs", "Add", "And", "Ceil", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "HardSigmoid",
    "HardSwish", "Identity", "LeakyRelu", "Less", "Log", "Max", "Min", "Mul", "Neg", "Or", "Pow", "Relu", "Sigmoid", "Softmax",
    "Softplus", "Sqrt", "Sub", "Tanh", "Where",
)  # fmt: skip


def misfit(model: ir.Model) -> tuple[ir.Node, str] | None:
    """The first node whose static shapes cannot be, and why; None where none is found."""
    for node in all_nodes(model):
        if is_standard(node, "Reshape"):
            given, made = _sizes(node.inputs[0]), _sizes(node.outputs[0])
            if given is not None and made is not None and math.prod(given) != math.prod(made):
                return node, f"makes {list(made)} of {list(given)}, which has another number of elements"
        elif is_standard(node, *_BROADCASTING):
            inputs = node.inputs[:1] if node.op_type == "Clip" else node.inputs
            shapes = [_sizes(value) for value in inputs if value is not None]
            known = [shape for shape in shapes if shape is not None]
            try:
                together = np.broadcast_shapes(*known)
            except ValueError:
                return node, f"combines {' and '.join(str(list(shape)) for shape in known)}"
            made = _sizes(node.outputs[0])
            if len(known) == len(shapes) and made is not None and made != together:
                return node, f"gives {list(together)}, and {list(made)} is stated"
    return None


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of ``value`` where all of it is numbers."""
    if value is None or value.shape is None:
        return data_shape(value)
    sizes = [size for size in value.shape if isinstance(size, int)]
    return tuple(sizes) if len(sizes) == len(value.shape) else None
