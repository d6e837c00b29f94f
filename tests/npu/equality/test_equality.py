"""The provider and the custom operators against the reference, which never sees a program: every integer equal, whatever the shapes,
encodings and arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from qdq_passes.numerics.arithmetic import Arithmetic

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.runtime import provider
from qdqtool.runtime.session import open_session
from qdqtool.targets.loading import load_target
from tests.dial import some
from tests.npu.equality.equality import (
    ARITHMETICS,
    INSTRUCTION_SETS,
    Unit,
    Units,
    assert_equal,
    generator,
    on_arithmetic,
)
from tests.npu.equality.random_units import CASES, Builder

ANY = load_target(Path(__file__).with_name("targets") / "any_int8.toml")
SEEDS = 8


def unit(seed: int, pow2: bool, case: str) -> Unit:
    """A model and a feed, the same ones every time."""
    builder = Builder(generator(seed, case), pow2=pow2)
    return CASES[case](builder), builder.feeds


UNITS = Units(ANY, unit, SEEDS)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


@pytest.mark.parametrize("name", ARITHMETICS)
@pytest.mark.parametrize("case", CASES)
def test_a_unit_is_computed_as_the_reference_says(case: str, name: str) -> None:
    UNITS.on_provider(name, case)


@pytest.mark.parametrize("case", CASES)
def test_the_custom_operators_compute_the_same(case: str) -> None:
    UNITS.as_operators(case)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    "case", ["conv", "conv_1d", "conv_transpose", "gemm", "matmul", "elementwise", "function", "pool"]
)
def test_every_instruction_set_computes_the_same(case: str, isa: str) -> None:
    UNITS.on_provider("half_even", case, isa=isa)


#: Operators whose float32 arithmetic in onnxruntime is exact for these sizes and power-of-two scales: sums below 2^24.
EXACT_IN_FLOAT = [case for case in CASES if case not in ("function", "softmax")]


@pytest.mark.parametrize("case", EXACT_IN_FLOAT)
def test_powers_of_two_and_half_even_are_onnxruntime(case: str) -> None:
    """Against the QDQ model in onnxruntime without optimization, at tolerance 0."""
    for seed in some(SEEDS):
        model, feed = unit(seed, True, case)
        done = compile_model(model, on_arithmetic(ANY, Arithmetic(requantize="fixed_point", rounding="half_even")))
        assert_equal(provider.open_session(done.model).run(feed), dict(open_session(model).run(feed)), f"seed {seed}")
