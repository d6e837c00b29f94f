"""`quantize --goal` is compared with what other quantizers make of the same nets (`tests/bench/rivals`)."""

from __future__ import annotations

import json

import pytest

from tests.bench.rivals.goals import RIVALS, TARGETS, best, rows
from tests.bench.rivals.judge import NETS


def test_of_each_net_and_family_there_is_a_best_setting() -> None:
    recorded = json.loads(RIVALS.read_text(encoding="utf-8"))["nets"]
    assert set(recorded) == set(NETS)
    for net in recorded.values():
        for family in set(TARGETS.values()):
            figures = net[family]
            assert figures[best(figures)]["figure"] == max(one["figure"] for one in figures.values())


def test_of_equal_figures_the_one_with_more_in_8_bit_counts() -> None:
    figures = {"a": {"figure": 0.9, "outside_8_bit": 0.2}, "b": {"figure": 0.9, "outside_8_bit": 0.1}}
    assert best({**figures, "c": {"figure": 0.8, "outside_8_bit": 0.0}}) == "b"


@pytest.mark.extra
@pytest.mark.parametrize("net", ["digits", "mobilenet", "detector", "vit"])
def test_xint8_reaches_what_quark_does(net: str) -> None:
    """At no more multiply-accumulates outside of 8 bit, within fifteen quantizations."""
    (row,) = rows([net, "vitis_xint8"])
    assert row.holds, row.text
