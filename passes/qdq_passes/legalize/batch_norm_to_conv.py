"""batch-norm-to-conv

y = γ(x − μ)/√(var + ε) + β = f·x + b per channel, with f = γ/√(var + ε) and b = β + (−μ)·f."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, new_constant
from qdq_passes.graph.operators.layers import DEFAULT_EPSILON, normalizes_by_input
from qdq_passes.graph.operators.qdq_ops import OPSET_OF_BFLOAT16, opset_at
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import constant_array, float_of, integer_of, label
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

BOUNDED = Keeps(
    "bounded",
    bound=2.0**-8,
    why="f and b are rounded once and so are f·x and the sum: 4·2^-24·(|f·x| + |b|) in float32, 4·2^-11 in float16; left for |b| "
    "up to half of max|y|",
)


@dataclass(frozen=True)
class BatchNormToConv(Pass):
    """Turn a BatchNormalization on images, which no layer took over, into a depthwise 1x1 Conv.

    Graph: ``x [N, C, H, W] → BatchNormalization(γ, β, μ, var) → y`` → ``x → Conv(yweights [C, 1, 1, 1], ybias [C]) → y``.
    Requires: nothing.
    Keeps: inputs, outputs and all names; numerics within the bound.
    Skips: inputs that are not known to have four dimensions; parameters that are computed; training; statistics per element
    (``spatial=0``); bfloat16 before opset 22.

    Args:
        select: the operators.
        epsilon: ε of a node that has none; ONNX says 1e-5, the reference computes with 1e-10 here.
    """

    select: Selector = ALL
    epsilon: float = DEFAULT_EPSILON

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Bounded; with another default of ε, what that makes of nodes that have none."""
        return (
            BOUNDED
            if self.epsilon == DEFAULT_EPSILON
            else Keeps("changes", why=f"nodes without ε have {self.epsilon:g}")
        )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """In place: names, scope and wiring stay."""
        namer, inferred = Namer(model), Inferred(model)
        for node in nodes_of_types(model, self.select, "BatchNormalization"):
            parameters = [constant_array(value) for value in node.inputs[1:5]]
            reason = _why_not(node, opset_at(model, node), parameters, inferred)
            if reason:
                yield skip(node, reason)
                continue
            dtype = inferred.dtype(node.inputs[0]) if node.inputs[0] is not None else None
            assert dtype is not None
            weight, bias = self._folded(node, [array for array in parameters if array is not None])
            _become_conv(node, weight.astype(dtype.numpy()), bias.astype(dtype.numpy()), namer)
            yield Change("replace", label(node), f"depthwise 1x1 Conv on {len(bias)} channels")

    def _folded(self, node: ir.Node, parameters: list[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """f and b, both [C], in float32 (float64 for such parameters)."""
        gamma, beta, mean, variance = (array.astype(np.result_type(array.dtype, np.float32)) for array in parameters)
        factor = gamma / np.sqrt(variance + variance.dtype.type(float_of(node, "epsilon", self.epsilon)))
        return factor, beta + (-mean) * factor


def _why_not(node: ir.Node, opset: int, parameters: list[npt.NDArray[Any] | None], inferred: Inferred) -> str:
    """Why the BatchNormalization ``node`` cannot be a Conv; empty where it can."""
    source = node.inputs[0]
    if source is None or inferred.rank(source) != 4:
        rank = None if source is None else inferred.rank(source)
        return "its rank is not known; run infer-shapes first" if rank is None else f"has {rank} dimensions, not 4"
    dtype = inferred.dtype(source)
    if dtype is None:
        return "its type is not known; run infer-shapes first"
    if dtype == ir.DataType.BFLOAT16 and opset < OPSET_OF_BFLOAT16:
        return f"is of bfloat16, which Conv of opset {opset} does not take"
    shapes = {array.shape for array in parameters if array is not None}
    if len(parameters) != 4 or any(array is None for array in parameters):
        return "a parameter is not constant"
    if len(shapes) != 1 or len(next(iter(shapes))) != 1 or not integer_of(node, "spatial", 1):
        return "has statistics for every element, not for every channel"
    if normalizes_by_input(node, opset) or any(
        value.name and (value.uses() or value.is_graph_output()) for value in node.outputs[1:]
    ):
        return "is in training mode"
    return "has attributes of its function" if any(a.is_ref() for a in node.attributes.values()) else ""


def _become_conv(node: ir.Node, weight: npt.NDArray[Any], bias: npt.NDArray[Any], namer: Namer) -> None:
    graph, olds, name = graph_of(node), node.inputs[1:], node.outputs[0].name
    constants = {"weights": weight.reshape(-1, 1, 1, 1), "bias": bias}
    new = [new_constant(graph, namer, f"{name}{key}", data, [node]) for key, data in constants.items()]
    node.op_type = "Conv"
    node.resize_inputs(3)
    node.resize_outputs(1)
    node.replace_input_with(1, new[0])
    node.replace_input_with(2, new[1])
    node.attributes.clear()
    attributes = {"dilations": [1, 1], "kernel_shape": [1, 1], "pads": [0, 0, 0, 0], "strides": [1, 1]}
    for made in (ir.AttrInt64("group", len(bias)), *(ir.AttrInt64s(key, data) for key, data in attributes.items())):
        node.attributes[made.name] = made
    drop_unread(olds)
