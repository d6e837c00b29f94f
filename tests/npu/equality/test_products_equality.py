"""Sums of products of every width, on the provider and as custom operators, against the reference: every integer equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qdq_passes.numerics.arithmetic import Arithmetic

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.runtime import provider
from qdqtool.targets.loading import load_target
from tests.dial import some
from tests.npu.equality.equality import (
    ARITHMETICS,
    INSTRUCTION_SETS,
    Unit,
    Units,
    generator,
    on_arithmetic,
    reference,
)
from tests.npu.equality.random_units import Builder
from tests.npu.equality.units_products import CASES

ANY = load_target(Path(__file__).with_name("targets") / "any_width.toml")
SEEDS = 12

#: Accumulators that sums of 16 bits leave.
NARROW = {
    "wide_saturating": (Arithmetic(wide_accumulator=28, rounding="half_up"), False),
    "wide_wrapping": (Arithmetic(wide_accumulator=30, accumulator_overflow="wrap", requantize="float"), False),
}


def unit(seed: int, pow2: bool, case: str) -> Unit:
    """A model and a feed, the same ones every time."""
    builder = Builder(generator(seed, case), pow2=pow2)
    return CASES[case](builder), builder.feeds


UNITS = Units(ANY, unit, SEEDS)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


@pytest.mark.parametrize("name", {**ARITHMETICS, **NARROW})
@pytest.mark.parametrize("case", CASES)
def test_a_product_is_computed_as_the_reference_says(case: str, name: str) -> None:
    UNITS.on_provider({**ARITHMETICS, **NARROW}[name], case)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("case", CASES)
def test_every_instruction_set_computes_the_same_product(case: str, isa: str) -> None:
    UNITS.on_provider("half_even", case, seeds=some(range(SEEDS, SEEDS + 8), 2), isa=isa)


@pytest.mark.parametrize("case", CASES)
def test_the_custom_operators_compute_the_same_product(case: str) -> None:
    UNITS.as_operators(case)


@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
def test_sums_that_leave_64_bits(overflow: str) -> None:
    """2^17 products of almost 2^32, shifted to the left by 15 for a finer bias: 2^63 − 1 is 2^32 in its steps of 2^-31."""
    b, depth = Builder(np.random.default_rng(0)), 1 << 17
    x, w, scale = b.input(1, depth), b.constant(np.full((depth, 1), 65535, np.uint16)), b.constant(np.float32(2.0**-8))
    zero = b.constant(np.zeros((), np.uint16))
    b.feeds["x"] = np.full((1, depth), 255.9, np.float32)
    data = b.node("DequantizeLinear", [b.node("QuantizeLinear", [x, scale, zero]), scale, zero])
    weight = b.node("DequantizeLinear", [w, scale, zero])
    finer = b.constant(np.float32(2.0**-31))
    bias = b.node("DequantizeLinear", [b.constant(np.array([12345], np.int32)), finer])
    step, middle = b.constant(np.float32(2.0**19)), b.constant(np.zeros((), np.int16))
    made = b.node("QuantizeLinear", [b.node("Gemm", [data, weight, bias]), step, middle])
    model = b.model(b.node("DequantizeLinear", [made, step, middle]))
    arithmetic = Arithmetic(accumulator_overflow=overflow, requantize="float")  # type: ignore[arg-type]
    wanted = reference(model, b.feeds, arithmetic)
    found = provider.open_session(compile_model(model, on_arithmetic(ANY, arithmetic)).model).run(b.feeds)
    for output, value in wanted.items():
        np.testing.assert_array_equal(found[output], value)
        assert (value.item() == 2.0**32) == (overflow == "saturate")
