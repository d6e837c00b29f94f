"""Graphs whose tensors have several readers, and the same graphs with a copy of every tensor for each reader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
from hypothesis import strategies as st

from qdqtool.io.models.load import model_of

#: Height and width of all images, their channels at the input and behind a Conv, and the most that a Concat makes.
SIZE, CHANNELS, MOST = 8, 4, 16
POOLS = ("MaxPool", "AveragePool")


@dataclass(frozen=True)
class Step:
    """One operator.

    Args:
        op: its type.
        inputs: numbers of the values it reads: 0 is the input of the graph, n the output of step n − 1 (of a Split its first).
        channels: those of its output.
        scale: factor of the weights of a Conv.
    """

    op: str
    inputs: tuple[int, ...]
    channels: int
    scale: float = 1.0


@dataclass(frozen=True)
class SharedGraph:
    """Steps, and the seed of weights and samples."""

    steps: tuple[Step, ...]
    seed: int

    @property
    def outputs(self) -> list[int]:
        """The values that no step reads."""
        read = {number for step in self.steps for number in step.inputs}
        return [number for number in range(1, len(self.steps) + 1) if number not in read]

    @property
    def shares(self) -> bool:
        """Whether a value has several readers."""
        return any(self.readers(number) > 1 for number in range(1, len(self.steps)))

    def readers(self, number: int) -> int:
        """How often a value is read."""
        return sum(step.inputs.count(number) for step in self.steps)

    def model(self, *, shared: bool) -> ir.Model:
        """The graph; without ``shared`` each reader of a value gets a copy, made from an input of its own.

        The copies are outputs too, the last ones: what a Relu alone reads, also behind a Concat, would have the range above 0, which
        a tensor cannot have that others read below 0.
        """
        writer = _Writer(self, shared)
        outputs = [writer.value(number) for number in self.outputs]
        outputs += writer.copies
        infos = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
        shape = [1, CHANNELS, SIZE, SIZE]
        inputs = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in writer.inputs]
        graph = oh.make_graph(writer.nodes, "g", inputs, infos, writer.weights)
        made = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
        return model_of(onnx.shape_inference.infer_shapes(made, strict_mode=True))

    def samples(self, model: ir.Model, count: int = 4) -> list[dict[str, np.ndarray]]:
        """Feeds in which all inputs of ``model`` are the same image."""
        random = np.random.default_rng(self.seed)
        images = random.normal(size=(count, 1, CHANNELS, SIZE, SIZE)).astype(np.float32)
        return [{value.name or "": image for value in model.graph.inputs} for image in images]


class _Writer:
    """Nodes of a graph while they are made; without ``shared`` values are made anew for every reader."""

    def __init__(self, graph: SharedGraph, shared: bool) -> None:
        self._graph, self._shared = graph, shared
        self._made: dict[int, str] = {}
        self.inputs: list[str] = []
        self.copies: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def value(self, number: int) -> str:
        """Name of a value that holds what ``number`` is."""
        if not self._shared or number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> str:
        if number == 0:
            self.inputs.append(f"x{len(self.inputs)}")
            return self.inputs[-1]
        step = self._graph.steps[number - 1]
        inputs = [self.value(each) for each in step.inputs]
        name = f"v{number}_{len(self.nodes)}"
        if not self._shared and self._graph.readers(number) > 1:
            self.copies.append(name)
        if step.op == "Conv":
            inputs += self._parameters(number, step, name)
        attributes = _ATTRIBUTES.get(step.op, {})
        outputs = [name, f"{name}_rest"] if step.op == "Split" else [name]
        self.nodes.append(oh.make_node(step.op, inputs, outputs, name=f"{step.op}_{name}", **attributes))
        return name

    def _parameters(self, number: int, step: Step, name: str) -> list[str]:
        random = np.random.default_rng([self._graph.seed, number])
        channels = ([CHANNELS] + [each.channels for each in self._graph.steps])[step.inputs[0]]
        weight = random.normal(size=(step.channels, channels, 3, 3)) * step.scale / np.sqrt(9 * channels)
        bias = random.normal(size=step.channels) * step.scale / 4
        for data, suffix in ((weight, "w"), (bias, "b")):
            self.weights.append(onh.from_array(data.astype(np.float32), f"{name}_{suffix}"))
        return [f"{name}_w", f"{name}_b"]


_ATTRIBUTES = {
    "Conv": {"pads": [1, 1, 1, 1]},
    "MaxPool": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "AveragePool": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    "Concat": {"axis": 1},
    "Split": {"axis": 1, "num_outputs": 2},
}


@st.composite
def shared_graphs(draw: st.DrawFn) -> SharedGraph:
    """A graph of 4 to 7 operators, whose first values are far apart and may have several readers."""
    scales = st.sampled_from((16.0, 0.0625, 1.0, 4.0, 0.25))
    steps = [Step("Conv", (0,), CHANNELS, draw(scales)), Step("Conv", (1,), CHANNELS, draw(scales))]
    for _ in range(draw(st.integers(2, 5))):
        first = draw(st.integers(1, len(steps)))
        op = draw(st.sampled_from(("Conv", "Conv", "Relu", "Add", "Concat", "Concat", "Split", *POOLS)))
        channels = [0, *(step.channels for step in steps)]
        fitting = [n for n, have in enumerate(channels) if n and _fits(op, have, channels[first])]
        if op in ("Add", "Concat") and fitting:
            second = draw(st.sampled_from(fitting))
            made = channels[first] + (channels[second] if op == "Concat" else 0)
            steps.append(Step(op, (first, second), made))
        elif op == "Split" and channels[first] > 1:
            steps.append(Step(op, (first,), channels[first] // 2))
        elif op in ("Relu", *POOLS):
            steps.append(Step(op, (first,), channels[first]))
        else:
            steps.append(Step("Conv", (first,), CHANNELS, draw(scales)))
    return SharedGraph(tuple(steps), draw(st.integers(0, 2**16)))


def _fits(op: str, have: int, other: int) -> bool:
    return have == other if op == "Add" else have + other <= MOST
