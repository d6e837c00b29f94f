"""RotaryEmbedding, linear Resize and Einsum on the provider and as custom operators, against the reference, in every width and
arithmetic: every integer equal."""

from __future__ import annotations

from pathlib import Path

import pytest

import qdqtool.npu
from qdqtool.targets.loading import load_target
from tests.npu.equality.equality import ARITHMETICS, Unit, Units, generator
from tests.npu.equality.units_movement import WIDTHS, WideBuilder
from tests.npu.equality.units_rotary import CASES

WIDE = load_target(Path(__file__).with_name("targets") / "any_width.toml")
SEEDS = 6
#: RotaryEmbedding of onnx is of opset 23, of whose pairs older onnxruntimes have no kernels.
NAMES = [pytest.param(case, marks=pytest.mark.newest) if case == "rotary" else case for case in CASES]


def unit(seed: int, pow2: bool, case: str, width: str) -> Unit:
    """A model and a feed, the same ones every time."""
    builder = WideBuilder(generator(seed, case, width), pow2=pow2, types=WIDTHS[width])
    return CASES[case](builder), builder.feeds


UNITS = Units(WIDE, unit, SEEDS)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


@pytest.mark.parametrize("name", ARITHMETICS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", NAMES)
def test_a_unit_is_computed_as_the_reference_says(case: str, width: str, name: str) -> None:
    UNITS.on_provider(name, case, width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", NAMES)
def test_the_custom_operators_compute_the_same(case: str, width: str) -> None:
    UNITS.as_operators(case, width)
