"""Hypothesis strategies for small models, as ONNX text: chains with branches, shared weights and outputs in the middle."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx.parser
import onnx_ir as ir
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from qdqtool.io.models.load import model_of
from tests.dial import examples

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'

#: What every property of this folder runs under: the same examples every time, no clock, nothing stored.
DETERMINISTIC = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow],
)

Shape = tuple[int, ...]
CHANNELS = (1, 2, 3)
ON_IMAGES = ("Conv", "Conv", "Norm", "Relu", "Add", "Concat", "MaxPool", "AveragePool", "Flatten", "Identity")
ON_ROWS = ("Gemm", "MatMul", "Relu", "Add", "Mul", "Reshape", "Softmax", "Transpose", "Identity")


@dataclass
class Text:
    """A graph while it is written: ``values`` are the float values so far, with their shapes."""

    random: np.random.Generator
    values: list[tuple[str, Shape]]
    weights: dict[str, tuple[Shape, str]] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def weight(self, shape: Shape, *, positive: bool = False, shared: bool = False) -> str:
        """A float constant of ``shape`` with values n/64; ``shared``: one that exists already, if any fits."""
        if shared:
            fitting = [name for name, (have, _) in self.weights.items() if have == shape]
            if fitting:
                return fitting[0]
        numbers = (self.random.integers(1 if positive else -128, 128, math.prod(shape)) / 64).tolist()
        if self.random.integers(4) == 0:
            index = len(self.nodes)
            tensor = f"float[{_dims(shape)}] {{{', '.join(map(str, numbers))}}}"
            self.nodes.append(f"[c{index}] c{index} = Constant<value: tensor = {tensor}>()")
            return f"c{index}"
        return self._add("w", shape, f"float[{_dims(shape)}]", numbers)

    def integers(self, numbers: list[int]) -> str:
        """An int64 initializer."""
        return self._add("n", (), f"int64[{len(numbers)}]", numbers)

    def _add(self, prefix: str, shape: Shape, type_text: str, numbers: list[float] | list[int]) -> str:
        name = f"{prefix}{len(self.weights)}"
        self.weights[name] = shape, f"{type_text} {name} = {{{', '.join(map(str, numbers))}}}"
        return name

    def node(self, op: str, inputs: list[str], shape: Shape, attributes: str = "", *, layer: int) -> None:
        """Append a node and its output, now the newest value."""
        index = len(self.nodes)
        options = f"<{attributes}>" if attributes else ""
        self.nodes.append(f'["/layers.{layer}/{op}_{index}"] v{index} = {op}{options}({", ".join(inputs)})')
        self.values.append((f"v{index}", shape))

    def __str__(self) -> str:
        shapes = dict(self.values)
        outputs = ", ".join(f"float[{_dims(shapes[o])}] {o}" for o in self.outputs)
        name, shape = self.values[0]
        weights = ", ".join(text for _, text in self.weights.values())
        body = "\n  ".join(self.nodes)
        return f"{HEADER}\ng (float[{_dims(shape)}] {name}) => ({outputs})\n<{weights}>\n{{\n  {body}\n}}"


def _dims(shape: Shape) -> str:
    return ",".join(map(str, shape))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Text of a model with one input, 2 to 8 nodes and 1 to 3 outputs."""
    start: Shape = draw(st.sampled_from([(1, 2, 4, 4), (2, 1, 4, 6), (1, 4), (2, 6)]))
    text = Text(np.random.default_rng(draw(st.integers(0, 2**16))), [("x", start)])
    for step in range(draw(st.integers(2, 8))):
        name, shape = text.values[-1]
        op = draw(st.sampled_from(ON_IMAGES if len(shape) == 4 else ON_ROWS))
        _append(draw, text, op, name, shape, step // 3)
    middle = st.sets(st.sampled_from([name for name, _ in text.values[1:]]), max_size=2)
    text.outputs = sorted({text.values[-1][0], *draw(middle)})
    return str(text)


def _append(draw: st.DrawFn, text: Text, op: str, name: str, shape: Shape, layer: int) -> None:
    shared = draw(st.booleans())
    others = [other for other, have in text.values if have == shape]
    if op == "Conv":
        out, kernel = draw(st.sampled_from(CHANNELS)), draw(st.sampled_from([1, 3]))
        inputs = [name, text.weight((out, shape[1], kernel, kernel), shared=shared)]
        inputs += [text.weight((out,), shared=shared)] if draw(st.booleans()) else []
        pads = ", ".join([str(kernel // 2)] * 4)
        text.node(op, inputs, (shape[0], out, *shape[2:]), f"pads: ints = [{pads}]", layer=layer)
    elif op == "Norm":
        channels = [text.weight((shape[1],), positive=True) for _ in range(4)]
        text.node("BatchNormalization", [name, *channels], shape, layer=layer)
    elif op == "Concat":
        other = draw(st.sampled_from(others))
        text.node(op, [name, other], (shape[0], 2 * shape[1], *shape[2:]), "axis: int = 1", layer=layer)
    elif op in ("MaxPool", "AveragePool") and min(shape[2:]) >= 2:
        pooled = (*shape[:2], shape[2] // 2, shape[3] // 2)
        text.node(op, [name], pooled, "kernel_shape: ints = [2,2], strides: ints = [2,2]", layer=layer)
    elif op == "Flatten":
        text.node(op, [name], (shape[0], math.prod(shape[1:])), layer=layer)
    elif op in ("Gemm", "MatMul"):
        out = draw(st.sampled_from((1, 2, shape[1])))
        bias = [text.weight((out,), shared=shared)] if op == "Gemm" and draw(st.booleans()) else []
        text.node(op, [name, text.weight((shape[1], out), shared=shared), *bias], (shape[0], out), layer=layer)
    elif op == "Reshape":
        text.node(op, [name, text.integers([shape[0], shape[1]])], shape, layer=layer)
    elif op in ("Add", "Mul"):
        other = text.weight((shape[-1],), shared=shared) if draw(st.booleans()) else draw(st.sampled_from(others))
        text.node(op, [name, other], shape, layer=layer)
    elif op == "Transpose":
        text.node(op, [name], shape[::-1], layer=layer)
    elif op in ("Softmax", "Identity"):
        text.node(op, [name], shape, layer=layer)
    else:
        text.node("Relu", [name], shape, layer=layer)


def parse(text: str) -> ir.Model:
    """The model of ``text``."""
    return model_of(onnx.parser.parse_model(text))
