"""infer-shapes"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import changes_of
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.shapes.inference import infer_shapes


@dataclass(frozen=True)
class InferShapes(Pass):
    """Add types and shapes of intermediate values, as onnx's own inference finds them.

    Graph: unchanged; values gain type and shape.
    Requires: nothing; where inference fails for an operator its values stay unknown.
    Keeps: everything; numerics bit-exact.
    Skips: values whose shape cannot be inferred; a shape that is already known is not overwritten by a vaguer one.
    """

    keeps: ClassVar[Keeps] = EXACT
    data_propagation: bool = True

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Run onnx's shape inference on the model without its large weights."""
        yield from changes_of(model, lambda m: infer_shapes(m, data_propagation=self.data_propagation), "inferred")
