"""Every operator that is computed in floating point, in every precision, on the provider against the reference: every bit equal."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.npu.formulas.functions import FUNCTIONS
from qdq_passes.npu.program.floats.operator import HANDLERS
from qdq_passes.numerics.arithmetic import Precision
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.runtime import provider
from tests.dial import some
from tests.npu.equality.test_floats_equality import ARITHMETICS, PRECISIONS, on_arithmetic, reference
from tests.npu.equality.units_float_operators import CASES, NEWEST
from tests.npu.equality.units_floats import FloatBuilder

Array = npt.NDArray[Any]
NAMES = [pytest.param(name, marks=pytest.mark.newest) if name[1] in NEWEST else name for name in CASES]
SEEDS = 3
#: Zeros, infinities, NaN; halves between numbers of 16 bits and between integers; the least and largest of each precision, and beyond.
SPECIAL = np.array(
    [0, -0.0, 1, -1, 0.5, -1.5, 2.5, -3, 88.7, -103.9, 1e5, -1e20, np.inf, -np.inf, np.nan, 65504, 65519, 65520, -65520, 2**-14,
     2**-24, -(2**-25), 1.5 * 2**-25, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 2049, 3.39e38, -3.4028235e38, 1e-45, 1e-40],
    np.float32,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


def special(feeds: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """``feeds`` with special numbers in place of all floats."""
    rng, found = np.random.default_rng(seed), dict(feeds)
    with np.errstate(all="ignore"):
        for name, array in feeds.items():
            if array.dtype.kind not in "iub":
                found[name] = rng.choice(SPECIAL, array.shape).astype(array.dtype)
    return found


def bits(array: Array) -> Array:
    """The bits of floats, all NaN alike, so that zeros differ by their sign; integers as they are."""
    if array.dtype.kind in "iub":
        return array
    numbers = array.astype(np.float32)
    return np.where(np.isnan(numbers), np.uint32(0x7FC00000), numbers.view(np.uint32))


def test_every_operator_is_there() -> None:
    assert set(CASES) == set(HANDLERS) | {("", op) for op in FUNCTIONS}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", NAMES, ids=lambda case: case[1] if isinstance(case, tuple) else None)
def test_it_is_computed_as_the_reference_says(case: tuple[str, str], precision: Precision) -> None:
    """On pairs and floats, and on tensors of 16 bits."""
    for seed in some(SEEDS):
        arithmetic = list(ARITHMETICS.values())[seed % len(ARITHMETICS)]
        arithmetic = dataclasses.replace(arithmetic, float_precision=precision)
        builder = FloatBuilder(np.random.default_rng([zlib.crc32(case[1].encode()), seed]), pow2=False)
        builder.dtype = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)[seed]
        model = CASES[case](builder)
        model.graph.opset_imports[""] = 24 if case[1] in NEWEST else 23
        model.ir_version = 11 if case[1] in NEWEST else 10
        run_pipeline(model, "infer-shapes")
        done = compile_model(model, on_arithmetic(arithmetic))
        if done.cpu_nodes:
            assert precision == "float32"
            assert all("has no formula that kernels of any machine compute alike" in r.reason for r in done.reasons)
            continue
        session = provider.open_session(done.model)
        for feed in (builder.feeds, special(builder.feeds, seed)):
            with np.errstate(all="ignore"):
                wanted = reference(model, feed, arithmetic)
            found = session.run(feed)
            for output, value in wanted.items():
                assert found[output].dtype == value.dtype
                np.testing.assert_array_equal(bits(found[output]), bits(value), err_msg=f"seed {seed}, output {output}")
