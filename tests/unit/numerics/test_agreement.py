"""Figures of agreement against their formulas, and the corners: zeros, NaN, Inf, nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from qdq_passes.errors import ModelError
from qdq_passes.numerics.agreement import CEILING_DB, FLOOR_DB, Accumulator, agreement, difference, per_slice, worst

from tests.dial import examples
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]
INF, NAN = float("inf"), float("nan")
float32s = hnp.arrays(np.float32, (2, 3), elements=st.floats(-1e6, 1e6, width=32))


def test_the_formulas() -> None:
    x, y = np.array([3.0, 4.0], np.float32), np.array([3.0, 4.5], np.float32)
    found = agreement(x, y, scale=0.25)
    assert found.sqnr_db == pytest.approx(20.0)  # 10 log10(25 / 0.25)
    assert found.max_abs == 0.5
    assert found.lsb == 2.0
    assert found.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert found.exact == 0.5
    assert found.count == 2


@pytest.mark.parametrize(
    ("x", "y", "sqnr", "max_abs", "cosine", "exact"),
    [
        ([1, 2], [1, 2], None, 0.0, 1.0, 1.0),
        ([0, 0], [0, 0], None, 0.0, 1.0, 1.0),
        ([0, 0], [0, 1], FLOOR_DB, 1.0, 0.0, 0.5),
        ([1, 1], [0, 0], 0.0, 1.0, 0.0, 0.0),
        ([0.0], [-0.0], None, 0.0, 1.0, 1.0),
        ([NAN, 1], [NAN, 1], None, 0.0, 1.0, 1.0),
        ([1, 2], [NAN, 2], FLOOR_DB, None, 1.0, 0.5),
        ([1, 2], [INF, 2], FLOOR_DB, None, 1.0, 0.5),
        ([-INF, 2], [-INF, 2], None, 0.0, 1.0, 1.0),
        ([-INF, 2], [-128, 2], CEILING_DB, 0.0, 1.0, 0.5),
        ([-INF, 2], [-128, 1], 10 * math.log10(4), 1.0, 1.0, 0.0),
        ([], [], None, 0.0, 1.0, 1.0),
    ],
)  # fmt: skip
def test_corners(x: Any, y: Any, sqnr: Any, max_abs: Any, cosine: float, exact: float) -> None:
    found = agreement(np.array(x, np.float32), np.array(y, np.float32))
    assert (found.sqnr_db, found.max_abs, found.exact) == (pytest.approx(sqnr), max_abs, exact)
    assert found.cosine == pytest.approx(cosine)
    json.dumps(found.to_json(), allow_nan=False)


def test_other_types() -> None:
    assert agreement(np.array([1, 2]), np.array([1, 3])).exact == 0.5
    assert agreement(np.array([True]), np.array([False])).max_abs == 1.0
    assert agreement(np.array(["a", "b"], object), np.array(["a", "c"], object)).exact == 0.5
    huge = np.array([1e308, -1e308])
    json.dumps(agreement(huge, -huge).to_json(), allow_nan=False)


def test_different_shapes_are_refused() -> None:
    with refusal(ModelError):
        agreement(np.zeros(2), np.zeros(1))


def test_a_dead_slice_shows_where_the_total_looks_splendid() -> None:
    """Boxes and scores in one tensor: the scores are dead, the total is 60 dB."""
    x = np.stack([np.full(100, 1000.0), np.full(100, 0.5)]).astype(np.float32)
    y = x.copy()
    y[1] = 0
    total = agreement(x, y).sqnr_db
    assert total is not None
    assert total > 60
    slices = per_slice(x, y, 0)
    assert [(s.index, s.sqnr_db) for s in slices] == [(1, pytest.approx(0.0)), (0, None)]
    assert per_slice(x.T, y.T, -1) == slices


def test_slices_need_the_axis_and_its_length_to_stay() -> None:
    accumulator = Accumulator(axis=1)
    with refusal(ModelError):
        accumulator.add(np.zeros(2), np.zeros(2))
    accumulator.add(np.zeros((1, 2)), np.zeros((1, 2)))
    with refusal(ModelError):
        accumulator.add(np.zeros((1, 3)), np.zeros((1, 3)))


def test_lsb_with_a_scale_per_channel() -> None:
    x = np.zeros((1, 2, 2), np.float32)
    y = x + np.array([1.0, 3.0], np.float32).reshape(1, 2, 1)
    for axis in (None, 2):
        accumulator = Accumulator(scale=np.array([1.0, 2.0]).reshape(1, 2, 1), axis=axis)
        accumulator.add(x, y)
        assert accumulator.result().lsb == 1.5


def test_the_worst_of_several() -> None:
    assert worst([None, 20.0, 30.0]) == 20.0
    assert worst([None]) is None
    assert worst([]) is None


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(float32s, float32s), min_size=1, max_size=4))
def test_streaming_equals_at_once(samples: list[tuple[Array, Array]]) -> None:
    stream = Accumulator(axis=1)
    for x, y in samples:
        stream.add(x, y)
    xs, ys = (np.concatenate(side) for side in zip(*samples, strict=True))
    at_once, found = agreement(xs, ys), stream.result()
    assert (found.max_abs, found.exact, found.count) == (at_once.max_abs, at_once.exact, at_once.count)
    assert (found.sqnr_db is None) == (at_once.sqnr_db is None)
    assert found.sqnr_db is None or found.sqnr_db == pytest.approx(at_once.sqnr_db, rel=1e-9, abs=1e-6)
    assert found.cosine == pytest.approx(at_once.cosine, abs=1e-9)
    assert sorted(s.index for s in stream.per_slice()) == [0, 1, 2]


@settings(max_examples=examples(50), deadline=None)
@given(hnp.arrays(np.float32, 6, elements=st.floats(width=32)), hnp.arrays(np.float32, 6, elements=st.floats(width=32)))
def test_figures_are_json_numbers_whatever_the_floats(x: Array, y: Array) -> None:
    found = agreement(x, y, scale=0.5)
    json.dumps(found.to_json(), allow_nan=False)
    assert (found.sqnr_db is None) == found.is_exact


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("scale", [None, 0.25, [[0.5, 1.0, 2.0]]])
def test_tensors_are_compared_in_parts(axis: int | None, scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([[1, NAN, 3], [-INF, 5, 6]], np.float32)
    y = np.array([[1, NAN, 3.5], [-9, 5.25, 6]], np.float32)

    def found() -> Any:
        accumulator = Accumulator(axis=axis, scale=None if scale is None else np.array(scale))
        accumulator.add(x, y)
        return accumulator.result(), accumulator.per_slice()

    whole = found()
    monkeypatch.setattr("qdq_passes.numerics.agreement._AT_ONCE", 2)
    assert found() == whole


def test_what_is_the_same_differs_by_nothing_though_it_is_infinite() -> None:
    """Warnings are errors here: −inf less −inf is none."""
    before = np.array([1.0, -np.inf, np.inf, -np.inf], np.float32)
    after = np.array([3.5, -np.inf, np.inf, 2.0], np.float32)
    found = difference(after, before)
    assert found.dtype == np.float32
    assert found.tolist() == [2.5, 0.0, 0.0, np.inf]
