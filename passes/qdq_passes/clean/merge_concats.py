"""merge-concats"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import inherit, remove
from qdq_passes.graph.operators.layers import concat_axis
from qdq_passes.graph.uses import all_nodes, is_standard, label, only_reader


@dataclass(frozen=True)
class MergeConcats(Pass):
    """Let one Concat join what a Concat before it joins along the same axis.

    Graph: ``Concat(a, Concat(b, c), d)`` → ``Concat(a, b, c, d)``; in bodies and functions too.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact (elements only move). Name and output of the last Concat.
    Skips: the inner output has other readers or is a graph output; the two stand in different graphs; axes that differ, or of
    which one counts from the end while the number of dimensions is not known.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From Concat to Concat; what is merged is looked at again."""
        for outer in all_nodes(model):
            index = 0
            while is_standard(outer, "Concat") and outer.graph is not None and index < len(outer.inputs):
                value = outer.inputs[index]
                inner = value.producer() if value is not None else None
                reason = _why_not(inner, outer) if inner is not None and is_standard(inner, "Concat") else ""
                if inner is None or reason is not None:
                    index += 1
                    if reason:
                        yield skip(outer, reason)
                    continue
                _put_inputs(outer, [*outer.inputs[:index], *inner.inputs, *outer.inputs[index + 1 :]])
                inherit(outer, [outer, inner])
                yield Change("edit", label(outer), f"joins the inputs of {inner.name}")
                yield from remove(inner, f"merged into {outer.name}")


def _why_not(inner: ir.Node, outer: ir.Node) -> str | None:
    if only_reader(inner.outputs[0]) is not outer:
        return f"the output of {inner.name} has other readers"
    if inner.graph is not outer.graph:
        return f"{inner.name} stands in another graph"
    shapes = [v.shape for v in (*inner.inputs, *inner.outputs, *outer.inputs, *outer.outputs) if v is not None]
    rank = next((len(shape) for shape in shapes if shape is not None), None)
    axes = [concat_axis(node, rank) for node in (inner, outer)]
    return None if axes[0] is not None and axes[0] == axes[1] else f"{inner.name} joins along another axis"


def _put_inputs(node: ir.Node, values: list[ir.Value | None]) -> None:
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    node.resize_inputs(len(values))
    for index, value in enumerate(values):
        node.replace_input_with(index, value)
