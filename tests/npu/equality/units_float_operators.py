"""A small model of every operator that is computed in floating point; `units_floats` draws shapes and attributes at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.npu.formulas.functions import FUNCTIONS

from tests.npu.equality.units_floats import Case, FloatBuilder

CONTRIB = "com.microsoft"


def _function(op: str) -> Case:
    def make(b: FloatBuilder) -> ir.Model:
        x = b.data(3, 60, spread=2.0)
        if op == "Clip":
            return b.done(b.node(op, [x, b.number(np.array(-0.75)), b.number(np.array(1.25))]))
        return b.done(b.node(op, [x, b.number(np.array([0.3]))] if op == "PRelu" else [x]))

    return make


def _of_two(op: str) -> Case:
    return lambda b: b.done(b.node(op, [b.data(2, 3, 30), b.data(3, 30, name="z")]))


def _compared(op: str) -> Case:
    """A comparison chooses: equal numbers on both sides occur."""

    def make(b: FloatBuilder) -> ir.Model:
        x, z = b.data(2, 90, spread=2.0), b.data(2, 90, name="z", spread=2.0)
        b.feeds["z"][:, ::3] = b.feeds["x"][:, ::3]
        if op == "IsNaN":
            b.feeds["x"][0, :7] = np.nan
        condition = b.node(op, [x] if op == "IsNaN" else [x, z])
        condition.type = ir.TensorType(ir.DataType.BOOL)
        return b.done(b.node("Where", [condition, z, b.node("Neg", [x])]))

    return make


def _moved(op: str, *others: Any, shape: tuple[int, ...] = (1, 4, 6, 8), outputs: int = 1, **attributes: Any) -> Case:
    def make(b: FloatBuilder) -> ir.Model:
        inputs = [b.data(*shape), *(None if o is None else b.constant(np.array(o)) for o in others)]
        found = b.node(op, inputs, attributes, outputs)
        return b.done(*(found if outputs > 1 else [found]))

    return make


def _written(op: str, shape: tuple[int, ...], *indices: Any, at: int, **attributes: Any) -> Case:
    """What writes data of ``shape`` into others; the updates are input ``at``."""

    def make(b: FloatBuilder) -> ir.Model:
        x, z, places = b.data(5, 3, 6, 4), b.data(*shape, name="z"), b.constant(np.array(indices[0], np.int64))
        return b.done(b.node(op, [x, z, places] if at == 1 else [x, places, z], attributes))

    return make


def _reduced(op: str) -> Case:
    return lambda b: b.done(b.node(op, [b.data(2, 5, 7), b.ints(1)]))


def _pooled(op: str, **attributes: Any) -> Case:
    return lambda b: b.done(b.node(op, [b.data(1, 3, 9, 8)], attributes))


def _norm(op: str, parameters: int, *, domain: str = "", skip: bool = False, **attributes: Any) -> Case:
    channels = op in ("BatchNormalization", "GroupNormalization", "InstanceNormalization")

    def make(b: FloatBuilder) -> ir.Model:
        x = b.data(2, 6, 20) if channels else b.data(2, 5, 24)
        inputs = [x, *([b.data(2, 5, 24, name="z")] if skip else [])]
        inputs += [b.parameter(6 if channels else 24) for _ in range(parameters)]
        if op == "BatchNormalization":
            inputs.append(b.number(b.rng.uniform(0.1, 2, 6)))
        return _in_domain(b, b.node(op, inputs, attributes), domain)

    return make


def _rotary(domain: str) -> Case:
    def make(b: FloatBuilder) -> ir.Model:
        x, cos, sin = b.data(1, 2, 5, 8), b.parameter(9, 4), b.parameter(9, 4)
        positions = b.constant(np.array([[3, 0, 8, 2, 2]], np.int64))
        inputs = [x, positions, cos, sin] if domain else [x, cos, sin, positions]
        return _in_domain(b, b.node("RotaryEmbedding", inputs), domain)

    return make


def _in_domain(b: FloatBuilder, value: ir.Value, domain: str) -> ir.Model:
    """The model of ``value``, whose operator is of ``domain``."""
    node = value.producer()
    assert node is not None
    node.domain = domain
    made = b.done(value)
    if domain:
        made.graph.opset_imports[domain] = 1
    return made


def _cast(b: FloatBuilder) -> ir.Model:
    """Integers to floats, as masks and positions are read, and to the type of the data."""
    x, numbers = b.data(2, 5), b.constant(np.array([-3, 0, 1, 70000, 16777217], np.int64))
    mask = b.constant(np.array([True, False, True, True, False]))
    both = [b.node("Cast", [value], {"to": int(b.dtype)}) for value in (numbers, mask)]
    for value in both:
        value.type = ir.TensorType(b.dtype)
    return b.done(b.node("Add", [b.node("Mul", [x, both[1]]), both[0]]))


def _power(b: FloatBuilder) -> ir.Model:
    return b.done(b.node("Pow", [b.node("Abs", [b.data(3, 60)]), b.number(np.array(b.choose(2.0, 3.0, 0.5, -0.5)))]))


def _convolution(op: str) -> Case:
    """[4, 3, …] weighs four channels either way."""
    return lambda b: b.done(
        b.node(op, [b.data(1, 4, 6, 7), b.parameter(4, 4, 3, 2), b.number(b.rng.standard_normal(4))])
    )


_TWICE = np.array([1, 1, 2, 1.5], np.float32)

#: (domain, operator) → a model of it.
CASES: dict[tuple[str, str], Case] = {
    **{("", op): _function(op) for op in FUNCTIONS if op not in ("Identity", "PRelu")},
    **{("", op): _of_two(op) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "PRelu")},
    **{("", op): _compared(op) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN")},
    ("", "Where"): _compared("Less"),
    ("", "Pow"): _power,
    ("", "Cast"): _cast,
    ("", "MatMul"): lambda b: b.done(b.node("MatMul", [b.data(2, 3, 20), b.data(2, 20, 9, name="z")])),
    ("", "Gemm"): lambda b: b.done(b.node("Gemm", [b.data(3, 20), b.parameter(9, 20)], {"transB": 1, "alpha": 0.5})),
    ("", "Conv"): _convolution("Conv"),
    ("", "ConvTranspose"): _convolution("ConvTranspose"),
    **{
        ("", op): _reduced(op)
        for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL1", "ReduceL2")
    },
    ("", "AveragePool"): _pooled("AveragePool", kernel_shape=[3, 2], pads=[1, 0, 0, 1]),
    ("", "MaxPool"): _pooled("MaxPool", kernel_shape=[3, 2], strides=[2, 1]),
    ("", "GlobalAveragePool"): _pooled("GlobalAveragePool"),
    ("", "GlobalMaxPool"): _pooled("GlobalMaxPool"),
    ("", "Softmax"): lambda b: b.done(b.node("Softmax", [b.data(3, 40, spread=3.0)])),
    ("", "LayerNormalization"): _norm("LayerNormalization", 2),
    ("", "RMSNormalization"): _norm("RMSNormalization", 1),
    ("", "SimplifiedLayerNormalization"): _norm("SimplifiedLayerNormalization", 1),
    ("", "InstanceNormalization"): _norm("InstanceNormalization", 2),
    ("", "GroupNormalization"): _norm("GroupNormalization", 2, num_groups=3),
    ("", "BatchNormalization"): _norm("BatchNormalization", 3),
    ("", "LpNormalization"): _norm("LpNormalization", 0),
    (CONTRIB, "SkipLayerNormalization"): _norm("SkipLayerNormalization", 3, domain=CONTRIB, skip=True),
    (CONTRIB, "SkipSimplifiedLayerNormalization"): _norm(
        "SkipSimplifiedLayerNormalization", 2, domain=CONTRIB, skip=True
    ),
    ("", "RotaryEmbedding"): _rotary(""),
    (CONTRIB, "RotaryEmbedding"): _rotary(CONTRIB),
    ("", "Concat"): lambda b: b.done(b.node("Concat", [b.data(2, 3, 4), b.parameter(2, 2, 4)], {"axis": 1})),
    ("", "Expand"): _moved("Expand", [3, 4, 6, 8]),
    ("", "Flatten"): _moved("Flatten", axis=2),
    ("", "Gather"): _moved("Gather", [3, 0, -1], axis=1),
    ("", "GatherElements"): _moved("GatherElements", [[1, 0, -1], [2, 2, 0]], shape=(3, 4), axis=1),
    ("", "GatherND"): _moved("GatherND", [[1, 0], [2, -1]], shape=(3, 4, 5)),
    ("", "Identity"): _moved("Identity"),
    ("", "Pad"): _moved("Pad", [0, 0, 1, 2, 0, 1, 0, 1]),
    ("", "Reshape"): _moved("Reshape", [0, -1, 4]),
    ("", "Resize"): _moved("Resize", None, _TWICE, mode="linear"),
    ("", "Slice"): _moved("Slice", [1, 7], [4, 0], [1, 3], [1, -2]),
    ("", "Split"): _moved("Split", [1, 3], outputs=2, axis=1),
    ("", "Squeeze"): _moved("Squeeze", [0]),
    ("", "Tile"): _moved("Tile", [2, 1, 1, 3]),
    ("", "Transpose"): _moved("Transpose", perm=[0, 2, 3, 1]),
    ("", "Unsqueeze"): _moved("Unsqueeze", [1]),
    ("", "DepthToSpace"): _moved("DepthToSpace", blocksize=2),
    ("", "SpaceToDepth"): _moved("SpaceToDepth", blocksize=2),
    ("", "ScatterElements"): _written("ScatterElements", (2, 3, 6, 4), np.full((2, 3, 6, 4), 3) - [[[[0]]], [[[2]]]], at=2),
    ("", "ScatterND"): _written("ScatterND", (2, 3, 6, 4), [[3], [0]], at=2),
    ("", "TensorScatter"): _written("TensorScatter", (5, 3, 2, 4), [0, 1, 4, 2, 3], at=1),
}  # fmt: skip
#: Operators of opset 24.
NEWEST = ("Swish", "TensorScatter")
