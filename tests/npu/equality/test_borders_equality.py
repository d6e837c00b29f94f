"""Numbers at the borders of what kernels hold: factors far from 1, tensors without elements. The provider against the reference, and
against what the numbers are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.numerics.arithmetic import Arithmetic

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.runtime import provider
from qdqtool.runtime.session import open_session
from tests.npu.equality.equality import reference
from tests.npu.equality.test_elementwise_equality import ANY
from tests.npu.equality.units_elementwise import WideBuilder

ARITHMETICS = (
    Arithmetic(),
    Arithmetic(rounding="half_even", overflow="wrap"),
    Arithmetic(requantize="float", rounding="half_up"),
    Arithmetic(requantize="float", overflow="wrap"),
)
FAR = 1e-30


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


def builder() -> WideBuilder:
    return WideBuilder(np.random.default_rng(0), types=("uint8", "int16"))


def computed(model: ir.Model, feeds: dict[str, Any], arithmetic: Arithmetic) -> Any:
    """What the provider makes of ``model``, which is what the reference makes of it; None where the CPU computes it."""
    done = compile_model(model, dataclasses.replace(ANY, arithmetic=arithmetic))
    if done.reasons:
        return None
    found = provider.open_session(done.model).run(feeds)
    for name, value in reference(model, feeds, arithmetic).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    return found[model.graph.outputs[0].name or ""]


def _weight(b: WideBuilder, *shape: int, scale: float = 0.01) -> Any:
    data = b.constant(b.rng.integers(-128, 128, shape).astype(np.int8))
    return b.node("DequantizeLinear", [data, b.constant(np.array(scale, np.float32))])


FORMS: dict[str, Callable[[WideBuilder, ir.Value], ir.Value]] = {
    "MatMul": lambda b, x: b.node("MatMul", [x, _weight(b, 5, 4)]),
    "blocks": lambda b, x: b.node(
        "MatMul",
        [x, b.node("DequantizeLinear", [b.constant(np.full((5, 4), 3, np.int8)), b.constant(np.ones((2, 4), np.float32))],
                   {"axis": 0, "block_size": 3})],
    ),
    "Mul": lambda b, x: b.node("Mul", [x, _weight(b, 5)]),
    "Div": lambda b, x: b.node("Div", [x, _weight(b, 5)]),
    "ReduceMean": lambda b, x: b.node("ReduceMean", [x, b.constant(np.array([1]))]),
    "Softmax": lambda b, x: b.node("Softmax", [x]),
}  # fmt: skip


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("form", FORMS)
def test_an_output_scale_far_too_small_leaves_the_ends_of_the_type(form: str, arithmetic: Arithmetic) -> None:
    b = builder()
    x = b.quantized(b.input(3, 5), scale=0.01)
    model = b.model(b.quantized(FORMS[form](b, x), scale=FAR))
    found = computed(model, b.feeds, arithmetic)
    if arithmetic.overflow == "saturate":
        assert np.unique(found).size <= 3


@pytest.mark.parametrize("scale", [0.0, np.inf, -1.0])
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("form", ["MatMul", "Mul", "Softmax"])
def test_scales_that_mean_nothing_are_left_to_the_cpu(form: str, arithmetic: Arithmetic, scale: float) -> None:
    b = builder()
    x = b.quantized(b.input(3, 5), scale=scale)
    assert computed(b.model(b.quantized(FORMS[form](b, x), scale=0.1)), b.feeds, arithmetic) is None


def test_products_of_scales_beyond_float32_are_left_to_the_cpu_in_float() -> None:
    for form, arithmetic, taken in (("Mul", ARITHMETICS[0], True), ("Mul", ARITHMETICS[2], False)):
        b = builder()
        x, z = b.quantized(b.input(3, 5), scale=FAR), b.quantized(b.input(5, name="z"), scale=FAR)
        found = computed(b.model(b.quantized(b.node(form, [x, z]), scale=1.0)), b.feeds, arithmetic)
        assert (found is not None) == taken


def test_a_resize_along_three_axes_is_what_onnxruntime_interpolates() -> None:
    """The step of its sums is 2^-33 of the input's: a multiplier of less than 31 bits. One step of the output."""
    b = WideBuilder(np.random.default_rng(1), types=("uint8",))
    scales = b.constant(np.array([1, 1, 2, 1.5, 2], np.float32))
    y = b.node("Resize", [b.quantized(b.input(1, 1, 3, 4, 5), scale=0.02), None, scales], {"mode": "linear"})
    model = b.model(b.quantized(y, scale=0.02))
    found = computed(model, b.feeds, Arithmetic())
    wanted = open_session(model).run(b.feeds)[model.graph.outputs[0].name or ""]
    assert np.abs(found - wanted).max() <= 0.02 * 1.001
    assert np.unique(found).size > 10


def test_sums_of_64_bits_keep_a_small_multiplier() -> None:
    """65535·65535·64 steps of 2^-32 are 63.998 of the output's."""
    b = builder()
    x = b.quantized(b.input(1, 64), scale=2.0**-16, dtype="uint16")
    b.feeds["x"] = np.full((1, 64), 9e9, np.float32)
    zero = b.nodes[-1].inputs[2]
    assert zero is not None
    zero.const_value = ir.tensor(np.array(0, np.uint16))
    weight = b.node(
        "DequantizeLinear", [b.constant(np.full((64, 1), 65535, np.uint16)), b.constant(np.array(2.0**-16, np.float32))]
    )
    model = b.model(b.quantized(b.node("MatMul", [x, weight]), scale=2.0**1, dtype="int16"))
    found = computed(model, b.feeds, Arithmetic(wide_accumulator=64))
    assert found.item() == 64.0


@pytest.mark.parametrize("op", ["LayerNormalization", "Softmax", "ReduceMax", "ReduceMean", "MatMul"])
def test_tensors_without_elements_are_computed_or_left(op: str) -> None:
    b = builder()
    x = b.x(0, 5) if op == "LayerNormalization" else b.x(3, 0)
    inputs = {
        "LayerNormalization": [_weight(b, 5)],
        "Softmax": [],
        "MatMul": [b.x(0, 2, name="z")],
    }.get(op, [b.constant(np.array([1]))])
    model = b.model(b.quantized(b.node(op, [x, *inputs])))
    found = computed(model, b.feeds, Arithmetic())
    assert (found is None) == op.startswith("Reduce")


def test_a_softmax_of_a_scalar_has_no_kernel() -> None:
    b = builder()
    assert computed(b.model(b.quantized(b.node("Softmax", [b.x()], {"axis": 0}))), b.feeds, Arithmetic()) is None
