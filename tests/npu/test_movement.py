"""Standard operators inside programs, on the simulated NPU and on onnxruntime's CPU provider: the same elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.npu.small_programs import Array, context_model, equal, run

TYPES = {"int8": np.int8, "uint8": np.uint8, "int32": np.int32, "float": np.float32}


def program(
    call: str, shape: Sequence[int], dtype: str, constants: str, *, opset: int, outputs: int, result: str = ""
) -> str:
    """A program of one node: y0, y1 … = call of x, whose constants are given in text."""
    results = ", ".join(f"{result or dtype}[] y{i}" for i in range(outputs)).replace("[]", "")
    names = ", ".join(f"y{i}" for i in range(outputs))
    return (
        f'<ir_version: 8, opset_import: ["" : {opset}, "ai.qdqtool" : 1]>\n'
        f"program ({dtype}[{','.join(map(str, shape))}] x) => ({results}) <{constants}> {{ {names} = {call} }}"
    )


def on_the_cpu(text: str, *values: Array) -> list[Array]:
    """What onnxruntime's own kernels make of a program of standard operators."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options, ["CPUExecutionProvider"])
    return list(made.run(None, {i.name: v for i, v in zip(made.get_inputs(), values, strict=True)}))


def some(shape: Sequence[int], dtype: str) -> Array:
    """Elements of which no two neighbours are alike."""
    values = np.random.default_rng(7).integers(0, 256, tuple(shape))
    return (values - 128 if dtype != "uint8" else values).astype(TYPES[dtype])


IMAGE = (2, 3, 9, 14)
CASES = [
    ("Identity (x)", IMAGE, ""),
    ("Reshape (x, s)", IMAGE, "int64[3] s = {0, -1, 7}"),
    ("Reshape <allowzero = 1> (x, s)", (0, 3), "int64[2] s = {3, 0}"),
    ("Flatten <axis = 2> (x)", IMAGE, ""),
    ("Flatten <axis = -1> (x)", IMAGE, ""),
    ("Squeeze (x)", (1, 5, 1), ""),
    ("Squeeze (x, a)", (1, 5, 1), "int64[1] a = {-1}"),
    ("Unsqueeze (x, a)", (4, 5), "int64[2] a = {-1, 0}"),
    ("Transpose (x)", IMAGE, ""),
    ("Transpose <perm = [0, 2, 3, 1]> (x)", IMAGE, ""),
    ("Transpose <perm = [0, 3, 1, 2]> (x)", IMAGE, ""),
    ("Transpose <perm = [1, 0, 2, 3]> (x)", IMAGE, ""),
    ("Concat <axis = 1> (x, x, k)", (2, 3, 4), "{dtype}[2, 0, 4] k = {}"),
    ("Concat <axis = -1> (x, x)", IMAGE, ""),
    ("Slice (x, s, e)", IMAGE, "int64[2] s = {-1, 1}, int64[2] e = {9, 2}"),
    (
        "Slice (x, s, e, a, t)",
        IMAGE,
        "int64[2] s = {-1, 12}, int64[2] e = {-99, 0}, int64[2] a = {2, -1}, int64[2] t = {-1, -3}",
    ),
    (
        "Slice (x, s, e, a, t)",
        IMAGE,
        "int32[2] s = {1, 0}, int32[2] e = {9, 99}, int32[2] a = {3, 2}, int32[2] t = {4, 2}",
    ),
    ("Slice (x, s, e, a)", IMAGE, "int64[1] s = {5}, int64[1] e = {5}, int64[1] a = {3}"),
    ("Pad (x, p)", IMAGE, "int64[8] p = {0, 0, 1, 2, 0, 0, 3, 4}"),
    ("Pad (x, p, c)", IMAGE, "int64[8] p = {0, 1, -2, 2, 1, 0, 3, -4}, {dtype} c = {7}"),
    ('Pad <mode = "reflect"> (x, p)', IMAGE, "int64[8] p = {0, 0, 5, 2, 0, 0, 3, 13}"),
    ('Pad <mode = "edge"> (x, p)', IMAGE, "int64[8] p = {1, 0, 1, 2, 0, 4, 30, 4}"),
    ("Gather <axis = 1> (x, i)", IMAGE, "int64[2, 2] i = {0, -1, 2, -3}"),
    ("Gather <axis = -1> (x, i)", IMAGE, "int32[5] i = {0, 0, 1, 1, 2}"),
    ("Gather <axis = 2> (x, i)", IMAGE, "int64 i = {3}"),
    ("Expand (x, s)", (3, 1, 5), "int64[4] s = {2, 1, 4, 1}"),
    ("Tile (x, r)", (3, 2, 5), "int64[3] r = {2, 1, 3}"),
]


def check_movement(call: str, shape: Sequence[int], constants: str, dtype: str, opset: int = 17) -> None:
    """The node gives the same on both sides."""
    text = program(call, shape, dtype, constants.replace("{dtype}", dtype), opset=opset, outputs=1)
    assert equal(run(context_model(text), some(shape, dtype)), on_the_cpu(text, some(shape, dtype)))


@pytest.mark.parametrize("dtype", ["int8", "float"])
@pytest.mark.parametrize(("call", "shape", "constants"), CASES)
def test_movement(call: str, shape: tuple[int, ...], constants: str, dtype: str) -> None:
    check_movement(call, shape, constants, dtype)


@pytest.mark.parametrize("dtype", ["int8", "float"])
def test_pad_of_named_axes(dtype: str) -> None:
    check_movement("Pad (x, p, , a)", IMAGE, "int64[2] p = {2, 1}, int64[1] a = {-2}", dtype, opset=18)


@pytest.mark.newest
@pytest.mark.parametrize("dtype", ["int8", "float"])
def test_pad_that_wraps_twice(dtype: str) -> None:
    """onnxruntime 1.23 leaves zeros beyond one length of the axis."""
    check_movement(
        'Pad <mode = "wrap"> (x, p, , a)', IMAGE, "int64[2] p = {12, 11}, int64[1] a = {-2}", dtype, opset=19
    )


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize(
    ("call", "constants", "outputs", "opset"),
    [
        ("Split <axis = 3> (x)", "", 2, 13),
        ("Split <axis = -2> (x, s)", "int64[3] s = {4, 0, 5}", 3, 13),
        ("Split <axis = 3, num_outputs = 4> (x)", "", 4, 18),
        ("Split <axis = 1, num_outputs = 3> (x)", "", 3, 18),
    ],
)
def test_split(call: str, constants: str, outputs: int, opset: int, dtype: str) -> None:
    text = program(call, IMAGE, dtype, constants, opset=opset, outputs=outputs)
    assert equal(run(context_model(text), some(IMAGE, dtype)), on_the_cpu(text, some(IMAGE, dtype)))


WINDOWS = [
    ("kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]", IMAGE),
    ("kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1", IMAGE),
    ("kernel_shape = [3, 2], strides = [3, 5], pads = [2, 0, 1, 1], ceil_mode = 1", IMAGE),
    ("kernel_shape = [2, 3], dilations = [3, 2]", IMAGE),
    ("kernel_shape = [3], strides = [2], pads = [0, 2], ceil_mode = 1", (1, 2, 40)),
    ("kernel_shape = [2, 3, 2], strides = [1, 2, 2], pads = [1, 1, 0, 0, 1, 1]", (1, 2, 4, 7, 9)),
]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        *WINDOWS,
        ('kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"', IMAGE),
        ('kernel_shape = [2, 4], strides = [2, 3], auto_pad = "SAME_LOWER"', IMAGE),
        ('kernel_shape = [2, 4], strides = [2, 3], auto_pad = "VALID"', IMAGE),
    ],
)
def test_max_pool(attributes: str, shape: tuple[int, ...], dtype: str) -> None:
    text = program(f"MaxPool <{attributes}> (x)", shape, dtype, "", opset=17, outputs=1)
    assert equal(run(context_model(text), some(shape, dtype)), on_the_cpu(text, some(shape, dtype)))


@pytest.mark.newest
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(("attributes", "shape"), WINDOWS)
def test_average_pool(attributes: str, shape: tuple[int, ...], padding: int) -> None:
    """Integers in float32: their means are farther from a tie than a float32 errs, or lie on it.

    onnxruntime 1.23 counts padding behind the end otherwise.
    """
    attributes += f", count_include_pad = {padding}"
    own = f'ai.qdqtool.AveragePool <{attributes}, x_zero_point = 0, multiplier = 1, shift = 0, rounding = "half_even", y_type = 3> (x)'
    text = program(own, shape, "int8", "", opset=19, outputs=1)
    standard = program(f"AveragePool <{attributes}> (x)", shape, "float", "", opset=19, outputs=1)
    x = some(shape, "int8")
    wanted = np.rint(on_the_cpu(standard, x.astype(np.float32))[0]).astype(np.int8)
    assert equal(run(context_model(text), x), [wanted])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_quantize_and_back(dtype: str, axis: int | None) -> None:
    """Ties, numbers that no integer holds, and what is not a number."""
    shape = (2, 3, 41)
    count = 1 if axis is None else shape[axis]
    dims, attribute = ("", "") if axis is None else (f"[{count}]", f"<axis = {axis}>")
    scales = ", ".join(str(0.25 * (i + 1)) for i in range(count))
    zeros = ", ".join(str(3 * i) for i in range(count))
    constants = f"float{dims} s = {{{scales}}}, {dtype}{dims} z = {{{zeros}}}"
    x = np.random.default_rng(3).integers(-3000, 3000, shape).astype(np.float32) / 8
    x[0, 0, :6] = [1e30, -1e30, np.inf, -np.inf, np.nan, -0.0]
    text = program(
        f"QuantizeLinear {attribute} (x, s, z)", shape, "float", constants, opset=21, outputs=1, result=dtype
    )
    found, wanted = run(context_model(text), x), on_the_cpu(text, x)
    assert equal(found, wanted)
    text = program(
        f"DequantizeLinear {attribute} (x, s, z)", shape, dtype, constants, opset=21, outputs=1, result="float"
    )
    assert equal(run(context_model(text), *wanted), on_the_cpu(text, *wanted))


def test_an_index_that_is_not_there() -> None:
    """Indices that are known only while running are checked then."""
    text = (
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "program (int8[4, 2] x, int64[N] i) => (int8[N, 2] y0) { y0 = Gather (x, i) }"
    )
    x = some((4, 2), "int8")
    assert equal(run(context_model(text), x, np.array([3, -4])), [x[[3, 0]]])
    with pytest.raises(Exception, match="index 4 is outside an axis of 4"):
        run(context_model(text), x, np.array([0, 4]))
