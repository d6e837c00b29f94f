"""The provider and the custom operators against the reference, which never sees a program: every integer equal, whatever the shapes,
encodings and arithmetic."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.reference import run_reference

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.npu.compile import lower
from qdqtool.npu.library import library_path
from qdqtool.runtime import provider
from qdqtool.runtime.session import open_session
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from tests.npu.random_units import CASES, Builder

ANY = load_target(Path(__file__).with_name("any_int8.toml"))

#: Name → arithmetic, and whether only power-of-two scales have a meaning in it.
ARITHMETICS: dict[str, tuple[Arithmetic, bool]] = {
    "half_even": (Arithmetic(rounding="half_even"), False),
    "half_up": (Arithmetic(rounding="half_up"), False),
    "half_away": (Arithmetic(rounding="half_away", zero_point_first=True), False),
    "shift": (Arithmetic(requantize="shift", rounding="half_up"), True),
    "float": (Arithmetic(requantize="float", rounding="toward_zero", zero_point_first=True), False),
    "wrapping": (Arithmetic(rounding="toward_zero", overflow="wrap"), False),
    "narrow": (Arithmetic(accumulator=16, accumulator_overflow="saturate"), False),
}
SEEDS = 8


def on_arithmetic(arithmetic: Arithmetic) -> Target:
    """The target that takes everything, computing so."""
    return dataclasses.replace(ANY, arithmetic=arithmetic)


def unit(case: str, seed: int, *, pow2: bool) -> tuple[ir.Model, dict[str, Any]]:
    """A model and a feed, the same ones every time."""
    builder = Builder(np.random.default_rng([zlib.crc32(case.encode()), seed]), pow2=pow2)
    return CASES[case](builder), builder.feeds


def reference(model: ir.Model, feed: dict[str, Any], arithmetic: Arithmetic) -> dict[str, Any]:
    """What must come out when the NPU computes every node."""

    def never(node: ir.Node, inputs: Any) -> Any:
        raise AssertionError(f"{node.op_type} is asked of the CPU")

    return run_reference(model, feed, arithmetic, on_npu=lambda node: True, fallback=never)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


@pytest.mark.parametrize("name", ARITHMETICS)
@pytest.mark.parametrize("case", CASES)
def test_a_unit_is_computed_as_the_reference_says(case: str, name: str) -> None:
    arithmetic, only_pow2 = ARITHMETICS[name]
    target = on_arithmetic(arithmetic)
    for seed in range(SEEDS):
        model, feed = unit(case, seed, pow2=only_pow2 or seed % 2 == 0)
        wanted = reference(model, feed, arithmetic)
        done = compile_model(model, target)
        assert done.parts, f"seed {seed}"
        assert not done.reasons, f"seed {seed}: {done.reasons}"
        found = provider.open_session(done.model).run(feed)
        for output, value in wanted.items():
            np.testing.assert_array_equal(found[output], value, err_msg=f"seed {seed}, output {output}")


@pytest.mark.parametrize("case", CASES)
def test_the_custom_operators_compute_the_same(case: str) -> None:
    arithmetic = ARITHMETICS["half_up"][0]
    for seed in range(SEEDS):
        model, feed = unit(case, seed, pow2=seed % 2 == 0)
        wanted = reference(model, feed, arithmetic)
        lowered = lower(model, on_arithmetic(arithmetic)).model
        found = open_session(lowered, operators=library_path()).run(feed)
        for output, value in wanted.items():
            np.testing.assert_array_equal(found[output], value, err_msg=f"seed {seed}, output {output}")


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize(
    "case", ["conv", "conv_1d", "conv_transpose", "gemm", "matmul", "elementwise", "function", "pool"]
)
def test_every_instruction_set_computes_the_same(case: str, isa: str) -> None:
    """Where the processor lacks one, the next lower one runs."""
    arithmetic = ARITHMETICS["half_even"][0]
    for seed in range(SEEDS):
        model, feed = unit(case, seed, pow2=seed % 2 == 0)
        wanted = reference(model, feed, arithmetic)
        done = compile_model(model, on_arithmetic(arithmetic))
        found = provider.open_session(done.model, {"isa": isa}).run(feed)
        for output, value in wanted.items():
            np.testing.assert_array_equal(found[output], value, err_msg=f"seed {seed}, output {output}")


#: Operators whose float32 arithmetic in onnxruntime is exact for these sizes and power-of-two scales: sums below 2^24.
EXACT_IN_FLOAT = [case for case in CASES if case not in ("function", "softmax")]


@pytest.mark.parametrize("case", EXACT_IN_FLOAT)
def test_powers_of_two_and_half_even_are_onnxruntime(case: str) -> None:
    """Against the QDQ model in onnxruntime without optimization, at tolerance 0."""
    for seed in range(SEEDS):
        model, feed = unit(case, seed, pow2=True)
        wanted = open_session(model).run(feed)
        done = compile_model(model, on_arithmetic(Arithmetic(requantize="fixed_point", rounding="half_even")))
        found = provider.open_session(done.model).run(feed)
        for output, value in wanted.items():
            np.testing.assert_array_equal(found[output], value, err_msg=f"seed {seed}, output {output}")
