"""fold-batch-norm"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.fuse.edit.layers import fold_readers, set_parameters
from qdq_passes.graph.edit import Namer, take_over
from qdq_passes.graph.operators.layers import (
    DEFAULT_EPSILON,
    LAYERS,
    Layer,
    as_layer,
    joined_layers,
    normalizes_by_input,
    why_read_elsewhere,
)
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.uses import all_nodes, constant_array, float_of, is_standard, known_array, label
from qdq_passes.numerics.arrays import Array


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Fold BatchNormalization into the weights of the Conv, ConvTranspose or Gemm before it, through a Concat too.

    Y = γ(WX + B − μ)/σ + β with σ = √(var + ε)  ⇒  f = γ/σ, W' = W·f over the output channels, B' = (B − μ)·f + β.
    Weight [M, C/g, kH, kW]: f along axis 0; ConvTranspose [C, M/g, kH, kW]: axis 1, per group; Gemm [K, N]: axis 1 (0 if transB),
    its alpha stays and its beta goes into B. Behind a Concat of channels each layer takes the f and β of its own channels.

    Graph: ``x → Conv(w, b) → t → BatchNormalization → y`` → ``x → Conv(w', b') → y``. The new initializers are ``y_weight``
    and ``y_bias`` (behind a Concat they are called after the outputs of the layers); the Conv keeps its name, the output keeps
    the BatchNormalization's.
    Requires: weights and the four parameters are constants.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: t has other readers or is a graph output; training mode; unknown parameters; a Concat of anything but layers whose
    outputs have no other readers, or along another axis than the channels'.

    Args:
        precision: what f, W' and B' are computed in before they are rounded to the type of the weights.
        concat: also behind a Concat of layers; ``none``: unless ``reference``.
        reference: fold what XINT8 of AMD Quark 0.13 folds: into Conv and ConvTranspose only; they are called like their former
            outputs.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-14,
        why="for |B|, |μ| up to 2^4·σ; "
        "W' and B' are rounded once (2^-24 relative each) and the sum of K products associates differently: error ≤ "
        "(K + 3)·2^-24·Σ|w'x|; with K ≤ 2^7..2^12 and random signs about √K·2^-24 ≤ 2^-18 of max|y|, 2^4 left for cancellation",
    )
    precision: Literal["float64", "float32"] = "float64"
    concat: bool | None = None
    reference: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Layers first, then what joins them; a chain of BatchNormalizations folds from the front."""
        namer = Namer(model)
        layers = ("Conv", "ConvTranspose") if self.reference else LAYERS
        is_joined = not self.reference if self.concat is None else self.concat
        sources = (*layers, "Concat") if is_joined else layers
        found = [node for node in all_nodes(model) if is_standard(node, *sources)]
        for source in sorted(found, key=lambda node: node.op_type == "Concat"):

            def fold(node: ir.Node, source: ir.Node = source) -> list[Change] | str:
                layers = _layers(model, node, source)
                return layers if isinstance(layers, str) else self._fold(node, source, layers, namer)

            yield from fold_readers(source, ("BatchNormalization",), fold)

    def _fold(self, node: ir.Node, source: ir.Node, layers: list[Layer], namer: Namer) -> list[Change] | str:
        wide: type = np.float64 if self.precision == "float64" else layers[0].weight.dtype.type
        parameters: list[Array] = [known_array(v).astype(wide) for v in node.inputs[1:5]]
        gamma, beta, mean, variance = parameters
        with np.errstate(all="ignore"):
            factor = gamma / np.sqrt(variance + wide(float_of(node, "epsilon", DEFAULT_EPSILON)))
        if not np.isfinite(factor).all():
            return "γ/√(var + ε) is not finite"
        changes, start = [], 0
        for layer in layers:
            part = slice(start, start := start + layer.channels)
            old = np.zeros_like(mean[part]) if layer.bias is None else layer.bias.astype(wide)
            if layer.node.op_type == "Gemm":
                old = old * wide(float_of(layer.node, "beta", 1.0))
                layer.node.attributes.pop("beta", None)
            bias = ((old - mean[part]) * factor[part] + beta[part]).astype(layer.weight.dtype)
            weight = (layer.weight.astype(wide) * layer.along_outputs(factor[part])).astype(layer.weight.dtype)
            named_after = node if layer.node is source else layer.node
            base = named_after.outputs[0].name or layer.node.name or "folded"
            changes.append(Change("edit", label(layer.node), f"takes over {node.name}"))
            changes += set_parameters(layer.node, namer, base, weight=weight, bias=bias)
        because = f"folded into {', '.join(label(layer.node) for layer in layers)}"
        return changes + take_over(source.outputs[0], node, namer, because, rename=self.reference)


def _layers(model: ir.Model, node: ir.Node, source: ir.Node) -> list[Layer] | str:
    """The layers that ``source`` stands for, with the channels of the BatchNormalization ``node`` in their order; or why not."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return "has attributes of its function"
    if len([v for v in node.outputs if v.name]) > 1 or normalizes_by_input(node, opset_at(model, node)):
        return "is in training mode"
    reason = why_read_elsewhere(source.outputs[0], node)
    if reason is not None:
        return reason
    if source.op_type == "Concat":
        layers = joined_layers(source)
    else:
        layer = as_layer(source)
        layers = layer if isinstance(layer, str) else [layer]
    parameters = [constant_array(value) for value in node.inputs[1:5]]
    if isinstance(layers, str) or any(array is None for array in parameters):
        return layers if isinstance(layers, str) else "a parameter is not constant"
    channels = sum(layer.channels for layer in layers)
    shapes = {array.shape for array in parameters if array is not None}
    return layers if shapes == {(channels,)} else f"its parameters are not one number for each of {channels} channels"
