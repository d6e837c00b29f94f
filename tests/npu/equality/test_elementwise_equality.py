"""Operators on elements of 8 and 16 bits: the provider and the custom operators against the reference, every integer equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.numerics.arithmetic import Arithmetic

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.runtime import provider
from qdqtool.targets.loading import load_target
from tests.npu.equality.equality import ARITHMETICS, INSTRUCTION_SETS, Unit, Units, generator, on_arithmetic
from tests.npu.equality.units_elementwise import CASES, WideBuilder

ANY = load_target(Path(__file__).with_name("targets") / "any_width.toml")
SEEDS = 8
#: Those of the 8-bit tests, and others of what only 16 bits have.
ALL: dict[str, tuple[Arithmetic, bool]] = {
    **ARITHMETICS,
    "float16": (Arithmetic(rounding="half_up", wide_functions="float16", wide_accumulator=40), False),
    "interpolated": (Arithmetic(wide_functions="interpolated", wide_accumulator=28, accumulator_overflow="saturate"), False),
    "wide_wrapping": (Arithmetic(rounding="half_away", overflow="wrap", wide_accumulator=24, segments=16,
                                 wide_functions="interpolated"), False),
    "float_wrapping": (Arithmetic(requantize="float", rounding="half_up", overflow="wrap", wide_accumulator=26), False),
}  # fmt: skip


def unit(seed: int, pow2: bool, case: str) -> Unit:
    """A model and a feed, the same ones every time."""
    builder = WideBuilder(generator(seed, case), pow2=pow2)
    return CASES[case](builder), builder.feeds


UNITS = Units(ANY, unit, SEEDS)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("case", CASES)
def test_a_unit_is_computed_as_the_reference_says(case: str, name: str) -> None:
    UNITS.on_provider(ALL[name], case)


@pytest.mark.parametrize("case", CASES)
def test_the_custom_operators_compute_the_same(case: str) -> None:
    UNITS.as_operators(case)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("case", CASES)
def test_every_instruction_set_computes_the_same(case: str, isa: str) -> None:
    """Where the processor lacks one, the next lower one runs."""
    UNITS.on_provider("half_even", case, isa=isa)


def test_division_by_zero_goes_to_the_ends() -> None:
    """By the sign of what is divided, whatever results beyond the type do; 0 / 0 is 0."""
    x = ir.Value(name="x", shape=ir.Shape([5]), type=ir.TensorType(ir.DataType.FLOAT))
    b = WideBuilder(np.random.default_rng(0))
    b.inputs, b.feeds = [x], {"x": np.array([2, -2, 0, 1, -1], np.float32)}
    s, z, sy, zy = (b.constant(np.array(v, t)) for v, t in ((0.5, "f4"), (0, "int8"), (0.25, "f4"), (100, "int16")))
    data = b.node("DequantizeLinear", [b.node("QuantizeLinear", [x, s, z]), s, z])
    by = b.node("DequantizeLinear", [b.constant(np.array([0, 0, 0, 2, 2], np.int8)), s, z])
    quotient = b.node("QuantizeLinear", [b.node("Div", [data, by]), sy, zy])
    model = b.model(b.node("DequantizeLinear", [quotient, sy, zy]))
    for arithmetic in (Arithmetic(), Arithmetic(overflow="wrap"), Arithmetic(requantize="float", overflow="wrap")):
        wanted = (np.array([32767, -32768, 100, 104, 96]) - 100) * np.float32(0.25)
        done = compile_model(model, on_arithmetic(ANY, arithmetic))
        np.testing.assert_array_equal(
            provider.open_session(done.model).run(b.feeds)[model.graph.outputs[0].name], wanted
        )
