"""convert-layout

NCHW [N, C, H, W] by perm (0, 2, 3, 1) is NHWC [N, H, W, C]; NHWC by perm (0, 3, 1, 2) is NCHW."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, make_node, move_annotations, put_first
from qdq_passes.graph.sizes import rank_of
from qdq_passes.graph.uses import FLOAT_TYPES, integers_of, is_standard, readers
from qdq_passes.select.selectors import ALL, Selector, select_values

Layout = Literal["nhwc", "nchw"]
#: Permutation that makes the layout from the other one.
PERMS: dict[str, list[int]] = {"nhwc": [0, 2, 3, 1], "nchw": [0, 3, 1, 2]}
OTHER: dict[str, str] = {"nhwc": "nchw", "nchw": "nhwc"}

#: Operators whose first input and output have their channels on axis 1.
CHANNELS_FIRST = (
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool",
    "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth",
)  # fmt: skip


@dataclass(frozen=True)
class ConvertLayout(Pass):
    """Let the graph's images come and go in the other layout; inside, it computes as before between two Transposes.

    Graph: ``x [N, C, H, W] → Conv → y`` → ``x [N, H, W, C] → Transpose → x_nchw → Conv → y_nchw → Transpose → y``. Inputs and
    outputs keep their names and have other shapes: data for the model must be transposed the same way. merge-transposes then
    takes away what undoes a Transpose that was there.
    Requires: nothing.
    Keeps: names of inputs and outputs; the numbers, bit by bit, elsewhere in memory.
    Skips: what has not four dimensions, or holds no floats; inputs and outputs that are in the layout already: beside a Transpose
    that makes it, or beside an operator that has channels first, for ``nchw``; an input with a default; an input that is an
    output; an output that no node writes.

    Args:
        to: the new layout; the graph is taken to have the other.
        select: inputs and outputs, by their names.
        ends: ``inputs``, ``outputs``, or ``both``.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="inputs and outputs have another shape")
    to: Layout = "nhwc"
    select: Selector = ALL
    ends: Literal["both", "inputs", "outputs"] = "both"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Inputs first; an output that is listed twice is one."""
        wanted, namer, graph = select_values(model, self.select), Namer(model), model.graph
        inputs = [value for value in graph.inputs if value in wanted and self.ends != "outputs"]
        outputs = [value for value in dict.fromkeys(graph.outputs) if value in wanted and self.ends != "inputs"]
        for value in inputs:
            yield (
                skip(value, reason) if (reason := self._why_not_input(value)) else self._turn_input(graph, value, namer)
            )
        for value in outputs:
            reason = self._why_not_output(value)
            yield skip(value, reason) if reason else self._turn_output(graph, value, namer)

    def _why_not_input(self, value: ir.Value) -> str:
        nodes = [node for node, index in readers(value) if index == 0]
        if reason := _why_no_image(value):
            return reason
        if value.is_initializer() or value.is_graph_output() or not value.uses():
            return "has a default, is an output as well, or nobody reads it"
        if len(nodes) == len(value.uses()) and all(_permutes(node, OTHER[self.to]) for node in nodes):
            return f"is {self.to} already, {nodes[0].name} makes {OTHER[self.to]} of it"
        if self.to == "nchw" and any(is_standard(node, *CHANNELS_FIRST) for node in nodes):
            return "is nchw already, it is read with channels first"
        return ""

    def _why_not_output(self, value: ir.Value) -> str:
        producer = value.producer()
        if reason := _why_no_image(value):
            return reason
        if producer is None:
            return "is what no node writes"
        if _permutes(producer, self.to):
            return f"is {self.to} already, {producer.name} makes it"
        if self.to == "nchw" and is_standard(producer, *CHANNELS_FIRST):
            return "is nchw already, it is written with channels first"
        return ""

    def _turn_input(self, graph: ir.Graph, value: ir.Value, namer: Namer) -> Change:
        uses, old = readers(value), OTHER[self.to]
        node = self._transpose(value, PERMS[old], namer, uses[0][0])
        for reader, index in uses:
            reader.replace_input_with(index, node.outputs[0])
        value.shape = _permuted(value.shape, PERMS[self.to])
        put_first(graph, [node])
        return Change("insert", node.name or "", f"input {value.name} is {self.to} {value.shape}")

    def _turn_output(self, graph: ir.Graph, value: ir.Value, namer: Namer) -> Change:
        producer, name = value.producer(), value.name or "output"
        assert producer is not None
        node = self._transpose(value, PERMS[self.to], namer, producer)
        outer = node.outputs[0]
        outer.shape = _permuted(value.shape, PERMS[self.to])
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = outer
        value.name, outer.name = outer.name, name
        move_annotations(value, outer)
        graph.append(node)
        return Change("insert", node.name or "", f"output {name} is {self.to} {outer.shape}")

    def _transpose(self, value: ir.Value, perm: list[int], namer: Namer, near: ir.Node) -> ir.Node:
        """A Transpose of ``value``, not yet in the graph; what it writes is typed like ``value``."""
        inner = namer.fresh(f"{value.name}_{OTHER[self.to]}")
        return make_node(
            "Transpose", [value], name=namer.fresh(f"{inner}_Transpose"), output=inner, like=value,
            attributes=[ir.AttrInt64s("perm", perm)], stands_for=[near],
        )  # fmt: skip


def _why_no_image(value: ir.Value) -> str:
    if rank_of(value) != 4:
        return "has not four dimensions"
    return "" if value.dtype in FLOAT_TYPES else "holds no floats"


def _permutes(node: ir.Node, to: str) -> bool:
    return is_standard(node, "Transpose") and integers_of(node, "perm") == PERMS[to]


def _permuted(shape: ir.Shape | None, perm: list[int]) -> ir.Shape | None:
    return (
        None
        if shape is None
        else ir.Shape([shape[axis] for axis in perm], [shape.get_denotation(axis) for axis in perm])
    )
