"""The 95 float graphs of `qnn_cases`: operators with the shapes and attributes that were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.helper import make_node as node

Array = npt.NDArray[Any]
_RNG = np.random.default_rng(5)


@dataclass(frozen=True)
class Like:
    """A constant stored like an activation."""

    array: Array


@dataclass(frozen=True)
class Raw:
    """A constant that stays as it is: a shape, axes, bounds."""

    array: Array


@dataclass(frozen=True)
class Weight:
    """A weight whose output channels are on ``axis``; None has one scale whatever the scheme."""

    array: Array
    axis: int | None


@dataclass(frozen=True)
class Bias:
    """A bias at the product of the scales of two others."""

    array: Array
    input: str = "x"
    weight: str = "w"


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A float graph.

    Args:
        name: as the matrix calls it.
        nodes: in order.
        inputs: graph inputs with data to calibrate on.
        constants: initializers.
        outputs: graph outputs.
        opset: of the model.
        unquantized: values between nodes without a pair.
    """

    name: str
    nodes: list[onnx.NodeProto]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Like | Raw | Weight | Bias] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    opset: int = 21
    unquantized: tuple[str, ...] = ()

    @property
    def has_weights(self) -> bool:
        """Whether the schemes for weights are those that it was measured under."""
        return any(isinstance(constant, Weight) for constant in self.constants.values())


def _normal(*shape: int, scale: float = 1.0) -> Array:
    return (_RNG.standard_normal(shape) * scale).astype(np.float32)


def _positive(*shape: int) -> Array:
    return (_RNG.random(shape) * 3 + 0.2).astype(np.float32)


def _number(value: float) -> Array:
    return np.array(value, np.float32)


def _ints(*values: int) -> Raw:
    return Raw(np.array(values, np.int64))


def _of(name: str, op_type: str, **attributes: Any) -> Operator:
    """An operator of one input [2, 24, 32]."""
    return Operator(name=name, nodes=[node(op_type, ["x"], ["y"], **attributes)], inputs={"x": V})


def _image(name: str, op_type: str, **attributes: Any) -> Operator:
    """An operator of one image."""
    return Operator(name=name, nodes=[node(op_type, ["x"], ["y"], **attributes)], inputs={"x": X})


def _two(name: str, op_type: str, x: Array, z: Array, **attributes: Any) -> Operator:
    """An operator of two inputs."""
    return Operator(name=name, nodes=[node(op_type, ["x", "z"], ["y"], **attributes)], inputs={"x": x, "z": z})


def _moved(name: str, op_type: str, x: Array, *given: Raw, **attributes: Any) -> Operator:
    """An operator steered by constants."""
    constants = {f"c{i}": constant for i, constant in enumerate(given)}
    return Operator(
        name=name, nodes=[node(op_type, ["x", *constants], ["y"], **attributes)], inputs={"x": x}, constants=constants
    )


def _layer(name: str, op_type: str, x: Array, weight: Weight, bias: int = 0, **attributes: Any) -> Operator:
    """A layer with a weight and, of so many channels, a bias."""
    constants: dict[str, Weight | Bias] = {"w": weight}
    if bias:
        constants["b"] = Bias(_normal(bias, scale=0.1))
    return Operator(
        name=name, nodes=[node(op_type, ["x", *constants], ["y"], **attributes)], inputs={"x": x}, constants=constants
    )


def _norm(
    name: str, op_type: str, x: Array, opset: int = 21, *, size: int, parameters: str = "gb", **attributes: Any
) -> Operator:
    """A normalization whose parameters are stored like its input; g and v positive."""
    constants = {p: Like(_positive(size) if p in "gv" else _normal(size)) for p in parameters}
    made = node(op_type, ["x", *parameters], ["y"], **attributes)
    return Operator(name=name, nodes=[made], inputs={"x": x}, constants=constants, opset=opset)


V, X = _normal(2, 24, 32), _normal(1, 16, 12, 12)
KERNEL = (24, 16, 3, 3)


def _layers() -> Iterator[Operator]:
    kernel = Weight(_normal(*KERNEL, scale=0.2), 0)
    yield _layer("Conv3x3", "Conv", X, kernel, 24, pads=[1] * 4)
    yield _layer("Conv1x1_nobias", "Conv", X, Weight(_normal(24, 16, 1, 1, scale=0.2), 0))
    yield _layer("Conv_s2_dil", "Conv", X, kernel, 24, strides=[2, 2], dilations=[2, 2])
    yield _layer("Conv_group4", "Conv", X, Weight(_normal(24, 4, 3, 3, scale=0.2), 0), 24, group=4)
    yield _layer("DepthwiseConv", "Conv", X, Weight(_normal(16, 1, 3, 3, scale=0.3), 0), 16, group=16, pads=[1] * 4)
    yield _layer("Conv1D", "Conv", _normal(1, 16, 40), Weight(_normal(24, 16, 3, scale=0.2), 0), 24)
    yield _layer("ConvTranspose", "ConvTranspose", X, Weight(_normal(16, 24, 2, 2, scale=0.2), 1), 24, strides=[2, 2])
    yield _layer("Gemm_transB", "Gemm", _normal(8, 64), Weight(_normal(32, 64, scale=0.2), 0), 32, transB=1)
    yield _layer("MatMul_const", "MatMul", V, Weight(_normal(32, 48, scale=0.2), 1))
    yield _layer("MatMul_const_64", "MatMul", _normal(1, 8, 64), Weight(_normal(64, 64, scale=0.2), 1))
    yield _two("MatMul_act_act", "MatMul", _normal(1, 4, 24, 32), _normal(1, 4, 32, 24))
    yield Operator(
        name="Conv+Relu",
        nodes=[node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4), node("Relu", ["c"], ["y"])],
        inputs={"x": X},
        constants={"w": kernel, "b": Bias(_normal(24, scale=0.1))},
        unquantized=("c",),
    )


def _elementwise() -> Iterator[Operator]:
    for op_type in ("Add", "Sub", "Mul", "Max", "Min"):
        yield _two(op_type, op_type, V, _normal(2, 24, 32, scale=0.7))
    for name, op_type, constant in (
        ("Add_const_bcast", "Add", _normal(32)),
        ("Mul_const_scalar", "Mul", _number(0.37)),
        ("Pow2", "Pow", _number(2)),
    ):
        made = node(op_type, ["x", "c"], ["y"])
        yield Operator(name=name, nodes=[made], inputs={"x": V}, constants={"c": Like(constant)})
    yield _two("Div", "Div", V, _positive(2, 24, 32))
    for op_type in (
        "Relu",
        "Sigmoid",
        "Tanh",
        "HardSigmoid",
        "HardSwish",
        "Softplus",
        "Elu",
        "Erf",
        "Exp",
        "Sin",
        "Cos",
    ):
        yield _of(op_type, op_type)
    for op_type in ("Neg", "Abs", "Round", "Floor"):
        yield _of(op_type, op_type)
    for op_type in ("Sqrt", "Log", "Reciprocal"):
        yield Operator(name=op_type, nodes=[node(op_type, ["x"], ["y"])], inputs={"x": _positive(2, 24, 32)})
    yield _of("LeakyRelu", "LeakyRelu", alpha=0.1)
    yield _moved("Clip_0_6", "Clip", _normal(2, 24, 32, scale=4), Raw(_number(0)), Raw(_number(6)))
    yield _of("Gelu", "Gelu")
    yield _of("Gelu_tanh", "Gelu", approximate="tanh")
    yield Operator(
        name="SiLU_Sigmoid*Mul",
        nodes=[node("Sigmoid", ["x"], ["s"]), node("Mul", ["x", "s"], ["y"])],
        inputs={"x": V},
    )
    yield Operator(name="Swish_op24", nodes=[node("Swish", ["x"], ["y"])], inputs={"x": V}, opset=24)
    slope = {"s": Like(_positive(16, 1, 1))}
    yield Operator(name="PRelu", nodes=[node("PRelu", ["x", "s"], ["y"])], inputs={"x": X}, constants=slope)
    flags = _RNG.random((2, 24, 32)) > 0.5
    other = _normal(2, 24, 32)
    yield Operator(name="Where", nodes=[node("Where", ["c", "x", "z"], ["y"])], inputs={"c": flags, "x": V, "z": other})
    yield Operator(
        name="Greater+Where",
        nodes=[node("Greater", ["x", "z"], ["c"]), node("Where", ["c", "x", "z"], ["y"])],
        inputs={"x": V, "z": other},
    )
    yield Operator(
        name="Cast_i32_f32_add",
        nodes=[node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT), node("Add", ["x", "f"], ["y"])],
        inputs={"x": V, "i": _RNG.integers(0, 3, (2, 24, 32)).astype(np.int32)},
    )


def _normalizations() -> Iterator[Operator]:
    yield _of("Softmax", "Softmax", axis=-1)
    yield _image("Softmax_axis1", "Softmax", axis=1)
    yield _of("LogSoftmax", "LogSoftmax", axis=-1)
    yield _norm("LayerNorm", "LayerNormalization", V, size=32, axis=-1)
    yield _norm("RMSNorm_op23", "RMSNormalization", V, 23, size=32, parameters="g", axis=-1)
    yield _norm("BatchNorm", "BatchNormalization", X, size=16, parameters="gbmv")
    yield _norm("GroupNorm_op21", "GroupNormalization", X, size=16, num_groups=4)
    for name, op_type, x, size, attributes in (
        ("LayerNorm_biass32", "LayerNormalization", V, 32, {"axis": -1}),
        ("InstanceNorm", "InstanceNormalization", X, 16, {}),
    ):
        constants = {"g": Weight(_positive(size), None), "b": Bias(_normal(size), "x", "g")}
        made = node(op_type, ["x", "g", "b"], ["y"], **attributes)
        yield Operator(name=name, nodes=[made], inputs={"x": x}, constants=constants)
    yield _of("LpNorm", "LpNormalization", axis=-1, p=2)
    yield Operator(
        name="RMSNorm_decomposed",
        nodes=[
            node("Mul", ["x", "x"], ["p"]),
            node("ReduceMean", ["p", "a"], ["m"], keepdims=1),
            node("Add", ["m", "e"], ["v"]),
            node("Sqrt", ["v"], ["s"]),
            node("Div", ["x", "s"], ["d"]),
            node("Mul", ["d", "g"], ["y"]),
        ],
        inputs={"x": V},
        constants={"a": _ints(-1), "e": Like(_number(1e-5)), "g": Like(_positive(32))},
    )


def _reductions() -> Iterator[Operator]:
    yield _image("GlobalAveragePool", "GlobalAveragePool")
    yield _image("AveragePool_3x3", "AveragePool", kernel_shape=[3, 3], pads=[1] * 4)
    yield _image("AveragePool_2x2s2", "AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    yield _image("MaxPool", "MaxPool", kernel_shape=[3, 3], strides=[2, 2])
    yield _moved("ReduceMean", "ReduceMean", X, _ints(2, 3), keepdims=1)
    yield _moved("ReduceMean_last", "ReduceMean", V, _ints(-1), keepdims=1)
    yield _moved("ReduceSum", "ReduceSum", V, _ints(-1), keepdims=1)
    yield _moved("ReduceMax", "ReduceMax", V, _ints(-1), keepdims=1)
    yield _image("ArgMax", "ArgMax", axis=1, keepdims=1)
    yield Operator(
        name="TopK",
        nodes=[node("TopK", ["x", "k"], ["y", "i"], axis=-1)],
        inputs={"x": V},
        constants={"k": _ints(5)},
        outputs=("y", "i"),
    )
    yield _two("Einsum_bhid,bhjd", "Einsum", _normal(1, 4, 24, 32), _normal(1, 4, 24, 32), equation="bhid,bhjd->bhij")
    yield _moved("CumSum", "CumSum", V, Raw(np.array(1, np.int64)))


def _moves() -> Iterator[Operator]:
    yield _two("Concat", "Concat", X, _normal(1, 8, 12, 12, scale=2), axis=1)
    yield Operator(
        name="Split",
        nodes=[node("Split", ["x", "s"], ["y", "z"], axis=1)],
        inputs={"x": X},
        constants={"s": _ints(4, 12)},
        outputs=("y", "z"),
    )
    yield _moved("Slice", "Slice", X, _ints(1), _ints(9), _ints(2))
    yield _moved("Reshape", "Reshape", X, _ints(1, 4, 4, 144))
    yield Operator(
        name="Reshape_diffq",
        nodes=[node("Reshape", ["x", "s"], ["r"]), node("Relu", ["r"], ["y"])],
        inputs={"x": X},
        constants={"s": _ints(1, 4, 4, 144)},
    )
    yield _image("Transpose", "Transpose", perm=[0, 2, 3, 1])
    yield _moved("Transpose_5d", "Transpose", _normal(1, 4, 6, 8, 2), perm=[0, 3, 1, 4, 2])
    yield _moved("Unsqueeze", "Unsqueeze", V, _ints(1))
    for name, mode in (
        (
            "Resize_nearest_2x",
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        ("Resize_linear_halfpix", {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
        ("Resize_cubic", {"mode": "cubic"}),
    ):
        factors = {"f": Raw(np.array([1, 1, 2, 2], np.float32))}
        made = node("Resize", ["x", "", "f"], ["y"], **mode)
        yield Operator(name=name, nodes=[made], inputs={"x": X}, constants=factors)
    pads = _ints(0, 0, 1, 1, 0, 0, 1, 1)
    yield Operator(
        name="Pad_const",
        nodes=[node("Pad", ["x", "p", "v"], ["y"])],
        inputs={"x": X},
        constants={"p": pads, "v": Like(_number(0))},
    )
    yield _moved("Pad_reflect", "Pad", X, pads, mode="reflect")
    yield Operator(
        name="Gather_int8table",
        nodes=[node("Gather", ["w", "i"], ["y"], axis=0)],
        inputs={"i": _RNG.integers(0, 50, (1, 7)).astype(np.int64)},
        constants={"w": Like(_normal(50, 32))},
    )
    yield _moved("Gather_const_idx", "Gather", X, _ints(3, 1, 5), axis=2)
    yield _moved("Expand", "Expand", _normal(1, 24, 1, 32), _ints(1, 24, 4, 32))
    yield _moved("Tile", "Tile", V, _ints(1, 2, 1))
    for name, indices, attributes in (
        ("ScatterND", np.array([[1], [4]], np.int64), {}),
        ("ScatterElements", np.repeat(np.array([[5], [2]], np.int64), 32, axis=1), {"axis": 0}),
    ):
        made = node(name, ["x", "i", "u"], ["y"], **attributes)
        feeds = {"x": _normal(8, 32), "u": _normal(2, 32)}
        yield Operator(name=name, nodes=[made], inputs=feeds, constants={"i": Raw(indices)})
    yield _image("DepthToSpace_CRD", "DepthToSpace", blocksize=2, mode="CRD")
    yield _image("DepthToSpace_DCR", "DepthToSpace", blocksize=2)
    yield _image("SpaceToDepth", "SpaceToDepth", blocksize=2)
    halves = {"c": Like(_normal(1, 24, 16)), "s": Like(_normal(1, 24, 16))}
    made = node("RotaryEmbedding", ["x", "c", "s"], ["y"])
    yield Operator(
        name="RotaryEmbedding_op23", nodes=[made], inputs={"x": _normal(1, 4, 24, 32)}, constants=halves, opset=23
    )


OPERATORS = (*_layers(), *_elementwise(), *_normalizations(), *_reductions(), *_moves())
