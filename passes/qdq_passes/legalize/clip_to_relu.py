"""clip-to-relu"""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import drop_unread
from qdq_passes.graph.operators.activations import clip_bound
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, label
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

#: First opset whose Relu takes integers.
OPSET_OF_INTEGERS = 14


@dataclass(frozen=True)
class ClipToRelu(Pass):
    """Turn a Clip that only cuts off what is below 0 into a Relu.

    Graph: ``Clip(x, 0)``, ``Clip(x, 0, inf)`` → ``Relu(x)``.
    Requires: nothing.
    Keeps: inputs, outputs and all names; numerics bit-exact on finite values, unless ``clip6`` (a Clip without ``max`` makes the
    largest float of +inf in onnxruntime, a Relu lets it through).
    Skips: other bounds; bounds that are computed; integers before opset 14.

    Args:
        select: the operators.
        clip6: Clip(x, 0, 6) becomes a Relu too (ReplaceClip6Relu of VINT8): values above 6 are let through.
    """

    select: Selector = ALL
    clip6: bool = False

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Exact; with ``clip6`` another function above 6."""
        return Keeps("changes", why="values above 6 are let through") if self.clip6 else EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """In place: names, scope and wiring stay."""
        inferred = Inferred(model)
        for node in nodes_of_types(model, self.select, "Clip"):
            dtype = inferred.dtype(node.inputs[0]) if node.inputs[0] is not None else None
            reason = self._why_not(node, dtype, opset_at(model, node))
            if reason:
                yield skip(node, reason)
                continue
            bounds = node.inputs[1:]
            node.op_type = "Relu"
            node.attributes.clear()
            node.resize_inputs(1)
            drop_unread(bounds)
            yield Change("replace", label(node), "cuts off what is below 0, and nothing else")

    def _why_not(self, node: ir.Node, dtype: ir.DataType | None, opset: int) -> str:
        """Why ``node`` is no Relu; empty where it is."""
        low, high = clip_bound(node, "min"), clip_bound(node, "max")
        if isinstance(low, str) or isinstance(high, str):
            return f"its {'min' if isinstance(low, str) else 'max'} {low if isinstance(low, str) else high}"
        if dtype is None:
            return "its type is not known; run infer-shapes first"
        if low is None or low != 0:
            return f"cuts off what is below {low:g}" if low is not None else "cuts off nothing below"
        if high is not None and high < _largest(dtype) and not (self.clip6 and math.isclose(high, 6, abs_tol=1e-6)):
            return f"cuts off what is above {high:g}"
        if dtype not in FLOAT_TYPES and opset < OPSET_OF_INTEGERS:
            return f"is of {dtype.name.lower()}, which Relu of opset {opset} does not take"
        return ""


def _largest(dtype: ir.DataType) -> float:
    """The largest finite number of ``dtype``."""
    if dtype not in FLOAT_TYPES:
        return int(np.iinfo(dtype.numpy()).max)
    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]
