"""fuse-conv-activation"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.annotate import FUSED, PART, Fused
from qdq_passes.graph.operators.activations import ACTIVATIONS, AVERAGE_POOLS, PRODUCERS, is_relu6_or_relu1
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.uses import is_standard, label, main_nodes, only_reader
from qdq_passes.select.selectors import ALL, Selector, select_nodes

#: From this opset on onnxruntime does not load an int8 pair before a MaxPool and none behind it: the pair it puts there keeps
#: an ``output_dtype`` of INT8 when it turns the integers into uint8 (seen in 1.31.1, on x86).
UNREAD_POOL_OPSET = 21


@dataclass(frozen=True)
class FuseConvActivation(Pass):
    """Mark a layer and the activation behind it, or a Pad and the average pool behind it, as one group: no QDQ pair between them.

    Graph: unchanged; the value between the two gets the annotation ``fused``.
    Requires: nothing.
    Keeps: everything; numerics bit-exact (what is inserted later depends on the mark).
    Skips: the value has other readers or is a graph output; a Clip that is not Relu6 or Clip(0, 1) within 1e-6; an activation in
    a body; nodes of a group that computes one operator (fuse-gelu and its like); nodes outside ``select``; MaxPool from opset 21
    on, as onnxruntime would not load the quantized model (a pair behind it costs nothing: it has the scale of the one before).

    Args:
        select: layers and Pads to begin with.
        producers: operator types of layers; InstanceNormalization is none by default.
        activations: operator types that may follow them; Gelu is none by default.
        pools: operator types that may follow a Pad.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    producers: tuple[str, ...] = PRODUCERS
    activations: tuple[str, ...] = ACTIVATIONS
    pools: tuple[str, ...] = AVERAGE_POOLS

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Mark in the order of the graph."""
        wanted = select_nodes(model, self.select)
        for node in main_nodes(model):
            followers = self._followers(node) if node in wanted else ()
            if not followers or PART.get(node) is not None:
                continue
            value, word = node.outputs[0], "pool" if node.op_type == "Pad" else "activation"
            if not any(user.graph is node.graph and is_standard(user, *followers) for user in value.consumers()):
                continue
            reader = only_reader(value)
            if reader is None or reader.inputs[0] is not value:
                yield skip(node, f"its output has other readers than the {word}")
            elif reader.op_type == "Clip" and not is_relu6_or_relu1(reader):
                yield skip(reader, "is no Clip(0, 6) or Clip(0, 1)")
            elif node.op_type == "MaxPool" and opset_at(model, node) >= UNREAD_POOL_OPSET:
                yield skip(
                    node, f"onnxruntime loads no MaxPool without a pair behind it from opset {UNREAD_POOL_OPSET} on"
                )
            elif FUSED.get(value) is None and PART.get(reader) is None:
                FUSED.set(value, Fused(label(node)))
                yield Change("annotate", value.name or "", f"{node.name} and {reader.name} are one group")

    def _followers(self, node: ir.Node) -> tuple[str, ...]:
        """Operator types that make one group with ``node`` before them."""
        found = self.activations if is_standard(node, *self.producers) else ()
        return found + (self.pools if is_standard(node, "Pad") else ())
