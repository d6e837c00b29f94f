"""Calibration: ranges, their file, and that merging parts equals calibrating on everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from qdq_passes.core import registry
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.encoding import encoding_of_range
from qdq_passes.numerics.quantize import quantize

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.methods.pow2_nonoverflow import Pow2Nonoverflow
from qdqtool.calibrate.observer import METHODS, Range, extremes
from qdqtool.calibrate.ranges import Ranges, merge
from qdqtool.io.feeds.feeds import input_specs, open_feeds
from qdqtool.io.feeds.hashes import EMPTY, add_feed, join
from tests.cases.small_models import model
from tests.dial import examples
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]
CHAIN = "g (float[N,3] x) => (float[N,3] y) { a = Relu(x)  i = Shape(a)  b = Neg(a)  y = Add(a, b) }"
ALL_METHODS = [
    "distribution", "entropy", "minmax", "moving-average", "mse", "percentile", "pow2-minmse", "pow2-nonoverflow",
]  # fmt: skip
samples = st.lists(
    hnp.arrays(np.float32, (1, 3), elements=st.floats(-(2.0**100), 2.0**100, width=32)), min_size=2, max_size=5
)


def feeds_of(*rows: list[float]) -> list[dict[str, Array]]:
    return [{"x": np.array([row], np.float32)} for row in rows]


def test_minmax_by_hand() -> None:
    seen: list[tuple[int, int | None]] = []
    found = collect(
        model(CHAIN), feeds_of([1, -2, 0], [0, 5, -1]), progress=lambda done, total: seen.append((done, total))
    )
    assert found.tensors == {"x": Range(-2, 5), "a": Range(0, 5), "b": Range(-5, 0), "y": Range(0, 0)}
    assert (found.method, found.samples, found.states, found.unobserved) == ("minmax", 2, {}, ())
    assert seen == [(1, None), (2, None)]


def test_only_the_wanted_tensors() -> None:
    assert list(collect(model(CHAIN), feeds_of([1, 2, 3]), tensors=["b"]).tensors) == ["b"]
    with refusal(UsageError):
        collect(model(CHAIN), feeds_of([1, 2, 3]), tensors=["i"])


def test_pow2_nonoverflow_by_hand() -> None:
    found = collect(model(CHAIN), feeds_of([1, -200, 0]), "pow2-nonoverflow", tensors=["x", "a", "y"])
    assert found.tensors == {"x": Range(-254, 254), "a": Range(-127 / 64, 127 / 64), "y": Range(0, 0)}
    assert found.states["x"] == {"observed": [-200, 1]}


def test_nan_and_inf_inside_name_the_tensor() -> None:
    divide = model("g (float[3] x) => (float[3] y) { l = Log(x)  y = Neg(l) }")
    with refusal(ModelError):
        collect(divide, [{"x": np.ones(3, np.float32)}, {"x": np.array([-1, 0, 1], np.float32)}])


def test_a_tensor_that_never_holds_a_value_has_no_range() -> None:
    found = collect(model("g (float[N] x) => (float[N] y) { y = Neg(x) }"), [{"x": np.zeros(0, np.float32)}])
    assert found.tensors == {}
    assert found.unobserved == ("x", "y")
    later = collect(model("g (float[N] x) => (float[N] y) { y = Neg(x) }"), [{"x": np.ones(1, np.float32)}])
    assert merge(found, later).tensors == later.tensors == merge(later, found).tensors


def test_no_sample_is_an_error() -> None:
    with refusal(UsageError):
        collect(model(CHAIN), [])


def test_feeds_give_the_count_and_the_fingerprint() -> None:
    chain, seen = model(CHAIN), []
    feeds = open_feeds({"x": np.arange(12, dtype=np.float32).reshape(4, 3)}, input_specs(chain), samples=3)
    found = collect(chain, feeds, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert found.data_sha256 == feeds.sha256()


def test_unknown_method_and_option() -> None:
    with refusal(UsageError):
        collect(model(CHAIN), [], "minmx")
    with refusal(UsageError):
        collect(model(CHAIN), [], "minmax", options={"bins": 3})
    assert set(ALL_METHODS) == set(METHODS.names())


METHOD_FILE = '''
"""A method of one's own."""
from qdqtool.calibrate.methods import Observer, Range


class LargestMean(Observer):
    def __init__(self, *, factor: float = 4.0) -> None:
        self.factor, self.mean = factor, 0.0

    def observe(self, values, low, high):
        self.mean = max(self.mean, float(abs(values).mean()))

    def merge(self, other):
        self.mean = max(self.mean, other.mean)

    def range(self):
        return Range(-self.factor * self.mean, self.factor * self.mean)

    def state(self):
        return {"mean": self.mean}

    def restore(self, state, found):
        self.mean = state["mean"]
'''


def test_a_new_method_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "largest_mean.py").write_text(METHOD_FILE)
    monkeypatch.setattr(registry, "_added", [])
    registry.add_path(tmp_path)
    assert "largest-mean" in METHODS.names()
    parts = [
        collect(model(CHAIN), feeds_of(row), "largest-mean", options={"factor": 2}) for row in ([1, 2, 3], [4, 5, 6])
    ]
    assert merge(*parts).tensors["x"] == Range(-10, 10)


@pytest.mark.parametrize("method", ALL_METHODS)
@settings(max_examples=6, deadline=None)
@given(samples, st.booleans(), st.integers(1, 4))
def test_merging_parts_is_calibrating_on_everything(method: str, xs: list[Array], statistics: bool, cut: int) -> None:
    """For all data and cuts: the merged file equals the file of the whole, byte for byte."""
    feeds = [{"x": x} for x in xs]
    cut = min(cut, len(feeds) - 1)
    whole = collect(CHAIN_MODEL, feeds, method, statistics=statistics)
    parts = [collect(CHAIN_MODEL, part, method, statistics=statistics) for part in (feeds[:cut], feeds[cut:])]
    assert merge(*parts) == whole
    again = merge(*(Ranges.from_json(json.loads(json.dumps(p.to_json()))) for p in parts))
    assert (again.sha256, json.dumps(again.to_json())) == (whole.sha256, json.dumps(whole.to_json()))


@settings(max_examples=examples(300), deadline=None)
@given(hnp.arrays(np.float32, 4, elements=st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_pow2_nonoverflow_never_clips(x: Array) -> None:
    """For all finite float32: every value is inside the range, and int8 with its power-of-two scale never saturates."""
    observer = Pow2Nonoverflow()
    observer.observe(x, *extremes(x))
    found = observer.range()
    magnitude = float(np.abs(x.astype(np.float64)).max())
    assert -found.low == found.high >= magnitude or found == Range(*extremes(x))
    if magnitude <= float(np.finfo(np.float32).max) / 2:
        encoding = encoding_of_range(found.low, found.high, dtype=ir.DataType.INT8, symmetric=True, power_of_two=True)
        assert encoding.position is not None
        assert magnitude <= 127 * encoding.scale[0]
        assert np.abs(quantize(x, encoding).astype(int)).max() <= 127
        if found != Range(*extremes(x)):
            assert found.high == 127 * encoding.scale[0]


def test_pow2_nonoverflow_wastes_no_bit() -> None:
    for value, high in ((127.0, 127.0), (np.nextafter(127.0, 128.0), 254.0), (63.5, 63.5), (1.0, 127 / 64)):
        observer = Pow2Nonoverflow()
        observer.observe(np.array([value]), value, value)
        assert observer.range() == Range(-high, high)


CHAIN_MODEL = model(CHAIN)


def test_merge_refuses_what_does_not_belong_together() -> None:
    a = collect(model(CHAIN), feeds_of([1, 2, 3]))
    for b in (
        collect(model(CHAIN), feeds_of([1, 2, 3]), "pow2-nonoverflow"),
        collect(model(CHAIN), feeds_of([1, 2, 3]), tensors=["a"]),
    ):
        with refusal(UsageError):
            merge(a, b)
    with pytest.raises(UsageError, match="different models"):
        merge(a, collect(model(CHAIN.replace("Neg", "Abs")), feeds_of([1, 2, 3])))


def test_the_file_is_exact(tmp_path: Path) -> None:
    found = collect(model(CHAIN), feeds_of([0.1, 1 / 3, 1e-30]), "pow2-nonoverflow")
    found.write(tmp_path / "R.json")
    assert Ranges.read(tmp_path / "R.json") == found
    assert json.loads((tmp_path / "R.json").read_text())["format"] == "qdqtool.ranges"
    first = (tmp_path / "R.json").read_bytes()
    Ranges.read(tmp_path / "R.json").write(tmp_path / "R.json")
    assert (tmp_path / "R.json").read_bytes() == first


@pytest.mark.parametrize(
    "text",
    ['{"format": "qdqtool.ranges", "version": 1}', '{"format": "other", "version": 1}',
     '{"format": "qdqtool.ranges", "version": 2}',
     '{"format": "qdqtool.ranges", "version": 1, "method": "minmax", "samples": 1, "tensors": {"x": {"low": 2, "high": 1}}}',
     '{"format": "qdqtool.ranges", "version": 1, "method": "minmax", "samples": 1, "tensors": {}, "data_sha256": "zz"}',
     '{"format": "qdqtool.ranges", "version": 1, "method": "minmax", "samples": "1", "tensors": {}}'],
    ids=["no tensors", "another kind", "newer version", "low above high", "no hash", "no number"],
)  # fmt: skip
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "R.json").write_text(text)
    with refusal(ModelError):
        Ranges.read(tmp_path / "R.json")


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "R.json").write_text("{")
    with pytest.raises(ModelError, match=r"R\.json: "):
        Ranges.read(tmp_path / "R.json")


def test_the_fingerprint_of_data_joins_and_keeps_order() -> None:
    a, b, c = feeds_of([1, 2, 3], [4, 5, 6], [7, 8, 9])
    whole = add_feed(add_feed(add_feed(EMPTY, a), b), c)
    assert join(add_feed(EMPTY, a), add_feed(add_feed(EMPTY, b), c), 2) == whole
    assert join(add_feed(EMPTY, b), add_feed(add_feed(EMPTY, a), c), 2) != whole
    assert join(EMPTY, whole, 3) == whole == join(whole, EMPTY, 0)


def test_the_fingerprint_of_a_model_is_of_what_it_computes() -> None:
    text = "g (float[N,3] x) => (float[N,3] y) <float[3] w = {1,2,3}> { [n] y = Mul(x, w) }"
    digest = model_sha256(model(text))
    assert digest == model_sha256(model(text.replace("[n]", "[other]")))
    for changed in (text.replace("{1,2,3}", "{1,2,4}"), text.replace("Mul", "Add"), text.replace("N,3", "M,3")):
        assert digest != model_sha256(model(changed))


@pytest.mark.parametrize(
    ("method", "options"), [("percentile", {"percentile": 80}), ("mse", {"symmetric": False}), ("entropy", {})]
)
def test_of_a_histogram_come_the_ranges_of_every_method_that_keeps_one(method: str, options: dict[str, Any]) -> None:
    """What calibrating with that method gives, to the last byte."""
    rows = np.random.default_rng(0).normal(0, 1, (9, 3)).astype(np.float32).tolist()
    found = collect(model(CHAIN), feeds_of(*rows), "percentile").by(method, options)
    assert found is not None
    assert found.to_json() == collect(model(CHAIN), feeds_of(*rows), method, options=options).to_json()
    assert found.bound["x"].histogram is not None


@pytest.mark.parametrize(("before", "after"), [("minmax", "mse"), ("mse", "minmax"), ("mse", "pow2-minmse")])
def test_a_method_that_keeps_something_else_is_calibrated_anew(before: str, after: str) -> None:
    assert collect(model(CHAIN), feeds_of([1, 2, 3]), before).by(after, {}) is None


def test_an_option_that_the_other_method_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="it takes no option 'percentile'"):
        collect(model(CHAIN), feeds_of([1, 2, 3]), "percentile").by("mse", {"percentile": 99})
