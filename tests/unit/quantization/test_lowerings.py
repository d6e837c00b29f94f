"""What a target lacks is written with what it has."""

from __future__ import annotations

import pytest
from qdq_passes.core.registry import PASSES

from qdqtool.presets.loading import load_preset
from qdqtool.quantization.lowerings import LOWERINGS, lowerings
from qdqtool.quantization.plan import plan
from qdqtool.targets.loading import load_target


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [(("HardSigmoid", "Mul"), ["split-hard-swish"]), (("HardSwish", "HardSigmoid", "Mul"), []), (("Mul",), [])],
    ids=["lacks it", "has it", "lacks a piece"],
)
def test_a_pass_is_wanted(taken: tuple[str, ...], wanted: list[str]) -> None:
    assert [p.name() for p in lowerings(taken).passes] == wanted


@pytest.mark.parametrize(("target", "is_split"), [("vitis_xint8", True), ("generic_int8", False)])
def test_the_tables_of_a_target_choose(target: str, is_split: bool) -> None:
    made = plan(load_preset("xint8"), ops=load_target(target).quantized_ops())
    assert ("split-hard-swish" in [p.name() for p in made.prepare.passes]) == is_split


def test_all_of_them_are_passes() -> None:
    assert {row.pass_name for row in LOWERINGS} <= set(PASSES.names())
