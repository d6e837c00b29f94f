"""fuse-conv-activation"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.uses import constant_array, is_standard, main_nodes, only_reader
from qdq_passes.core.annotate import FUSED, Fused
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.core.select import ALL, Selector, select_nodes

#: Operators whose result an NPU keeps in its accumulator while the activation is applied (`facts` of the Vitis line, §2.4).
PRODUCERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
ACTIVATIONS = ("Relu", "LeakyRelu", "PRelu", "Clip")


@dataclass(frozen=True)
class FuseConvActivation(Pass):
    """Mark Conv, ConvTranspose, Gemm, MatMul or Add and the activation behind it as one group: no QDQ pair between them.

    Graph: unchanged; the value between the two gets the annotation ``fused``.
    Requires: nothing.
    Keeps: everything; numerics bit-exact (what is inserted later depends on the mark).
    Skips: the value has other readers; a Clip that is not Relu6 or Clip(0, 1); an activation in a body; nodes outside ``select``.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Mark in the order of the graph."""
        wanted = select_nodes(model, self.select)
        for node in main_nodes(model):
            if node not in wanted or not is_standard(node, *PRODUCERS):
                continue
            value = node.outputs[0]
            readers = [
                user for user in value.consumers() if user.graph is node.graph and is_standard(user, *ACTIVATIONS)
            ]
            if not readers:
                continue
            activation = only_reader(value)
            if activation is None or activation.inputs[0] is not value:
                yield skip(node, "its output has other readers than the activation")
            elif activation.op_type == "Clip" and not _is_bounded_relu(activation):
                yield skip(activation, "is no Clip(0, 6) or Clip(0, 1)")
            elif FUSED.get(value) is None:
                FUSED.set(value, Fused(node.name or node.op_type))
                yield Change("annotate", value.name or "", f"{node.name} and {activation.name} are one group")


def _is_bounded_relu(clip: ir.Node) -> bool:
    """Whether ``clip`` has constant bounds (0, 6) or (0, 1); attributes before opset 11, inputs since."""
    if "min" in clip.attributes or "max" in clip.attributes:
        bounds = [clip.attributes[k].as_float() if k in clip.attributes else None for k in ("min", "max")]
    else:
        arrays = [constant_array(v) for v in (*clip.inputs[1:3], None, None)[:2]]
        bounds = [float(np.asarray(a).reshape(-1)[0]) if a is not None and a.size == 1 else None for a in arrays]
    return bounds in ([0.0, 6.0], [0.0, 1.0])
