"""Every operator that is computed on integers, in every width, on the provider against the reference: every integer equal."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path

import pytest
from qdq_passes.npu.formulas.functions import FUNCTIONS
from qdq_passes.npu.program.operators import FAMILIES
from qdq_passes.numerics.arithmetic import WideFunctions

import qdqtool.npu
from qdqtool.targets.loading import load_target
from tests.dial import some
from tests.npu.equality.equality import ARITHMETICS, assert_provider_equals, on_arithmetic
from tests.npu.equality.units_widths import CASES, QUARTERS, model

#: What takes everything: parameters of normalizations are weights of 16 bits and more.
ANY, ANY_NORM = (load_target(Path(__file__).with_name("targets") / f"any_{what}.toml") for what in ("width", "norm"))
#: Arithmetic → how it computes functions of 16 bits.
FUNCTIONS_OF: dict[str, WideFunctions] = {"half_up": "float32", "float": "float16", "shift": "interpolated"}
#: Of pairs of opset 23 and later older onnxruntimes have no kernels.
NAMES = [pytest.param(name, marks=pytest.mark.newest) if case.opset > 22 else name for name, case in CASES.items()]


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


def test_every_operator_is_there() -> None:
    """What has a lowering, and every function of one value."""
    made = {name.split(" ")[0] for name in CASES}
    known = {op for types in FAMILIES.values() for op in types} | {*FUNCTIONS, "Pow", "QuantizeLinear"}
    assert made == known


@pytest.mark.product(cover=("case", "name"))
@pytest.mark.parametrize("name", FUNCTIONS_OF)
@pytest.mark.parametrize("case", NAMES)
def test_every_width_is_computed_as_the_reference_says(case: str, name: str) -> None:
    arithmetic, only_pow2 = ARITHMETICS[name]
    arithmetic = dataclasses.replace(arithmetic, wide_functions=FUNCTIONS_OF[name], segments=64)
    made, feed = model(CASES[case], zlib.crc32(case.encode()), pow2=only_pow2, quarters=some(QUARTERS))
    target = ANY_NORM if case in FAMILIES["norms"] else ANY
    assert_provider_equals((made, feed), on_arithmetic(target, arithmetic))
