"""What weights were learned on says nothing of samples that come afterwards: a stated part of the data is held out to judge on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.sources import Part
from qdqtool.io.feeds.spec import input_specs
from qdqtool.verbs.work import searching
from qdqtool.verbs.work.bounds.holding_out import apart
from tests.cases.cli_helpers import CALIB, DIGITS, cli
from tests.golden_messages.refusal import refusal

TARGET = ["--target", "qnn_htp"]
LEARNED = ["--round-weights"]


@pytest.mark.parametrize(
    ("count", "samples", "every", "held"),
    [(9, None, 4, [3, 7]), (9, 7, 4, [3]), (4, None, 2, [1, 3]), (3, None, 3, [2]), (None, 8, 4, [3, 7])],
)
def test_parts_make_the_whole(count: int | None, samples: int | None, every: int, held: list[int]) -> None:
    """Of the first samples; of a generator nobody knows how many there are."""
    model = qdqtool.load(DIGITS)
    feeds: list[dict[str, Any]] = [{"input": np.full((1, 1, 8, 8), n, np.float32)} for n in range(count or 9)]
    data: Any = feeds if count is not None else lambda: iter(feeds)
    parts = [
        open_feeds(data, input_specs(model), samples=samples, part=Part(every, is_held_out=is_held))
        for is_held in (True, False)
    ]
    numbers = [[int(feed["input"].flat[0]) for feed in part] for part in parts]
    assert numbers[0] == held
    assert sorted([*numbers[0], *numbers[1]]) == list(range(samples or len(feeds)))
    assert [part.count for part in parts] in ([len(each) for each in numbers], [None, None])


def test_workers_open_the_same_part() -> None:
    feeds = open_feeds(CALIB, input_specs(qdqtool.load(DIGITS)), samples=9, part=Part(4, is_held_out=False))
    assert feeds.opening is not None
    assert feeds.opening.open(feeds.inputs).sha256() == feeds.sha256()


def test_a_goal_is_judged_on_what_is_held_out(tmp_path: Path) -> None:
    """And the recipe says so: what is replayed is calibrated on the others."""
    asked = ["quantize", DIGITS, *TARGET, "--data", CALIB, "--samples", "32"]
    done = cli(
        *asked,
        "--goal",
        "sqnr >= 20",
        "--budget",
        "1",
        "-o",
        tmp_path / "a.onnx",
        "--save-recipe",
        tmp_path / "r.toml",
        "--json",
    ).json
    found = done["sought"]
    assert (done["samples"], found["samples"], found["figure_samples"], found["hold_out"]) == (16, 8, 8, 2)
    low, high = found["interval"]
    assert low < found["figure"] < high
    assert found["figure"] == cli(*compared(tmp_path / "a.onnx"), "--json").json["min_sqnr"]
    cli("quantize", DIGITS, "--recipe", tmp_path / "r.toml", "--data", CALIB, "-o", tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    told = cli(*asked, "--goal", "sqnr >= 20", "--budget", "1", "-o", tmp_path / "c.onnx").out
    assert "chosen by 8 samples, judged on 8 others held out of --data" in told


def compared(model: Path) -> list[Any]:
    """Compare ``model`` on every fourth of the first 32 samples: of those held out, which are every second, the second half."""
    return ["compare", DIGITS, model, "--data", CALIB, "--samples", "32", "--held-out", "4"]


@pytest.mark.parametrize(
    ("samples", "count", "kept"),
    [(16, 4, [1, 3, 5, 7]), (9, 16, [1, 3, 5, 7]), (7, 16, []), (13, None, [2, 5, 8, 11]), (11, None, [])],
)
def test_the_figure_is_of_samples_that_nothing_is_chosen_by(samples: int, count: int | None, kept: list[int]) -> None:
    chosen_by, others = apart(range(samples), count)
    assert others == kept
    assert not {*chosen_by} & {*others}
    assert len(chosen_by) == min(samples - len(kept), count or samples)


def test_a_goal_needs_samples_that_it_did_not_learn_from(tmp_path: Path) -> None:
    asked = ["quantize", DIGITS, *TARGET, "--goal", "sqnr >= 20", "-o", tmp_path / "a.onnx", "--data"]
    assert "takes 2 samples, --data has 1" in cli(*asked, "random:1", code=2).error
    assert "--eval-data are --data" in cli(*asked, CALIB, "--eval-data", CALIB, code=2).error
    assert "leaves no samples to judge on" in cli(*asked, CALIB, "--hold-out", "0", code=2).error


def test_deploy_judges_learned_weights_on_what_is_held_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli(
        "deploy",
        DIGITS,
        *TARGET,
        "--data",
        CALIB,
        "--samples",
        "16",
        *LEARNED,
        "-o",
        out,
        "--simulate-samples",
        "0",
        "--require-npu",
        "0",
    )
    report = json.loads((out / "report.json").read_text())
    assert report["judged_on"] == {"samples": 8, "which": "held out of --data"}
    assert report["quantization"]["samples"] == 8
    line = next(line for line in (out / "commands.sh").read_text().splitlines() if line.startswith("qdqtool compare "))
    words = line.removesuffix(" || failed=1").replace('"$out"', str(out)).split()
    again = cli(*words[1:], "--json").json
    assert again["outputs"] == report["comparison"]["outputs"]


def test_deploy_judges_plain_ranges_on_the_samples_that_they_are_of(tmp_path: Path) -> None:
    done = qdqtool.deploy(DIGITS, tmp_path / "out", target="qnn_htp", data=CALIB, samples=8, simulate_samples=0)
    assert done.judged_on == "calibrated on"
    assert "8 samples calibrated on" in done.text


def test_quantize_judges_learned_weights_on_what_is_held_out() -> None:
    """Where it judges: without a bound it says what its figure is of."""
    said: dict[str, Any] = {"data": CALIB, "samples": 16, "round_weights": True, "preset": "a8w8"}
    judged, plain = qdqtool.quantize(DIGITS, **said, target="qnn_htp"), qdqtool.quantize(DIGITS, **said)
    assert judged.comparison is not None
    assert (judged.quantization.ranges.samples, judged.comparison.samples, judged.judged_on) == (
        8,
        8,
        "held out of --data",
    )
    assert (plain.quantization.ranges.samples, plain.judged_on) == (16, "that weights were learned on")
    everything = qdqtool.quantize(DIGITS, **said, target="qnn_htp", hold_out=0, min_sqnr=99)
    assert everything.missed == ()
    assert "the outputs are not judged: weights were learned on all samples (--hold-out 0)" in everything.warnings


def test_a_part_of_one_is_none() -> None:
    with refusal(UsageError):
        qdqtool.quantize(DIGITS, data=CALIB, hold_out=1)


@pytest.mark.parametrize("said", [{}, {"round_weights": True}])
def test_sensitivity_judges_learned_weights_on_what_is_held_out(
    said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And plain ranges on the samples that they are of."""
    seen: dict[str, list[Any]] = {}

    def set_up(*_: object, judged: list[Any], feeds: Any, **__: object) -> None:
        seen.update(judged=judged, calibrated=list(feeds))
        raise UsageError("enough")

    monkeypatch.setattr(searching, "set_up", set_up)
    data = [{"input": np.full((1, 1, 8, 8), n, np.float32)} for n in range(8)]
    with pytest.raises(UsageError, match="enough"):
        qdqtool.sensitivity(DIGITS, iter(data), preset="a8w8", **said)
    numbers = {name: {int(feed["input"].flat[0]) for feed in feeds} for name, feeds in seen.items()}
    assert numbers["judged"] == ({1, 3, 5, 7} if said else set(range(8)))
    assert numbers["calibrated"] == ({0, 2, 4, 6} if said else set(range(8)))


def test_a_mixed_recipe_learns_of_the_samples_that_the_search_did(tmp_path: Path) -> None:
    said: dict[str, Any] = {"preset": "a8w8", "round_weights": True, "samples": 8, "min_sqnr": 5}
    done = qdqtool.mixed_precision(DIGITS, CALIB, **said, recipe=tmp_path / "r.toml")
    assert done.recipe.options["hold_out"] == 2
    assert done.quantized is not None
    assert done.quantized.quantization.ranges.samples == 4
