"""decompose-simplified-layer-norm"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.primitives import NORM_BOUNDED, OPSET_OF_RMS_NORM, Form, rms_norm
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.build import Builder, take_place
from qdq_passes.graph.edit import drop_unused_domains
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, UNKNOWN_TYPE, all_nodes, float_of, integer_of
from qdq_passes.select.selectors import ALL, Selector, select_operators


@dataclass(frozen=True)
class DecomposeSimplifiedLayerNorm(Pass):
    """Write SimplifiedLayerNormalization in standard operators: y = x/√(mean(x²) + ε)·γ, the mean from ``axis`` on.

    onnxruntime knows it in the default domain, where onnx does not, and in com.microsoft.

    Graph: ``x, γ → SimplifiedLayerNormalization → y`` → ``x → Mul → ReduceMean → Add → Sqrt → Div → Mul(γ) → y``, in float32
    between Casts where x is float16; or ``x, γ → RMSNormalization → y``.
    Requires: the type of x or γ.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: a second output that is read; an axis from the front where the number of axes is unknown. ``operator`` below its
    opset is refused.

    Args:
        select: the operators.
        form: ``operator`` writes RMSNormalization (opset 23), ``primitives`` its pieces, ``auto`` the operator where it can.
    """

    keeps: ClassVar[Keeps] = NORM_BOUNDED
    select: Selector = ALL
    form: Form = "auto"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node."""
        wanted, builder, inferred = select_operators(model, self.select), Builder(model), Inferred(model)
        for node in all_nodes(model):
            if node.op_type != "SimplifiedLayerNormalization" or node not in wanted:
                continue
            site, axes, dtype = builder.at(node), _axes(node, inferred), _type_of(node, inferred)
            if isinstance(axes, str) or isinstance(dtype, str):
                yield skip(node, axes if isinstance(axes, str) else str(dtype))
                continue
            if self.form == "operator" and site.opset < OPSET_OF_RMS_NORM:
                raise UnsupportedError(
                    f"RMSNormalization needs opset {OPSET_OF_RMS_NORM}, the model has {site.opset}", where=node.name,
                    hint=f"run convert-opset{{version={OPSET_OF_RMS_NORM}}} first, or form=primitives",
                )  # fmt: skip
            x, weight = node.inputs[:2]
            assert x is not None
            assert weight is not None
            epsilon = float_of(node, "epsilon", 1e-5)
            made = rms_norm(site, x, weight, dtype=dtype, epsilon=epsilon, axes=axes, form=self.form)
            yield take_place(node, [made], builder.namer, f"{len(site.nodes)} standard operators that compute the same")
        drop_unused_domains(model, ["com.microsoft"])


def _axes(node: ir.Node, inferred: Inferred) -> list[int] | str:
    """The axes of the mean, counted from the end; or why they are not known."""
    if len(node.inputs) < 2 or None in node.inputs[:2]:
        return "has no factor"
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return "gives out its deviations"
    axis, x = integer_of(node, "axis", -1), node.inputs[0]
    rank = inferred.rank(x) if axis >= 0 and x is not None else 0
    if rank is None:
        return "its axis counts from the front, the number of axes is unknown; run infer-shapes first"
    return list(range(axis - rank if axis >= 0 else axis, 0))


def _type_of(node: ir.Node, inferred: Inferred) -> ir.DataType | str:
    """Element type of x and γ, or why it is not known or not one."""
    given = [inferred.dtype(value) for value in node.inputs[:2] if value is not None]
    known = {dtype for dtype in given if dtype is not None}
    if not known:
        return UNKNOWN_TYPE
    return next(iter(known)) if len(known) == 1 and known <= FLOAT_TYPES else "x and its factor are of two types"
