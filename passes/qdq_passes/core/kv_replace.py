"""New values in the place of a node's outputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.core.edit import Namer, hand_over, remove


def take_place(node: ir.Node, values: Sequence[ir.Value | None], namer: Namer, because: str) -> Change:
    """Let ``values`` take over from the outputs of ``node``, names, types and shapes included, and remove it.

    None stands for an output that nobody reads.
    """
    for old, new in zip(node.outputs, values, strict=False):
        if new is not None and old.name:
            new.type = new.type or old.type
            new.shape = new.shape if new.shape is not None or old.shape is None else old.shape.copy()
            hand_over(old, new, namer)
            new.metadata_props.update({**old.metadata_props, **new.metadata_props})
    remove(node, because)
    return Change("replace", node.name or node.op_type, because)
