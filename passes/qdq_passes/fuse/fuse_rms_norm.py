"""fuse-rms-norm"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps
from qdq_passes.fuse._norms import BOUNDED, ROOTS, match_of
from qdq_passes.fuse.edit.fusion import SINCE, FusionPass, Match, fuse, raised, why_not_as_it_is
from qdq_passes.graph.build import Builder, Site, drop_chains, take_place
from qdq_passes.graph.uses import constant_array, dtype_of, graph_likes


@dataclass(frozen=True)
class FuseRmsNorm(FusionPass):
    """Recognise RMSNormalization in its pieces: one operator from opset 23 on, else a group that is quantized as one.

    y = x/√(mean(x²) + ε)·γ, the mean along the last k axes, γ [the last k axes]. All orders and groupings count: squares by Mul
    or Pow, the root by Sqrt or Pow, division by Div, Reciprocal or 1/…, x·(γ/…), Casts to float32 around it (float16 models).

    Graph: ``x → Pow, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul → y`` → ``x → RMSNormalization(γ) → y``; or unchanged, its
    nodes annotated ``part`` and the values between them ``fused``; or, with ``layer-norm``, ``x → Concat with −x →
    LayerNormalization([γ, γ]) → Slice → y``, the mean being 0 and the variance the mean of x².
    Requires: shapes, where axes are counted from the front or γ is missing.
    Keeps: inputs, outputs and their names; numerics within the bound, bit-exact with ``into=group``.
    Skips: an inner value that others read or that is a graph output; an ε that is not constant; other axes than the last ones;
    the operator where it would compute other numbers (arithmetic in float16 or float64) or the opset lacks it.

    Args:
        into: ``operator`` replaces the nodes, ``group`` marks them, ``auto`` replaces them where it can.
        raise_opset: first convert the model to the opset of the operator, where nothing else is in its way; what cannot be
            converted stays in pieces.
        layer_norm: write it with LayerNormalization (opset 17), for targets that have no other norm.
    """

    bounded: ClassVar[Keeps] = BOUNDED
    layer_norm: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From each square root."""
        if self.layer_norm:
            if self.raise_opset:
                yield from raised(model, ROOTS, _layer_norm_of, self.into)
            yield from _written_with_layer_norm(model)
            return
        yield from fuse(
            model, ROOTS, lambda node: match_of(node, "RMSNormalization"), self.into, raise_opset=self.raise_opset
        )


def _layer_norm_of(node: ir.Node) -> Match | None:
    """What `fuse` would make of root ``node``, where that can be a LayerNormalization of the last axis."""
    found = match_of(node, "RMSNormalization")
    if not isinstance(found, Match) or why_not_as_it_is(found):
        return None
    is_last = any(attribute.name == "axis" and attribute.as_int() == -1 for attribute in found.attributes)
    return replace(found, operator="LayerNormalization") if is_last else None


def _written_with_layer_norm(model: ir.Model) -> Iterator[Change]:
    builder = Builder(model)
    for part in graph_likes(model):
        if part.opset_imports.get("", 1) < SINCE["LayerNormalization"]:
            continue
        for node in [node for node in part.all_nodes() if node.op_type in ROOTS]:
            found = _layer_norm_of(node) if node.graph is not None else None
            if found is None:
                continue
            last = found.nodes[-1]
            read = [value for inner in found.nodes for value in inner.inputs]
            value = _layer_norm(found, builder.at(last, stands_for=found.nodes))
            yield take_place(last, [value], builder.namer, f"{len(found.nodes)} nodes written with LayerNormalization")
            yield from drop_chains(read)


def _layer_norm(match: Match, at: Site) -> ir.Value:
    """The first half of a LayerNormalization of x and −x."""
    x, gain = match.operands[:2]
    assert isinstance(x, ir.Value)
    dtype = dtype_of(x)
    assert dtype is not None
    weight = constant_array(gain) if isinstance(gain, ir.Value) else gain
    assert weight is not None
    opposite = at("Mul", x, at.constant(-1.0, dtype, "number"), name="Neg")
    y = at("Concat", x, opposite, axis=-1)
    y = at("LayerNormalization", y, at.constant(np.concatenate([weight, weight]), dtype, "gain"))
    y_node = y.producer()
    assert y_node is not None
    for attribute in match.attributes:
        y_node.attributes[attribute.name] = attribute
    return at.slice(y, -1, 0, weight.size)
