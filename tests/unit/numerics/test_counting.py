"""Extremes and counts in C++ are those of numpy, to the last integer: on every instruction set, for values of every kind."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import SetupError
from qdq_passes.numerics import counting
from qdq_passes.numerics.histogram import Histogram

from qdqtool.npu.library import library_path
from tests.dial import examples

Values = npt.NDArray[Any]

#: Instruction sets: none of AVX, AVX2, AVX-512; a processor uses the best that it has up to there.
SETS = (0, 1, 2)
#: Lengths around blocks, lanes and the number of values from which tables are used.
LENGTHS = (1, 2, 31, 32, 33, 4095, 4096, 4097, 8192, 40_000, 70_001)
TINY = {np.float32: (1e-45, 1.1e-38, 1.2e-38), np.float64: (5e-324, 2.2e-308, 2.3e-308)}
LARGE = {np.float32: 3.4e38, np.float64: 1.7e308}


@contextmanager
def only_numpy() -> Iterator[None]:
    """Work as where the library was not built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_library", lambda: None)
        yield


@contextmanager
def up_to(newest: int) -> Iterator[None]:
    """Use no newer instruction set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "newest", newest)
        yield


def state_of(samples: list[Values]) -> list[Any]:
    """Everything that a histogram knows after it counted the samples, and the extremes of each."""
    histogram = Histogram()
    found = [histogram.count(values) for values in samples]
    fields = (histogram.low, histogram.high, histogram.exponent, histogram.first, histogram.zeros)
    return [[tuple(map(repr, each)) for each in found], fields, histogram.counts.tolist()]


def assert_same(samples: list[Values]) -> None:
    """On every instruction set what numpy finds."""
    with only_numpy():
        expected = state_of(samples)
    for newest in SETS:
        with up_to(newest):
            assert state_of(samples) == expected, f"instruction set {newest}"


@st.composite
def sample(draw: st.DrawFn, dtype: type) -> Values:
    """Random values of one magnitude, with some of special kinds among them."""
    length, seed = draw(st.sampled_from(LENGTHS)), draw(st.integers(0, 2**32))
    exponent = draw(st.integers(-130, 100) if dtype is np.float32 else st.integers(-1000, 900))
    rng = np.random.default_rng(seed)
    values = rng.normal(draw(st.sampled_from((0, 3, -3))), 1, length)
    if draw(st.booleans()):
        values = np.clip(values, 0, draw(st.sampled_from((0.5, 6, 1e9))))
    found = np.ldexp(values, exponent).astype(dtype)
    edges = [math.ldexp(k, exponent - 12) for k in (-4096, -1, 1, 2, 4095, 4096)]
    special = (0.0, -0.0, *edges, *TINY[dtype], *(-x for x in TINY[dtype]))
    if draw(st.booleans()):
        special += tuple(np.nextafter(dtype(x), dtype(s * np.inf)) for x in edges for s in (-1, 1))
    if draw(st.integers(0, 9)) == 0:
        special += (LARGE[dtype], -LARGE[dtype])
    count = draw(st.integers(0, 20))
    found[rng.integers(0, length, count)] = rng.choice(np.array(special, dtype), count)
    if draw(st.integers(0, 7)) == 0:
        found[rng.integers(0, length)] = draw(st.sampled_from((math.nan, math.inf, -math.inf)))
    return found


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.sampled_from((np.float32, np.float64)))
def test_counts_in_cpp_are_those_of_numpy(data: st.DataObject, dtype: type) -> None:
    assert_same(data.draw(st.lists(sample(dtype), min_size=1, max_size=4)))


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_types_may_alternate(data: st.DataObject) -> None:
    """Bins that values of one type widened take those of another."""
    kinds = st.sampled_from((np.float32, np.float64))
    assert_same([data.draw(sample(data.draw(kinds))) for _ in range(3)])


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from((np.float32, np.float64)))
def test_extremes_in_cpp_are_those_of_numpy(data: st.DataObject, dtype: type) -> None:
    values = data.draw(sample(dtype))
    with only_numpy():
        expected = repr(counting.extremes(values))
    for newest in SETS:
        with up_to(newest):
            assert repr(counting.extremes(values)) == expected


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 6.0, 3.4e38])
@pytest.mark.parametrize("length", LENGTHS)
def test_one_value_repeated(value: float, length: int) -> None:
    assert_same([np.full(length, value, np.float32)])


def test_a_value_that_vanishes_beside_large_ones_lies_below_zero() -> None:
    """−2^-149 · 2^-e is 0 in float32 where e is large, but lies in bin −1."""
    values = np.array([-1e-45, 1e-45, -0.0, 1e30] * 20_000, np.float32)
    assert_same([values])
    histogram = Histogram()
    histogram.count(values)
    assert histogram.counts[-1 - histogram.first] == 20_000
    assert (histogram.zeros, histogram.counts[-histogram.first]) == (20_000, 40_000)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 5, 50_000, 99_999])
def test_nothing_is_counted_where_a_value_is_not_finite(bad: float, at: int) -> None:
    values = np.linspace(-1, 1, 100_000, dtype=np.float32)
    histogram = Histogram()
    histogram.count(values)
    before = (histogram.low, histogram.high, histogram.zeros, histogram.counts.tolist())
    values[at] = bad
    assert not counting.is_finite(*histogram.count(values))
    assert (histogram.low, histogram.high, histogram.zeros, histogram.counts.tolist()) == before
    values[at] = 0
    histogram.count(values)
    assert histogram.total == 200_000


def test_values_outside_the_given_range_are_refused() -> None:
    with pytest.raises(ValueError, match="not all values lie within"):
        Histogram().add(np.array([1.0, 2.0], np.float32), 1.0, 1.5)


@pytest.mark.parametrize("dtype", [np.float16, np.dtype(">f4"), np.float32, np.float64])
def test_other_types_and_layouts(dtype: npt.DTypeLike) -> None:
    """What the library does not take (half floats, other byte orders, gaps between values) numpy counts."""
    plain = np.random.default_rng(1).normal(0, 2, (300, 70)).astype(np.float16).astype(dtype)
    expected = state_of([np.ascontiguousarray(plain[::2].astype(np.float32))])
    assert state_of([plain[::2]]) == expected
    assert state_of([np.asfortranarray(plain)[::2]]) == expected
    assert state_of([np.repeat(plain[::2].reshape(-1), 2)[::2]]) == expected


def test_no_value_is_no_count() -> None:
    histogram = Histogram()
    histogram.add(np.zeros((0, 3), np.float32), math.inf, -math.inf)
    assert histogram.state() == {}


def test_a_library_that_cannot_be_loaded_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / counting.NAME).write_bytes(b"no library")
    monkeypatch.setattr(counting, "__path__", [str(tmp_path)])
    with pytest.raises(SetupError, match="cannot be loaded"):
        counting._library.__wrapped__()


def test_a_library_of_other_sources_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose functions take something else would count wrongly, or write where it must not."""
    built = counting.INTERFACE
    monkeypatch.setattr(counting, "INTERFACE", built + 1)
    with pytest.raises(SetupError, match=f"its interface is {built}, not {built + 1}; install qdqtool again"):
        counting._library.__wrapped__()


def test_a_library_older_than_interfaces_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other library stands for it: none has the function."""
    shutil.copy(library_path(), tmp_path / counting.NAME)
    monkeypatch.setattr(counting, "__path__", [str(tmp_path)])
    with pytest.raises(SetupError, match=r"its interface is None, not \d+; install qdqtool again"):
        counting._library.__wrapped__()


def test_the_library_was_built() -> None:
    """Else the tests above compare numpy with itself."""
    assert counting.takes(np.zeros(1, np.float32), 0)
