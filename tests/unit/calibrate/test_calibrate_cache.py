"""The folder of ranges: found again without running the model, and an interrupted calibration ends in the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from qdq_passes.errors import ModelError, UsageError

from qdqtool.calibrate import collect as collecting
from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.ranges import Ranges, merge
from qdqtool.io.feeds.feeds import input_specs, open_feeds
from qdqtool.runtime.taps import Taps
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal
from tests.unit.calibrate.test_calibrate_methods import METHODS

Array = npt.NDArray[Any]
CHAIN = "g (float[N,3] x) => (float[N,3] y, float[N,3] b) { [r] a = Relu(x)  [n] b = Neg(a)  [e] y = Exp(b) }"
DATA = [{"x": row} for row in np.random.default_rng(0).standard_normal((9, 1, 3)).astype(np.float32)]
REFERENCE: list[tuple[str, dict[str, Any]]] = [("pow2-minmse", {"reference": True})]


class Runs:
    """Counts the samples that the model was run on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, run = 0, Taps.lend

        def counting(taps: Taps, feed: Any) -> Any:
            self.count += 1
            return run(taps, feed)

        monkeypatch.setattr(Taps, "lend", counting)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(collecting, "SAVE_EVERY", 2)
    return Runs(monkeypatch)


def text(ranges: Ranges) -> str:
    return json.dumps(ranges.to_json(), sort_keys=True)


def test_found_again_without_running(tmp_path: Path, runs: Runs) -> None:
    first = collect(model(CHAIN), DATA, "percentile", cache=tmp_path)
    assert runs.count == 9
    again = collect(model(CHAIN), DATA, "percentile", cache=tmp_path)
    assert (runs.count, text(again)) == (9, text(first))
    assert text(collect(model(CHAIN), DATA, "percentile")) == text(first)
    assert again.tensors["a"].histogram is not None
    (file,) = tmp_path.iterdir()
    assert file.name.endswith(".ranges.json")


def test_whatever_the_ranges_depend_on_is_looked_at(tmp_path: Path, runs: Runs) -> None:
    job: dict[str, Any] = {"model": model(CHAIN), "feeds": DATA, "method": "percentile", "cache": tmp_path}
    collect(**job)
    changed: list[dict[str, Any]] = [
        {"model": model(CHAIN.replace("Exp", "Tanh"))}, {"feeds": DATA[::-1]}, {"feeds": DATA[:-1]}, {"method": "mse"},
        {"options": {"percentile": 99.0}}, {"options": {"percentile": 90.0}}, {"tensors": ["a"]}, {"tensors": ["a", "y"]},
        {"statistics": True}, {"threads": 2},
    ]  # fmt: skip
    for number, change in enumerate(changed, start=2):
        before = runs.count
        collect(**{**job, **change})
        assert runs.count > before, change
        assert len(list(tmp_path.iterdir())) == number
    before = runs.count
    same: list[dict[str, Any]] = [
        {"options": {"percentile": "99"}},
        {"feeds": open_feeds({"x": np.concatenate([f["x"] for f in DATA])}, input_specs(model(CHAIN)))},
    ]
    for change in same:
        collect(**{**job, **change})
    assert runs.count == before


def interrupted(after: int, error: type[BaseException]) -> Any:
    def progress(done: int, total: int | None) -> None:
        if done == after:
            raise error

    return progress


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize(("method", "options"), [*METHODS, *REFERENCE])
def test_going_on_where_it_stopped(
    method: str, options: dict[str, Any], statistics: bool, tmp_path: Path, runs: Runs
) -> None:
    """Stopped in the 6th of 9 samples with two saved at a time: samples 5 to 9 are run, and every bit is as without a stop."""
    settings: dict[str, Any] = {"method": method, "options": options, "statistics": statistics}
    whole = collect(model(CHAIN), DATA, **settings)
    for error in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(error):
            collect(model(CHAIN), DATA, **settings, cache=tmp_path, progress=interrupted(5, error))
    assert [path.name[-9:] for path in tmp_path.iterdir()] == ["part.json"]
    runs.count = 0
    found = collect(model(CHAIN), DATA, **settings, cache=tmp_path)
    assert (runs.count, text(found)) == (5, text(whole))
    assert [path.name[-11:] for path in tmp_path.iterdir()] == ["ranges.json"]


def test_broken_files_are_named(tmp_path: Path) -> None:
    collect(model(CHAIN), DATA, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_text()
    for bad in ("{", good.replace('"key": "', '"key": "0'), good.replace('"low"', '"lo"')):
        file.write_text(bad)
        with pytest.raises(ModelError) as caught:
            collect(model(CHAIN), DATA, cache=tmp_path)
        assert str(caught.value).startswith(f"{file}: ")
        assert str(caught.value).endswith("; delete it")


def test_data_that_can_be_read_once(tmp_path: Path) -> None:
    with refusal(UsageError):
        collect(model(CHAIN), iter(DATA), cache=tmp_path)
    feeds = open_feeds((feed for feed in DATA), input_specs(model(CHAIN)))
    with refusal(UsageError):
        collect(model(CHAIN), feeds, cache=tmp_path)


def test_data_that_change(tmp_path: Path) -> None:
    draws = np.random.default_rng(1)

    def drawn() -> Iterator[dict[str, Array]]:
        yield {"x": draws.standard_normal((1, 3)).astype(np.float32)}

    with refusal(UsageError):
        collect(model(CHAIN), open_feeds(drawn, input_specs(model(CHAIN))), cache=tmp_path)
    assert not list(tmp_path.glob("*.ranges.json"))


def test_an_own_method_that_changed_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs) -> None:
    from qdq_passes.core import registry

    from tests.unit.calibrate.test_ranges import METHOD_FILE

    file = tmp_path / "methods" / "largest_mean.py"
    file.parent.mkdir()
    file.write_text(METHOD_FILE)
    monkeypatch.setattr(registry, "_added", [])
    registry.add_path(tmp_path)
    for source, expected in ((METHOD_FILE, 9), (METHOD_FILE, 9), (METHOD_FILE + "# changed\n", 18)):
        file.write_text(source)
        collect(model(CHAIN), DATA, "largest-mean", cache=tmp_path / "cache")
        assert runs.count == expected


# statistics and watching


def test_statistics_of_methods_that_need_none(tmp_path: Path) -> None:
    plain = collect(model(CHAIN), DATA)
    assert plain.tensors["a"].histogram is None
    found = collect(model(CHAIN), DATA, statistics=True)
    assert (found.tensors, found.sha256) == (plain.tensors, plain.sha256)
    assert found != plain
    for name, seen in found.tensors.items():
        assert seen.histogram is not None
        assert (seen.histogram.low, seen.histogram.high, seen.histogram.total) == (seen.low, seen.high, 27), name
    found.write(tmp_path / "r.json")
    again = Ranges.read(tmp_path / "r.json")
    assert again == found
    histogram = again.bound["a"].histogram
    assert histogram is not None
    assert histogram.state() == found.statistics["a"]


def test_statistics_merge_and_must_be_alike() -> None:
    parts = [collect(model(CHAIN), part, "moving-average", statistics=True) for part in (DATA[:4], DATA[4:])]
    whole = collect(model(CHAIN), DATA, "moving-average", statistics=True)
    assert text(merge(*parts)) == text(whole)
    with refusal(UsageError):
        merge(parts[0], collect(model(CHAIN), DATA[4:], "moving-average"))


def test_a_histogram_that_the_method_keeps_is_not_kept_twice() -> None:
    found = collect(model(CHAIN), DATA, "mse", statistics=True)
    assert found.statistics == {}
    assert found.tensors["a"].histogram is not None
    reference = collect(model(CHAIN), DATA, "pow2-minmse", options={"reference": True}, statistics=True)
    assert set(reference.statistics) == set(reference.tensors)


def test_watching_the_outputs() -> None:
    """The outputs of every sample, and nothing else, whether they are calibrated or not."""
    seen: list[tuple[int, dict[str, Array]]] = []
    found = collect(
        model(CHAIN), DATA, tensors=["a", "b"], watch=lambda number, outputs: seen.append((number, dict(outputs)))
    )
    assert list(found.tensors) == ["a", "b"]
    assert [number for number, _ in seen] == list(range(9))
    for (_, outputs), feed in zip(seen, DATA, strict=True):
        assert list(outputs) == ["y", "b"]
        assert np.array_equal(outputs["b"], -np.maximum(feed["x"], 0))
    assert text(found) == text(collect(model(CHAIN), DATA, tensors=["a", "b"]))


def test_the_memory_of_a_sample_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the next sample runs, nothing of the one before is held."""
    import weakref

    held: list[weakref.ref[Array]] = []
    run = Taps.lend

    def watched(taps: Taps, feed: Any) -> Any:
        assert not any(reference() is not None for reference in held)
        found = {name: np.array(array) for name, array in run(taps, feed).items()}
        held[:] = [weakref.ref(array) for array in found.values()]
        return found

    monkeypatch.setattr(Taps, "lend", watched)
    for method, options in [*METHODS, *REFERENCE]:
        held.clear()
        collect(model(CHAIN), DATA[:3], method, options=options, statistics=True)
        assert len(held) == 4
