"""decompose-skip-layer-norm"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.primitives import (
    NORM_BOUNDED,
    OPSET_OF_LAYER_NORM,
    OPSET_OF_RMS_NORM,
    Form,
    layer_norm,
    rms_norm,
)
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.build import Builder, Site, take_place
from qdq_passes.graph.edit import drop_unused_domains
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, UNKNOWN_TYPE, all_nodes, float_of
from qdq_passes.select.selectors import ALL, Selector, select_operators

RMS, LAYER = "SkipSimplifiedLayerNormalization", "SkipLayerNormalization"


@dataclass(frozen=True)
class DecomposeSkipLayerNorm(Pass):
    """Write com.microsoft SkipLayerNormalization and SkipSimplifiedLayerNormalization as a sum and its normalization.

    s = x + skip (+ bias); y = normalization(s)·γ (+ β), s being the fourth output.

    Graph: ``x, skip, γ → SkipSimplifiedLayerNormalization → y, s`` → ``x, skip → Add → s → Mul → ReduceMean → … → Mul(γ) → y``;
    the normalization is one operator where the form says so.
    Requires: the type of an input.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: outputs of means and deviations that are read. ``operator`` below its opset is refused.

    Args:
        select: the operators.
        form: ``operator`` writes LayerNormalization (opset 17) and RMSNormalization (opset 23), ``primitives`` their pieces,
            ``auto`` the operator where the opset has it.
    """

    keeps: ClassVar[Keeps] = NORM_BOUNDED
    select: Selector = ALL
    form: Form = "auto"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node."""
        wanted, builder, inferred = select_operators(model, self.select), Builder(model), Inferred(model)
        for node in all_nodes(model):
            if node.op_type not in (RMS, LAYER) or node.domain != "com.microsoft" or node not in wanted:
                continue
            reason = _why_not(node)
            types = {inferred.dtype(value) for value in node.inputs if value is not None} - {None}
            if reason or len(types) != 1 or not types <= FLOAT_TYPES:
                yield skip(node, reason or (UNKNOWN_TYPE if not types else "its inputs are of several types"))
                continue
            site, (dtype,) = builder.at(node), types
            needed = OPSET_OF_RMS_NORM if node.op_type == RMS else OPSET_OF_LAYER_NORM
            if self.form == "operator" and site.opset < needed:
                raise UnsupportedError(
                    f"its operator needs opset {needed}, the model has {site.opset}", where=node.name,
                    hint=f"run convert-opset{{version={needed}}} first, or form=primitives",
                )  # fmt: skip
            assert dtype is not None
            total, y = self._write(node, site, dtype)
            yield take_place(
                node,
                [y, None, None, total],
                builder.namer,
                f"{len(site.nodes)} standard operators that compute the same",
            )
        drop_unused_domains(model, ["com.microsoft"])

    def _write(self, node: ir.Node, site: Site, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
        """The sum, and its normalization."""
        x, skipped, weight, *more = node.inputs
        assert weight is not None
        beta, bias = (None, *more, None)[:2] if node.op_type == RMS else (*more, None, None)[:2]
        total = site("Add", x, skipped, name="Sum")
        if bias is not None:
            total = site("Add", total, bias, name="Biased")
        if node.op_type == RMS:
            return total, rms_norm(
                site, total, weight, dtype=dtype, epsilon=float_of(node, "epsilon", 1e-12), form=self.form
            )
        epsilon = float_of(node, "epsilon", 1e-12)
        return total, layer_norm(site, total, weight, beta, dtype=dtype, epsilon=epsilon, form=self.form)


def _why_not(node: ir.Node) -> str:
    if len(node.inputs) < 3 or None in node.inputs[:3]:
        return "lacks an input"
    return "gives out its means" if any(o.uses() or o.is_graph_output() for o in node.outputs[1:3]) else ""
