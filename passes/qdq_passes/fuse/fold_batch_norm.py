"""fold-batch-norm"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.analysis.uses import all_nodes, constant_array, is_standard, only_reader
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.edit import Namer, bypass, drop_unread, graph_of, inherit, new_constant

#: onnx's default of BatchNormalization.epsilon.
DEFAULT_EPSILON = 1e-5


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Fold BatchNormalization into the weights of the Conv, ConvTranspose or Gemm before it.

    Y = γ(WX + B − μ)/σ + β with σ = √(var + ε)  ⇒  f = γ/σ, W' = W·f over the output channels, B' = (B − μ)·f + β.
    Weight [M, C/g, kH, kW]: f along axis 0; ConvTranspose [C, M/g, kH, kW]: axis 1, per group; Gemm [K, N]: axis 1 (0 if transB).

    Graph: ``x → Conv(w, b) → t → BatchNormalization → y`` → ``x → Conv(w', b') → y``. The new initializers are ``y_weight``
    and ``y_bias``; the Conv keeps its name, the output keeps the BatchNormalization's.
    Requires: weights and the four parameters are constants.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: t has other readers or is a graph output; training mode; a Gemm with alpha or beta; unknown parameters.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-14,
        why="for |B|, |μ| up to 2^4·σ; "
        "W' and B' are rounded once (2^-24 relative each) and the sum of K products associates differently: error ≤ "
        "(K + 3)·2^-24·Σ|w'x|; with K ≤ 2^7..2^12 and random signs about √K·2^-24 ≤ 2^-18 of max|y|, 2^4 left for cancellation",
    )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Fold one BatchNormalization after the other; a chain of them folds from the front."""
        namer = Namer(model)
        for node in all_nodes(model):
            if not is_standard(node, "BatchNormalization"):
                continue
            layer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
            if layer is None or not is_standard(layer, "Conv", "ConvTranspose", "Gemm"):
                continue
            reason = _why_not(node, layer)
            if reason is not None:
                yield skip(node, reason)
            else:
                yield from _fold(node, layer, namer)


def _why_not(node: ir.Node, layer: ir.Node) -> str | None:
    if only_reader(layer.outputs[0]) is not node:
        return f"the output of {layer.name} has other readers"
    training = node.attributes.get("training_mode")
    if len([v for v in node.outputs if v.name]) > 1 or (training is not None and training.as_int()):
        return "is in training mode"
    parameters = [layer.inputs[1], *(layer.inputs[2:3]), *node.inputs[1:5]]
    if any(v is not None and constant_array(v) is None for v in parameters):
        return "a weight or parameter is not constant"
    if layer.op_type == "Gemm" and any(_float(layer, key, 1.0) != 1.0 for key in ("alpha", "beta")):
        return f"{layer.name} has alpha or beta"
    if layer.inputs[1] is None or layer.inputs[1].dtype not in (None, ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return "weights are not float32 or float64"
    return None


def _fold(node: ir.Node, layer: ir.Node, namer: Namer) -> Iterator[Change]:
    gamma, beta, mean, variance = (_array(v) for v in node.inputs[1:5])
    weight = _array(layer.inputs[1])
    wide = np.float64
    factor = gamma.astype(wide) / np.sqrt(variance.astype(wide) + _float(node, "epsilon", DEFAULT_EPSILON))
    bias_value = layer.inputs[2] if len(layer.inputs) > 2 else None
    old_bias = _array(bias_value).astype(wide) if bias_value is not None else np.zeros_like(factor)
    bias = ((old_bias - mean) * factor + beta).astype(weight.dtype)
    scaled = (weight.astype(wide) * _along_outputs(layer, factor, weight.shape)).astype(weight.dtype)

    owner, base = graph_of(layer), node.outputs[0].name or layer.name or "folded"
    olds = [layer.inputs[1], bias_value, *node.inputs[1:5]]
    layer.replace_input_with(1, new_constant(owner, namer, f"{base}_weight", scaled, [layer]))
    if len(layer.inputs) < 3:
        layer.resize_inputs(3)
    layer.replace_input_with(2, new_constant(owner, namer, f"{base}_bias", bias, [layer]))
    inherit(layer, [layer, node])
    yield Change("edit", layer.name or layer.op_type, f"takes over {node.name}")
    yield from _take_output(layer, node, namer)
    yield from drop_unread(olds)


def _take_output(layer: ir.Node, node: ir.Node, namer: Namer) -> Iterator[Change]:
    """Remove ``node``; the layer's output takes over its output's name, graph output or not."""
    name, was_output = node.outputs[0].name, node.outputs[0].is_graph_output()
    yield bypass(node, namer, f"folded into {layer.name}", source=layer.outputs[0])
    if not was_output and name is not None:
        layer.outputs[0].name = name


def _along_outputs(layer: ir.Node, factor: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """``factor`` [M] shaped to multiply the weight along its output channels."""
    if layer.op_type == "ConvTranspose":
        group = layer.attributes["group"].as_int() if "group" in layer.attributes else 1
        per_group = factor.reshape(group, 1, -1)
        return np.repeat(per_group, shape[0] // group, axis=1).reshape(shape[0], shape[1], *([1] * (len(shape) - 2)))
    if layer.op_type == "Gemm":
        transposed = "transB" in layer.attributes and layer.attributes["transB"].as_int()
        return factor.reshape(-1, 1) if transposed else factor.reshape(1, -1)
    return factor.reshape(-1, *([1] * (len(shape) - 1)))


def _array(value: ir.Value | None) -> npt.NDArray[Any]:
    array = constant_array(value)
    assert array is not None
    return array


def _float(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()
