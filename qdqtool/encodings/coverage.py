"""Coverage: which tensors that an integer NPU wants to have an encoding have none."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from qdq_passes.encode.annotate_encodings import is_inside_group
from qdq_passes.encode.look.demands import QUANTIZED_OPS, Demands, Role, demands_of
from qdq_passes.fuse.fuse_conv_activation import FuseConvActivation
from qdq_passes.graph.annotate import FUSED
from qdq_passes.graph.uses import main_nodes


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A tensor without an encoding.

    Args:
        value: the tensor.
        role: what it is to those who want it quantized.
        nodes: names of those.
        fused: it lies between a layer and its activation, where no encoding belongs.
    """

    value: ir.Value
    role: Role
    nodes: tuple[str, ...]
    fused: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"tensor": self.value.name, "role": self.role, "nodes": list(self.nodes)}


def missing_encodings(model: ir.Model, encoded: Collection[ir.Value]) -> list[Missing]:
    """The tensors that operators of the main graph demand and that are not in ``encoded``, in the order of the graph."""
    demands = demands_of(model, set(QUANTIZED_OPS), set(main_nodes(model)))
    fused = _fused(model, demands)
    return [
        Missing(value=value, role=demands.role(value), nodes=nodes, fused=value in fused)
        for value, nodes in demands.items()
        if value not in encoded
    ]


def _fused(model: ir.Model, demands: Demands) -> set[ir.Value]:
    """Values inside a layer with its activation; the marks are taken off again."""
    had = {value: mark for value in demands.nodes if (mark := FUSED.get(value)) is not None}
    list(FuseConvActivation().run(model))
    found = {value for value, nodes in demands.items() if is_inside_group(value, nodes)}
    for node in main_nodes(model):
        for value in node.outputs:
            if value not in had:
                FUSED.clear(value)
    return found
