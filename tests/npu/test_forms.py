"""Forms of operators that the random units leave out: auto_pad, modes of Resize, constants on either side, numbers, bounds left out.
The provider against the reference, every integer equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import dequantize

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.runtime import provider
from tests.cases.lowering import TakesAll
from tests.cases.qdq_units import SHIFT, Unit, pow2
from tests.dial import some

ARITHMETICS = (
    Arithmetic(),
    Arithmetic(requantize="shift", rounding="half_even"),
    Arithmetic(requantize="float", rounding="toward_zero", zero_point_first=True),
    Arithmetic(rounding="half_away", zero_point_first=True, overflow="wrap"),
    Arithmetic(requantize="float", rounding="half_even", overflow="wrap"),
    Arithmetic(accumulator=16, accumulator_overflow="saturate", rounding="toward_zero"),
)

Form = Callable[[Unit], str]


def x(unit: Unit, *shape: int) -> str:
    """A quantized input."""
    return unit.activation(shape, pow2(unit.random))


def w(unit: Unit, *shape: int) -> str:
    """Stored int8 weights."""
    return unit.stored(unit.random.integers(-128, 128, shape), pow2(unit.random, dtype="int8"))


def ints(unit: Unit, *values: int) -> str:
    """A constant list of whole numbers."""
    return unit.constant(np.array(values, np.int64))


def floats(unit: Unit, *values: float) -> str:
    """A constant list of numbers, or one number."""
    return unit.constant(np.array(values if len(values) > 1 else values[0], np.float32))


def rows(unit: Unit) -> str:
    """Indices that are an input of the graph."""
    unit.inputs.append(helper.make_tensor_value_info("rows", TensorProto.INT64, [2, 3]))
    unit.feeds["rows"] = unit.random.integers(-9, 9, (2, 3))
    return "rows"


def know_sizes(unit: Unit) -> None:
    """Give the inputs the shapes of their data."""
    for value in unit.inputs:
        for place, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_value = unit.feeds[value.name].shape[place]


def resize(coordinates: str, nearest: str, *, sizes: bool) -> Form:
    """A Resize to the nearest element, by scales of the last two axes or to sizes."""

    def form(unit: Unit) -> str:
        modes = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
        data, draw = x(unit, 1, 2, 5, 7), unit.random
        if sizes:
            wanted = ints(unit, *(int(v) for v in draw.integers(2, 12, 2)))
            return unit.node("Resize", [data, "", "", wanted], **modes, axes=[2, 3])
        scales = floats(unit, 1, 1, draw.choice([0.6, 2, 1.5, 3]), draw.choice([0.5, 1.3, 2]))
        return unit.node("Resize", [data, "", scales], **modes)

    return form


def crop_and_resize(nearest: str) -> Form:
    """A Resize of a region that lies inside of what it reads."""

    def form(unit: Unit) -> str:
        low, high = unit.random.uniform(0.0, 0.4, 2), unit.random.uniform(0.6, 1.0, 2)
        region = unit.constant(np.array([0, 0, *low, 1, 1, *high], np.float32))
        modes = {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize", "nearest_mode": nearest}
        return unit.node("Resize", [x(unit, 1, 2, 9, 7), region, "", ints(unit, 1, 2, 6, 11)], **modes)

    return form


def window(op_type: str, auto_pad: str) -> Form:
    """A convolution or pool of 3×2 with stride 2 that leaves its pads to auto_pad."""
    shapes = {"Conv": (3, 2, 3, 2), "ConvTranspose": (2, 3, 3, 2)}

    def form(unit: Unit) -> str:
        inputs = [x(unit, 1, 2, 7, 6), *([w(unit, *shapes[op_type])] if op_type in shapes else [])]
        kernel: dict[str, Any] = {} if op_type in shapes else {"kernel_shape": [3, 2]}
        return unit.node(op_type, inputs, strides=[2, 2], auto_pad=auto_pad, **kernel)

    return form


def conv(unit: Unit, *more: str) -> str:
    """A pointwise Conv."""
    return unit.node("Conv", [x(unit, 1, 2, 7, 6), w(unit, 3, 2, 1, 1), *more])


def crop(unit: Unit) -> str:
    """A Pad that takes away on some sides, and adds a number that the data hold too on others."""
    encoding = pow2(unit.random)
    number = float(dequantize(np.array(77, encoding.dtype.numpy()), encoding))
    return unit.node(
        "Pad", [unit.activation((2, 5, 6), encoding), ints(unit, 0, -1, 2, 0, 1, -2), floats(unit, number)]
    )


FORMS: dict[str, Form] = {
    **{
        f"resize-{c}-{n}-{'sizes' if s else 'scales'}": resize(c, n, sizes=s)
        for c in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
        for n in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for s in (False, True)
    },
    **{f"region-{n}": crop_and_resize(n) for n in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")},
    **{
        f"{op}-{pad}": window(op, pad)
        for op in ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
    },
    "output-shape": lambda u: u.node(
        "ConvTranspose", [x(u, 1, 2, 7, 6), w(u, 2, 3, 3, 2)], strides=[2, 2], output_shape=[14, 11]
    ),
    "global-max": lambda u: u.node("GlobalMaxPool", [x(u, 2, 3, 5, 4)]),
    "mean-of-all": lambda u: u.node("ReduceMean", [x(u, 2, 3, 4)], keepdims=int(u.random.integers(2))),
    "softmax-axis": lambda u: u.node("Softmax", [x(u, 2, 3, 4)], axis=int(u.random.choice([0, 1, 2, -1]))),
    "float-bias": lambda u: conv(u, u.constant(u.random.uniform(-1, 1, 3).astype(np.float32))),
    "clip-above": lambda u: u.node("Clip", [conv(u), "", floats(u, 1.0)]),
    "clip-nothing": lambda u: u.node("Clip", [x(u, 2, 3)]),
    "slopes-of-columns": lambda u: u.node("PRelu", [u.node("MatMul", [x(u, 2, 3, 5), w(u, 5, 6)]), w(u, 6)]),
    "matrix-vector": lambda u: u.node("MatMul", [x(u, 2, 3, 5), w(u, 5)]),
    "vector-matrix": lambda u: u.node("MatMul", [w(u, 5), x(u, 5, 4)]),
    "both-transposed": lambda u: u.node("Gemm", [x(u, 5, 4), x(u, 6, 5)], transA=1, transB=1),
    "data-and-bias": lambda u: u.node("Gemm", [x(u, 4, 5), x(u, 6, 5), w(u, 6)], transB=1),
    "number-minus": lambda u: u.node("Sub", [floats(u, 0.37), x(u, 2, 3)]),
    "times-number": lambda u: u.node("Mul", [x(u, 2, 3), floats(u, 0.37)]),
    "square": lambda u: u.node("Pow", [x(u, 2, 3), floats(u, 2.0)]),
    "constant-rows": lambda u: u.node("Gather", [w(u, 9, 4), rows(u)]),
    "expand": lambda u: u.node("Expand", [x(u, 2, 1, 4), ints(u, 2, 3, 4)]),
    "tile": lambda u: u.node("Tile", [x(u, 2, 1, 4), ints(u, 1, 3, 2)]),
    "crop": crop,
    "backwards": lambda u: u.node("Slice", [x(u, 2, 5, 6), ints(u, -1), ints(u, -100), ints(u, -1), ints(u, -2)]),
    "squeeze-all": lambda u: u.node("Squeeze", [x(u, 2, 1, 6, 1)]),
    "join-constant": lambda u: u.node("Concat", [x(u, 2, 3), w(u, 2, 2), x(u, 2, 4)], axis=-1),
    "depth-to-space": lambda u: u.node(
        "DepthToSpace", [x(u, 2, 12, 3, 4)], blocksize=2, mode=str(u.random.choice(["DCR", "CRD"]))
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_computed_as_the_reference_says(name: str) -> None:
    for seed, arithmetic in some([*enumerate(ARITHMETICS)], 2):
        unit = Unit(np.random.default_rng([seed, *name.encode()]))
        unit.store(FORMS[name](unit), pow2(unit.random))
        know_sizes(unit)
        done = compile_model(unit.model(), TakesAll(arithmetic=arithmetic))  # type: ignore[arg-type]
        assert not done.reasons, f"seed {seed}: {done.reasons}"
        found = provider.open_session(done.model).run(unit.feeds)
        for got, wanted in zip(found.values(), unit.reference(arithmetic), strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=f"seed {seed}")


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_a_region_is_the_one_that_onnxruntime_reads(nearest: str) -> None:
    for seed in range(4):
        unit = Unit(np.random.default_rng(seed))
        unit.store(crop_and_resize(nearest)(unit), pow2(unit.random))
        know_sizes(unit)
        done = compile_model(unit.model(), TakesAll(arithmetic=SHIFT))  # type: ignore[arg-type]
        assert not done.reasons
        for got, wanted in zip(
            provider.open_session(done.model).run(unit.feeds).values(), unit.onnxruntime(), strict=True
        ):
            np.testing.assert_array_equal(got, wanted, err_msg=f"seed {seed}")


@pytest.mark.parametrize(
    ("number", "behind", "held"), [(-100.0, 0.5, False), (0.3, 0.25, False), (0.5, 0.25, True), (0.3, 0.5, True)]
)
def test_a_pad_whose_number_would_become_another_runs_on_the_cpu(number: float, behind: float, held: bool) -> None:
    """The NPU pads integers of the input, which hold halves between −64 and 63.5; what is stored behind must be Q(number)."""
    unit = Unit(np.random.default_rng(0))
    data = unit.activation((2, 3), Encoding.per_tensor(ir.DataType.INT8, 0.5))
    output = Encoding.per_tensor(ir.DataType.INT8, behind, 100 if number < 0 else 0)
    unit.store(unit.node("Pad", [data, ints(unit, 0, 1, 1, 0), floats(unit, number)]), output)
    know_sizes(unit)
    done = compile_model(unit.model(), TakesAll(arithmetic=SHIFT))  # type: ignore[arg-type]
    assert bool(done.parts) == held
    assert held or "which the encoding of what it pads does not hold" in done.reasons[0].reason
    if held:
        (found,) = provider.open_session(done.model).run(unit.feeds).values()
        np.testing.assert_array_equal(found, unit.onnxruntime()[0])
