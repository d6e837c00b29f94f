"""Floating point on the NPU: the provider and the custom operators against the reference, every bit equal."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.npu.formulas.floats import exponential
from qdq_passes.npu.reference.run import run_reference
from qdq_passes.numerics.arithmetic import Arithmetic, Precision
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.npu.compile import lower
from qdqtool.npu.library import library_path
from qdqtool.runtime import provider
from qdqtool.runtime.session import open_session
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from tests.dial import some
from tests.npu.equality.units_floats import CASES, FloatBuilder

ANY = load_target(Path(__file__).with_name("targets") / "any_float.toml")
PRECISIONS: tuple[Precision, ...] = ("float16", "bfloat16", "float32")
#: Seeds of each case, more than it has forms of an operator.
SEEDS = 12
#: What is no formula in float32.
HALVES_ONLY = ("table",)
#: What has operators of opset 23, of whose pairs older onnxruntimes have no kernels.
OF_OPSET_23 = ("norm", "rotary")
NAMES = [pytest.param(case, marks=pytest.mark.newest) if case in OF_OPSET_23 else case for case in CASES]
#: Of pools with ceil_mode older onnxruntimes count other elements.
COMPARED = [pytest.param(case, marks=pytest.mark.newest) if case == "pool" else case for case in NAMES]

ARITHMETICS = {
    "half_up": Arithmetic(rounding="half_up"),
    "zero_first": Arithmetic(rounding="half_away", zero_point_first=True),
    "wrapping": Arithmetic(rounding="toward_zero", overflow="wrap"),
    "even": Arithmetic(rounding="half_even"),
}


def on_arithmetic(arithmetic: Arithmetic) -> Target:
    """The target that takes everything, computing so."""
    return dataclasses.replace(ANY, arithmetic=arithmetic)


def unit(case: str, seed: int, dtype: ir.DataType) -> tuple[ir.Model, dict[str, Any]]:
    """A model and a feed, the same ones every time."""
    builder = FloatBuilder(np.random.default_rng([zlib.crc32(case.encode()), seed]), pow2=seed % 2 == 0)
    builder.dtype = dtype
    model = CASES[case](builder)
    model.graph.opset_imports[""] = 23 if case in OF_OPSET_23 else 21
    run_pipeline(model, "infer-shapes")
    return model, builder.feeds


def reference(model: ir.Model, feed: dict[str, Any], arithmetic: Arithmetic) -> dict[str, Any]:
    """What must come out when the NPU computes every node in floating point."""

    def never(node: ir.Node, inputs: Any) -> Any:
        raise AssertionError(f"{node.op_type} is asked of the CPU")

    return run_reference(model, feed, arithmetic, on_npu=lambda node: True, fallback=never, in_float=lambda node: True)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


def _compare(found: dict[str, Any], wanted: dict[str, Any], seed: int) -> None:
    for output, value in wanted.items():
        assert found[output].dtype == value.dtype, f"seed {seed}"
        both = (array.astype(np.float32) if value.dtype.itemsize == 2 else array for array in (found[output], value))
        np.testing.assert_array_equal(*both, err_msg=f"seed {seed}, output {output}")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", NAMES)
def test_a_unit_is_computed_as_the_reference_says(case: str, precision: Precision) -> None:
    if precision == "float32" and case in HALVES_ONLY:
        return
    for seed in some(SEEDS):
        arithmetic = list(ARITHMETICS.values())[seed % len(ARITHMETICS)]
        arithmetic = dataclasses.replace(arithmetic, float_precision=precision)
        model, feed = unit(case, seed, ir.DataType.FLOAT)
        wanted = reference(model, feed, arithmetic)
        done = compile_model(model, on_arithmetic(arithmetic))
        assert done.parts, f"seed {seed}"
        assert not done.cpu_nodes, f"seed {seed}: {done.reasons}"
        _compare(dict(provider.open_session(done.model).run(feed)), wanted, seed)


#: Of an element: float32 sums of some 200 terms in another order, relative to 1 or the element.
CLOSE = 1e-4
#: Of the elements, those that another order of a sum puts on the other side of a half before they are quantized.
HALVES = 0.02


@pytest.mark.parametrize("case", [case for case in COMPARED if case not in HALVES_ONLY])
def test_in_float32_it_is_what_onnxruntime_computes(case: str) -> None:
    """But for the order of sums: what the reference takes an operator for is what onnx means by it."""
    for seed in some(SEEDS):
        model, feed = unit(case, seed, ir.DataType.FLOAT)
        wanted = open_session(model).run(feed)
        found = reference(model, feed, Arithmetic(rounding="half_even", float_precision="float32"))
        for output, value in wanted.items():
            assert (np.isnan(found[output]) == np.isnan(value)).all(), f"seed {seed}"
            known = np.isfinite(value)
            distance = np.abs(found[output][known].astype(np.float64) - value[known])
            off = distance > CLOSE * np.maximum(1, np.abs(value[known]))
            assert np.count_nonzero(off) <= HALVES * value.size, f"seed {seed}: {distance.max()}"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16], ids=["of_float16", "of_bfloat16"])
@pytest.mark.parametrize("case", NAMES)
def test_models_of_halves(case: str, dtype: ir.DataType, precision: Precision) -> None:
    """Every tensor of the model is of 16 bits: results are rounded to the precision, then to the type."""
    if precision == "float32" and case in HALVES_ONLY:
        return
    for seed in some(4):
        arithmetic = Arithmetic(float_precision=precision)
        model, feed = unit(case, seed, dtype)
        wanted = reference(model, feed, arithmetic)
        done = lower(model, on_arithmetic(arithmetic))
        assert not done.cpu_nodes, f"{seed}: {done.reasons}"
        found = provider.open_session(compile_model(model, on_arithmetic(arithmetic)).model).run(feed)
        _compare(dict(found), wanted, seed)


@pytest.mark.parametrize("case", NAMES)
def test_custom_operators_compute_the_same(case: str) -> None:
    """The lowered model in an ordinary session."""
    arithmetic = Arithmetic(rounding="half_up")
    for seed in some(SEEDS):
        model, feed = unit(case, seed, ir.DataType.FLOAT)
        wanted = reference(model, feed, arithmetic)
        lowered = lower(model, on_arithmetic(arithmetic)).model
        _compare(dict(open_session(lowered, operators=library_path()).run(feed)), wanted, seed)


@pytest.mark.parametrize("isa", ["portable", "avx2"])
@pytest.mark.parametrize("case", NAMES)
def test_every_instruction_set_computes_the_same(case: str, isa: str) -> None:
    arithmetic = Arithmetic(rounding="half_away", float_precision="bfloat16")
    model, feed = unit(case, 1, ir.DataType.FLOAT)
    wanted = reference(model, feed, arithmetic)
    done = compile_model(model, on_arithmetic(arithmetic))
    _compare(dict(provider.open_session(done.model, {"isa": isa}).run(feed)), wanted, 1)


def _patterns() -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32 of every exponent and sign, at and beside the halves between numbers of 16 bits, subnormals, infinities, NaN."""
    high = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    low = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (high | low).ravel().view(np.float32)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("op", ["Neg", "Exp", "Sqrt", "Reciprocal"])
def test_every_kind_of_number_is_rounded_alike(op: str, precision: Precision) -> None:
    builder = FloatBuilder(np.random.default_rng(0))
    numbers = _patterns()
    model = builder.model(builder.node(op, [builder.input(numbers.size)]))
    run_pipeline(model, "infer-shapes")
    arithmetic = Arithmetic(float_precision=precision)
    wanted = reference(model, {"x": numbers}, arithmetic)
    found = provider.open_session(compile_model(model, on_arithmetic(arithmetic)).model).run({"x": numbers})
    _compare(dict(found), wanted, 0)


def test_the_exponential_is_that_of_float64() -> None:
    """Rounded to float32 once; the polynomial is off by less than 2^-50, so that halves are missed almost never."""
    x = np.linspace(-104, 88.7, 200001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64)).astype(np.float32)
    assert np.count_nonzero(exponential(x) != exact) == 0
    assert exponential(np.array([-np.inf, 0, 200, np.nan], np.float32))[:3].tolist() == [0, 1, np.inf]
