"""`quantize --goal`: it reaches what it can, says why the rest lost, replays, and goes on where it was killed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqtool
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.sources import Part
from qdqtool.io.feeds.spec import input_specs
from qdqtool.search.goal.chance import standing
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.standing import Standing
from qdqtool.search.metrics import open_metric
from qdqtool.search.variants import outputs_of
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli

TEST = Path(DIGITS).with_name("test.npz")
SEEK = ("quantize", DIGITS, "--target", "vitis_xint8", "--data", CALIB, "--samples", "32", "--eval-data", TEST,
        "--eval-samples", "16")  # fmt: skip
GOAL = "sqnr >= 31.8"


@pytest.fixture(scope="module")
def sought(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("goal")
    done = cli(*SEEK, "--goal", GOAL, "-o", folder / "a.onnx", "--save-recipe", folder / "a.toml", "--resume",
               folder / "tried", "--json")  # fmt: skip
    return folder, done.json["sought"]


def test_a_goal_that_the_plain_quantization_misses_is_met(sought: tuple[Path, dict[str, Any]]) -> None:
    """With everything in 8 bit and on the NPU, within the budget; the cheapest that meets it is taken."""
    folder, found = sought
    plain, chosen = found["trials"][0], found["trials"][found["chosen"]]
    assert found["met"]
    assert plain["lost"].endswith("short of the bound")
    assert chosen["low"] >= 0
    assert chosen["cost"]["cost"] == 0
    assert found["units"] <= 15
    assert all(bool(trial["lost"]) == (trial is not chosen) for trial in found["trials"])
    placed = cli("analyze", folder / "a.onnx", "--target", "vitis_xint8", "--json").json
    assert placed["verdict"] == "npu-int"


def test_the_recipe_gives_the_same_bytes(sought: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = sought
    cli("quantize", DIGITS, "--recipe", folder / "a.toml", "--data", CALIB, "-o", folder / "again.onnx", "-q")
    assert (folder / "again.onnx").read_bytes() == (folder / "a.onnx").read_bytes()


@pytest.mark.product(days=9)
@pytest.mark.parametrize("kept", [1, 3, -1])
def test_killed_and_resumed_it_finds_the_same(sought: tuple[Path, dict[str, Any]], tmp_path: Path, kept: int) -> None:
    """After the head and so many trials; and in the middle of a line."""
    folder, found = sought
    lines = (folder / "tried").read_bytes().splitlines(keepends=True)
    (tmp_path / "tried").write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    done = cli(*SEEK, "--goal", GOAL, "-o", tmp_path / "a.onnx", "--resume", tmp_path / "tried", "--json")
    assert done.json["sought"] == found
    assert (tmp_path / "a.onnx").read_bytes() == (folder / "a.onnx").read_bytes()
    assert (tmp_path / "tried").read_bytes() == (folder / "tried").read_bytes()


@pytest.mark.product(days=3)
def test_a_goal_out_of_reach_writes_nothing_and_says_so(tmp_path: Path) -> None:
    done = cli(*SEEK, "--goal", "sqnr >= 200", "--budget", "3", "-o", tmp_path / "a.onnx", "--save-recipe", tmp_path / "a.toml",
               "--report", tmp_path / "a.json", code=1)  # fmt: skip
    assert "failed: nothing that was tried reaches it" in done.out
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx.partial"]
    again = cli(*SEEK, "--goal", "sqnr >= 200", "--budget", "3", "-o", tmp_path / "a.onnx", code=2)
    assert "interrupted or missed its goal; --resume" in again.error


@pytest.mark.product(days=3)
def test_what_is_met_at_once_is_tried_no_further(tmp_path: Path) -> None:
    done = cli("quantize", DIGITS, "--target", "generic_int8", "--data", CALIB, "--eval-data", TEST, "--goal",
               "top1 >= 99% of float", "-o", tmp_path / "a.onnx", "--json")  # fmt: skip
    found = done.json["sought"]
    assert (found["met"], len(found["trials"]), found["samples"]) == (True, 1, 597)
    again = (128 + 2 * 16) / (128 + 597)  # calibrated and compared on 16 samples once more, to be written
    assert found["units"] == pytest.approx(1 + again, rel=1e-12)
    assert found["bound"] == pytest.approx(0.99 * found["float"], rel=1e-12)  # one product of floats
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]


def test_other_samples_to_calibrate_on_begin_anew(sought: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """As many, from another file of the same name."""
    folder, _ = sought
    arrays = dict(np.load(CALIB))
    np.savez(tmp_path / "calib.npz", **{name: array[::-1] for name, array in arrays.items()})
    said = [tmp_path / "calib.npz" if word == CALIB else word for word in SEEK]
    done = cli(*said, "--goal", GOAL, "-o", tmp_path / "a.onnx", "--resume", folder / "tried", code=2)
    assert "calibration" in done.error


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--recipe", "r.toml"], "--goal searches, --recipe says what was found"),
        (["--ranges", "r.json"], "--goal calibrates in several ways"),
        (["--metric", "cosine"], "is of sqnr, and --metric says cosine"),
    ],
)
def test_what_does_not_go_with_a_goal(tmp_path: Path, more: list[str], error: str) -> None:
    assert error in cli(*SEEK, "--goal", GOAL, "-o", tmp_path / "a.onnx", *more, code=2).error


def test_options_of_a_goal_need_one(tmp_path: Path) -> None:
    for option in (["--metric", "sqnr"], ["--save-recipe", "r.toml"], ["--budget", "3"], ["--resume", "f"]):
        done = cli("quantize", DIGITS, "--data", CALIB, *option, "-o", tmp_path / "a.onnx", code=2)
        assert f"{option[0]} goes with --goal" in done.error
    assert list(tmp_path.iterdir()) == []


#: Recoveries of every kind; what is learned does what rounding and corrected biases do.
RECOVERIES = [
    dict(zip(("equalize", "smooth", "round_weights", "correct_bias", "learn_rounding"), said, strict=True))
    for said in itertools.product((None, "bounds"), (None, 0.5), (None, True), (None, True), (None, True))
    if not (said[4] and (said[2] or said[3]))
]
PRESETS = {"vitis_xint8": ["xint8"], "qnn_htp": ["qnn-a8w8", "a8w8", "u8w8"], "generic_int8": ["a8w8", "u8w8", "8a8w"]}


@pytest.mark.extra
@pytest.mark.parametrize(
    ("model", "target"),
    [
        (SAMPLES / "vit_block.onnx", "vitis_xint8"),
        (SAMPLES / "mobilenet_block.onnx", "generic_int8"),
        (DIGITS, "qnn_htp"),
    ],
)
def test_it_meets_what_any_preset_with_any_recovery_meets(tmp_path: Path, model: str | Path, target: str) -> None:
    """All presets of 8-bit activations that suit the target × all recoveries, each by itself. The goal lies nine tenths of the way
    from the plain quantization to what the best of them surely reaches; the search meets it within 15 quantizations' work."""
    path, data = str(model), CALIB if model == DIGITS else "random:32"
    common: dict[str, Any] = {"target": target, "data": data, "samples": 32, "hold_out": 2}
    any_goal, metric, floating = Goal.of("sqnr >= 0"), open_metric("sqnr"), qdqtool.load(path)
    feeds = list(open_feeds(data, input_specs(floating), samples=32, part=Part(2, is_held_out=True)))
    references = outputs_of(floating, feeds)

    def reached(**said: Any) -> Standing:
        made = qdqtool.quantize(path, None, **common, **said).model
        return standing(any_goal, metric, outputs_of(made, feeds), feeds, references)

    plain = reached().figure
    best = max(reached(preset=preset, **said).low for preset in PRESETS[target] for said in RECOVERIES)
    assert plain is not None
    assert best > plain, "nothing helps: the goal would be met at once"
    goal = f"sqnr >= {plain + 0.9 * (best - plain):.4f}"
    done = cli("quantize", path, "--target", target, "--data", data, "--samples", "32", "--hold-out", "2", "--goal", goal, "-o",
               tmp_path / "a.onnx", "--json").json["sought"]  # fmt: skip
    assert done["met"]
    assert done["units"] <= 15
    analysis = cli("analyze", tmp_path / "a.onnx", "--target", target, "--json").json
    assert not [node["name"] for node in analysis["nodes"] if node["verdict"] == "refused"]
