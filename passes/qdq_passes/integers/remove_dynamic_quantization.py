"""remove-dynamic-quantization"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, bypass, drop_unread, remove
from qdq_passes.graph.operators.qdq_ops import is_dynamic_quantize
from qdq_passes.graph.uses import all_nodes
from qdq_passes.integers.look.dynamic_quantization import DynamicGroup, dynamic_groups
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class RemoveDynamicQuantization(Pass):
    """Remove the quantization of activations by a scale that is computed from them, leaving the float value.

    Graph: ``x → DynamicQuantizeLinear → DequantizeLinear → A`` → ``x → A``; likewise ``Mul(Clip(Round(Div(x, s))), s)`` with s
    made of x by a ReduceMax, with or without a zero point: what `insert-dynamic-quantization` makes, and other tools.
    Requires: nothing; a MatMulInteger behind DynamicQuantizeLinear is turned into such a pair by convert-qoperators.
    Keeps: inputs, outputs and their names; activations are no longer rounded.
    Skips: groups that ``select`` does not name; a DynamicQuantizeLinear whose integers other operators read.

    Args:
        select: groups, by their float value, what they make of it, or one of their nodes.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="activations are no longer rounded to a grid")
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Bypass group after group, then drop what nobody reads."""
        hit, namer = select(model, self.select), Namer(model)
        nodes, values = set(hit.nodes), set(hit.values)
        left: dict[ir.Value, ir.Value] = {}
        gone: list[DynamicGroup] = []
        for group in dynamic_groups(model):
            named = group.source in values or group.output in values or any(node in nodes for node in group.nodes)
            if self.select.is_all or named:
                left[group.output] = left.get(group.source, group.source)
                yield from _bypass(group, left[group.output], namer)
                gone.append(group)
        for group in reversed(gone):
            yield from _sweep(group)
        for node in all_nodes(model):
            if is_dynamic_quantize(node) and self.select.is_all:
                yield skip(
                    node,
                    "its integers or its scale are read by something else than DequantizeLinear; convert-qoperators may help",
                )


def _bypass(group: DynamicGroup, source: ir.Value, namer: Namer) -> Iterator[Change]:
    """Let who reads the group's output read ``source``, which is what it quantizes after groups before it are gone."""
    last = group.nodes[-1]
    inputs = list(last.inputs)
    yield bypass(last, namer, "remove-dynamic-quantization", source=source)
    drop_unread(inputs)


def _sweep(group: DynamicGroup) -> Iterator[Change]:
    """Remove what nobody reads any more of the group's other nodes."""
    for node in reversed(group.nodes[:-1]):
        is_read = any(value.uses() or value.is_graph_output() for value in node.outputs)
        if node.graph is not None and not is_read:
            inputs = list(node.inputs)
            yield from remove(node, "remove-dynamic-quantization")
            drop_unread(inputs)
