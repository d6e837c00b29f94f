"""Tables of functions of one 8-bit value against onnxruntime without optimization, all 256 inputs at once.

Functions of float32 operations are equal at tolerance 0, at any scale. What is transcendental is correct to float32 here, and in
onnxruntime wrong by at most 10^-6 of 1 and of the result (measured, 1.23.2 and 1.31.1): where the exact result is farther than that
from a tie, both store the same integer, else they may differ by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.graph.uses import constant_array
from qdq_passes.npu.formulas.functions import Function, chained, function_of, quantized, slope_axis, table
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding

from tests.cases.qdq_units import FIXED_POINT, ROUNDINGS, Unit, pow2, rounded
from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC

SEEDS = st.integers(0, 2**32 - 1)
INT8, UINT8 = ir.DataType.INT8, ir.DataType.UINT8

#: (operator, attributes, constants behind the first input), computed in float32 alone.
EXACT: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    **{op: (op, {}, []) for op in (
        "Identity", "Relu", "Neg", "Abs", "Sign", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "HardSwish", "Softsign", "LeakyRelu",
        "HardSigmoid", "ThresholdedRelu", "Shrink",
    )},
    "leaky": ("LeakyRelu", {"alpha": 0.3}, []),
    "hard sigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.4}, []),
    "thresholded": ("ThresholdedRelu", {"alpha": 0.3}, []),
    "shrink": ("Shrink", {"bias": 0.3, "lambd": 0.2}, []),
    "clip": ("Clip", {}, [-1.1, 0.7]),
    "clip above": ("Clip", {}, [None, 0.7]),
    "clip empty": ("Clip", {}, [0.7, -1.1]),
    "prelu": ("PRelu", {}, [0.3]),
    "square": ("Pow", {}, [2.0]),
    "cube": ("Pow", {}, [3.0]),
    **{op.lower(): (op, {}, [0.37]) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
}  # fmt: skip

#: Likewise, not in float32 alone.
TRANSCENDENTAL: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    **{op: (op, {}, []) for op in (
        "Sigmoid", "Tanh", "Erf", "Gelu", "Softplus", "Elu", "Selu", "Celu", "Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan",
        "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Mish",
    )},
    "gelu tanh": ("Gelu", {"approximate": "tanh"}, []),
    "elu": ("Elu", {"alpha": 0.7}, []),
    "celu": ("Celu", {"alpha": 0.7}, []),
    "selu": ("Selu", {"alpha": 1.5, "gamma": 1.1}, []),
    **{f"power {e}": ("Pow", {}, [e]) for e in (0.5, -1.0, 1.7, 4.0, -2.0, 0.0)},
}  # fmt: skip


def unit_of(op_type: str, attributes: dict[str, Any], others: list[Any], source: Encoding, target: Encoding) -> Unit:
    """``op_type`` on every integer of ``source``, the smallest first."""
    unit = Unit(np.random.default_rng(0))
    x = unit.activation([256], source)
    first = -128 if source.dtype == INT8 else 0
    unit.feeds["x0"] = ((np.arange(256) + first - source.zero_point[0]) * np.float32(source.scale[0])).astype(
        np.float32
    )
    constants = ["" if other is None else unit.constant(np.float32(other)) for other in others]
    unit.store(unit.node(op_type, [x, *constants], **attributes), target)
    return unit


def grids(random: np.random.Generator) -> tuple[Encoding, Encoding]:
    """Encodings of any scale and zero point."""
    found = [
        Encoding.per_tensor(e.dtype, float(np.float32(random.uniform(0.002, 0.1))), int(e.zero_point[0]))
        for e in (pow2(random), pow2(random))
    ]
    return found[0], found[1]


def function(unit: Unit) -> Function:
    """What the operator of ``unit`` is."""
    (node,) = [n for n in unit.model().graph if n.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    found = function_of(node, constant_array)
    assert isinstance(found, Function)
    return found


@pytest.mark.parametrize("name", EXACT)
@settings(DETERMINISTIC, max_examples=6)
@given(seed=SEEDS)
def test_functions_in_float32_are_those_of_onnxruntime(name: str, seed: int) -> None:
    source, target = grids(np.random.default_rng(seed))
    unit = unit_of(*EXACT[name], source, target)
    wanted = unit.onnxruntime()[0]
    np.testing.assert_array_equal(table(function(unit), source, target, Arithmetic(rounding="half_even")), wanted)
    np.testing.assert_array_equal(unit.reference(FIXED_POINT)[0], wanted)


@pytest.mark.parametrize("name", TRANSCENDENTAL)
@settings(DETERMINISTIC, max_examples=5)
@given(seed=SEEDS)
def test_transcendental_functions_are_those_of_onnxruntime_off_ties(name: str, seed: int) -> None:
    source, target = grids(np.random.default_rng(seed))
    unit = unit_of(*TRANSCENDENTAL[name], source, target)
    (real, _), wanted = unit.floats_of_onnxruntime()[0], unit.onnxruntime()[0]
    found = table(function(unit), source, target, Arithmetic(rounding="half_even"))
    steps, near = real.astype(np.float64) / target.scale[0], 1e-6 * np.maximum(np.abs(real.astype(np.float64)), 1)
    with np.errstate(invalid="ignore"):
        at_tie = np.abs(steps - np.floor(steps) - 0.5) <= near / target.scale[0]
    np.testing.assert_array_equal(found[~at_tie], wanted[~at_tie])
    assert np.abs(found - wanted).max() <= 1


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_table_is_rounded_as_the_target_does(rounding: Any) -> None:
    """x + 0 in steps of twice the size: every second input is a tie."""
    source, target = Encoding.per_tensor(INT8, 0.5, 3), Encoding.per_tensor(INT8, 1.0, -7)
    real = (np.arange(-128, 128) - 3) * 0.5
    np.testing.assert_array_equal(
        table(None, source, target, Arithmetic(rounding=rounding)), rounded(real, target, rounding)
    )


def test_what_is_no_number_is_the_smallest_integer() -> None:
    """log of −1, 0 and 1; 1/0 is ∞."""
    source, target = Encoding.per_tensor(INT8, 1.0), Encoding.per_tensor(INT8, 0.5, 9)
    assert table(function(unit_of("Log", {}, [], source, target)), source, target, Arithmetic(rounding="half_up"))[
        127:130
    ].tolist() == [
        -128,
        -128,
        9,
    ]
    assert (
        table(function(unit_of("Reciprocal", {}, [], source, target)), source, target, Arithmetic(rounding="half_up"))[
            128
        ]
        == 127
    )


def test_a_slope_per_channel_makes_a_table_per_channel() -> None:
    unit, grid = Unit(np.random.default_rng(1)), Encoding.per_tensor(UINT8, 0.1, 100)
    x = unit.activation([2, 3, 40], grid)
    unit.store(unit.node("PRelu", [x, unit.constant(np.array([[0.1], [-2], [0.7]], np.float32))]), grid)
    assert function(unit).axis == -2
    assert table(function(unit), grid, grid, Arithmetic(rounding="half_even")).shape == (3, 256)
    np.testing.assert_array_equal(unit.reference(FIXED_POINT)[0], unit.onnxruntime()[0])


def test_what_is_asked_of_a_shape_of_slopes() -> None:
    assert [slope_axis(shape) for shape in ([3, 1, 1], [4], [1, 5, 1], [1], [], [2, 3])] == [
        -3,
        -1,
        -2,
        None,
        None,
        None,
    ]


def test_functions_in_one_step_are_rounded_once() -> None:
    """hard sigmoid times 3: 0.2·x + 0.5 in steps of 0.5 would be 0 or 0.5 or 1 before it is multiplied."""
    source, target = Encoding.per_tensor(INT8, 1.0), Encoding.per_tensor(INT8, 0.5)
    parts = [function(unit_of(*case, source, target)) for case in (EXACT["HardSigmoid"], ("Mul", {}, [3.0]))]
    assert table(chained(parts), source, target, Arithmetic(rounding="half_up"))[126:131].tolist() == [1, 2, 3, 4, 5]


def test_constants_on_the_left_are_no_commutation() -> None:
    unit, grid = Unit(np.random.default_rng(0)), Encoding.per_tensor(INT8, 0.25)
    x = unit.activation([64], grid)
    unit.store(unit.node("Sub", [unit.constant(np.float32(1)), x]), grid)
    assert function(unit).input == 1
    np.testing.assert_array_equal(unit.reference(FIXED_POINT)[0], unit.onnxruntime()[0])


def test_parameters_that_are_computed_are_a_reason() -> None:
    unit, grid = Unit(np.random.default_rng(0)), Encoding.per_tensor(INT8, 0.25)
    values = [unit.activation([4], grid) for _ in range(2)]
    unit.store(unit.node("PRelu", values), grid)
    (node,) = [n for n in unit.model().graph if n.op_type == "PRelu"]
    assert function_of(node, constant_array) == "its slope is computed"
    assert function_of(unit_of("Cast", {"to": 1}, [], grid, grid).model().graph[2], constant_array) is None


@settings(DETERMINISTIC, max_examples=examples(60))
@given(x=st.floats(width=32), scale=st.floats(2.0**-20, 2.0**20, width=32), zero=st.integers(-128, 127))
def test_quantized_is_the_quantize_linear_of_onnxruntime(x: float, scale: float, zero: int) -> None:
    unit, grid = Unit(np.random.default_rng(0)), Encoding.per_tensor(INT8, scale, zero)
    unit.activation([1], grid)
    unit.feeds["x0"] = np.array([x], np.float32)
    unit.store("x0", grid)
    assert quantized(unit.feeds["x0"], grid).tolist() == unit.onnxruntime()[0].tolist()


@pytest.mark.parametrize(
    ("contrib", "attributes", "standard"),
    [
        ("Gelu", {}, ("Gelu", {})),
        ("QuickGelu", {"alpha": 0.9}, ("Swish", {"alpha": 0.9})),
        ("QuickGelu", {}, ("Swish", {"alpha": 1.702})),
    ],
)
def test_functions_of_com_microsoft_are_those_of_onnx(
    contrib: str, attributes: dict[str, float], standard: tuple[str, dict[str, float]]
) -> None:
    x = np.linspace(-6, 6, 97, dtype=np.float32)
    values = []
    for domain, op_type, numbers in (("com.microsoft", contrib, attributes), ("", *standard)):
        found = function_of(ir.node(op_type, [ir.val("x")], numbers, domain=domain), constant_array)
        assert isinstance(found, Function)
        values.append(found.evaluate(x))
    np.testing.assert_array_equal(*values)
    assert function_of(ir.node(contrib, [ir.val("x")], domain="com.acme"), constant_array) is None
