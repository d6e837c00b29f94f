"""Recovery in a quantization: plan, data, replay, files, presets, command line; and that it gains what it should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

import qdqtool
from qdqtool.api import calibrate
from qdqtool.calibrate.statistics import Statistics
from qdqtool.io.models.save import serialize
from qdqtool.presets.loading import load_preset
from qdqtool.presets.recovery import Recovery
from qdqtool.quantization import recovery
from qdqtool.runtime.session import RUNTIME, compute, open_session
from qdqtool.verbs.planned import Planned
from tests.cases.cli_helpers import cli
from tests.cases.small_nets import small_net
from tests.golden_messages.refusal import refusal

ROOT = Path(__file__).parents[3]
Array = npt.NDArray[Any]

DIGITS, DATA = str(ROOT / "qdqtool/_demo/digits.onnx"), str(ROOT / "qdqtool/_demo/calib.npz")
VIT = str(ROOT / "sample_models/vit_block.onnx")


def sqnr(model: ir.Model, reference: ir.Model, feed: dict[str, Array]) -> float:
    (y,), (x,) = (list(open_session(m).run(feed).values()) for m in (model, reference))
    return float(10 * np.log10((x**2).sum() / ((y - x) ** 2).sum()))


def test_the_plan_says_all() -> None:
    plan = Planned(preset="xint8", smooth=0.25, equalize="bounds", round_weights=True, correct_bias=True).plan()
    assert str(plan.recover) == "equalize-layers{clip=bounds},smooth-activations{statistics=@statistics alpha=0.25}"
    text = str(plan.materialise)
    assert text.endswith(
        "round-weights{statistics=@statistics centred=true},correct-bias{statistics=@statistics made=int8}"
    )
    assert str(plan.pipeline) == f"{plan.prepare},{plan.recover},{plan.materialise}"
    stored = str(Planned(preset="a8w8", round_weights=True).plan().materialise)
    assert "insert-qdq{weights=dq}" not in stored
    assert stored.endswith("round-weights{statistics=@statistics narrow=false},fold-weight-qdq")
    assert "made=int32" in str(Planned(preset="a8w8", correct_bias=True).plan().materialise)
    assert "insert-qdq{weights=dq}" in str(Planned(preset="a8w8", correct_bias=True).plan().materialise)
    assert not Planned(preset="a8w8").plan().recover.passes


@pytest.mark.product(days=6)
@pytest.mark.parametrize("weights", ["qdq", "dq"])
def test_the_pipeline_replays(tmp_path: Path, weights: str) -> None:
    """Quantize saves ranges and statistics; `opt` with both gives the same file, and so does quantize without data."""
    out, ranges, statistics = tmp_path / "q.onnx", tmp_path / "r.json", tmp_path / "s.npz"
    options = [
        "--preset",
        "a8w8",
        "--weights",
        weights,
        "--smooth",
        "--round-weights",
        "--correct-bias",
        "--no-provenance",
    ]
    given = [DIGITS, "--data", DATA, "--samples", "32", *options]
    saved = ["--save-ranges", str(ranges), "--save-statistics", str(statistics)]
    result = cli("quantize", *given, "-o", str(out), *saved, "--json")
    payload = result.json
    assert payload["statistics_sha256"] == Statistics.read(statistics).sha256
    printed = cli("quantize", DIGITS, *options, "--ranges", str(ranges), "--print-pipeline")
    assert printed.out.strip() == payload["pipeline"]
    text = tmp_path / "pipeline.txt"
    text.write_text(printed.out, encoding="utf-8")
    replayed = tmp_path / "again.onnx"
    bound = ["--ranges", str(ranges), "--statistics", str(statistics)]
    result = cli("opt", DIGITS, "-p", f"@{text}", *bound, "-o", str(replayed), "--no-provenance")
    assert replayed.read_bytes() == out.read_bytes()
    result = cli("quantize", DIGITS, *options, *bound, "-o", str(tmp_path / "third.onnx"))
    assert (tmp_path / "third.onnx").read_bytes() == out.read_bytes()


def test_a_large_moment_lies_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the same, and nothing is left behind."""
    net, data = small_net("gated", tmp_path)
    options: dict[str, Any] = {"preset": "a8w8", "data": data, "samples": 8, "round_weights": True}
    before = qdqtool.quantize(net, **options)
    monkeypatch.setattr(recovery, "IN_MEMORY", 1)
    after = qdqtool.quantize(net, **options)
    assert serialize(before.model).SerializeToString() == serialize(after.model).SerializeToString()
    assert before.quantization.statistics is not None
    assert after.quantization.statistics is not None
    assert before.quantization.statistics.sha256 == after.quantization.statistics.sha256
    assert before.provenance.to_json() == after.provenance.to_json()
    assert "statistics" in json.dumps(before.provenance.to_json())


def test_stages_and_warnings() -> None:
    stages: list[str] = []
    warnings: list[str] = []
    qdqtool.quantize(
        str(ROOT / "sample_models/mobilenet_block.onnx"), preset="a8w8", data="random:2", equalize="keep", smooth=0.5,
        round_weights=True, progress=lambda stage, done, total: stages.append(stage), warn=warnings.append,
    )  # fmt: skip
    assert list(dict.fromkeys(stages)) == ["measuring channels", "collecting moments", "calibrating", "comparing"]
    assert any(
        "equalize-layers changed nothing; between its layers stand Clips: --equalize bounds" in w for w in warnings
    )


def test_statistics_that_nothing_reads(tmp_path: Path) -> None:
    done = qdqtool.quantize(DIGITS, data=DATA, samples=4, correct_bias=True, save_statistics=tmp_path / "s.npz")
    assert done.quantization.statistics is not None
    warnings: list[str] = []
    plain = qdqtool.quantize(DIGITS, data=DATA, samples=4, statistics=tmp_path / "s.npz", warn=warnings.append)
    assert "no pass reads @statistics: --statistics is not used" in warnings
    assert plain.quantization.statistics is None
    assert "statistics_sha256" not in plain.to_json()


def test_what_is_missing() -> None:
    ranges = calibrate(DIGITS, DATA, samples=4)
    with refusal(UsageError):
        qdqtool.quantize(DIGITS, preset="a8w8", ranges=ranges, smooth=0.5)
    with refusal(UsageError):
        qdqtool.quantize(DIGITS, data=DATA, smooth=2.0)

    def once() -> Iterator[dict[str, Array]]:
        yield {"input": np.zeros((1, 1, 8, 8), np.float32)}

    with refusal(UsageError):
        qdqtool.quantize(DIGITS, data=once(), round_weights=True)


PRESET = """
description = "a8w8 with everything"
extends = "a8w8"

[recovery]
equalize = "keep"
smooth = 0.25
round_weights = true
correct_bias = true
"""


def test_presets_and_what_the_user_says(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PRESET, encoding="utf-8")
    preset = load_preset(file)
    assert preset.recovery == Recovery(equalize="keep", smooth=0.25, round_weights=True, correct_bias=True)
    words = dict(preset.explain())["accuracy recovery"]
    assert (
        words
        == "equalized layers, smoothed activations (alpha 0.25), error-compensating rounding of weights, corrected biases"
    )
    plan = Planned(preset=str(file), smooth=False, equalize=False, correct_bias=False).plan()
    assert not plan.recover.passes
    assert "round-weights{statistics=@statistics narrow=false}" in str(plan.materialise)
    assert "correct-bias" not in str(plan.materialise)
    assert Recovery(smooth=0.0).smooths
    assert not Recovery(smooth=False).smooths
    for bad in ("smooth = 2.0", "smooth = true", 'equalize = "maybe"', "round_weights = 1", "other = 1"):
        file.write_text(f'description = "bad"\nextends = "a8w8"\n[recovery]\n{bad}\n', encoding="utf-8")
        with refusal(ModelError):
            load_preset(file)


def test_options_of_the_command(tmp_path: Path) -> None:
    def pipeline(*options: str) -> str:
        result = cli("quantize", DIGITS, "--preset", "a8w8", "--print-pipeline", *options)
        return result.out

    assert "smooth-activations{statistics=@statistics}" in pipeline("--smooth")
    assert "smooth-activations{statistics=@statistics alpha=0.75}" in pipeline("--smooth", "0.75")
    assert "equalize-layers," in pipeline("--equalize")
    assert "equalize-layers{clip=relu}" in pipeline("--equalize", "relu")
    file = tmp_path / "mine.toml"
    file.write_text(PRESET, encoding="utf-8")
    plain = pipeline(
        "--preset", str(file), "--smooth", "no", "--equalize", "no", "--no-round-weights", "--no-correct-bias"
    )
    assert plain == pipeline()
    for bad, words in ((["--smooth", "2"], "not between 0 and 1"), (["--smooth", "x"], "is no number")):
        result = cli("quantize", DIGITS, "--print-pipeline", *bad, code=2)
        assert words in result.err


@pytest.mark.product(days=6)
@pytest.mark.parametrize("preset", ["a8w8", "8a8w"])
def test_smoothing_takes_injected_outliers_back(preset: str) -> None:
    """Channels that inject-outliers made 2^6 larger: at alpha 1/2 smoothing finds the same factors, 2^6 times larger, so the
    quantized model is the one of the model without them. More than 90 % of the lost decibels."""
    plain, hard = qdqtool.load(VIT), qdqtool.load(VIT)
    run_pipeline(hard, "inject-outliers{channels=4 exponent=6}")
    data = np.random.default_rng(0).standard_normal((8, 3, 32, 32)).astype(np.float32)
    feed = {"input": data}
    easy, lost, back = (
        sqnr(qdqtool.quantize(model, preset=preset, data=feed, smooth=smooth).model, plain, feed)
        for model, smooth in ((plain, 0.5), (hard, None), (hard, 0.5))
    )
    assert lost < easy - 6
    assert back >= lost + 0.9 * (easy - lost)


def test_smoothing_keeps_the_float_model_to_the_bit() -> None:
    """vit_block: norms into attention and feed-forward layers, values into the output projection."""
    plain = qdqtool.load(VIT)
    data = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    done = qdqtool.quantize(VIT, preset="a8w8", data={"input": data}, smooth=0.5)
    statistics = done.quantization.statistics
    assert statistics is not None
    Planned(preset="a8w8").plan().prepare.run(plain, inputs={RUNTIME: compute})
    (prepared,) = open_session(plain).run({"input": data}).values()
    report = run_pipeline(plain, "smooth-activations{statistics=@statistics}", inputs={"statistics": statistics.layers})
    edited = {c.where for c in report.changes if c.kind == "edit"}
    assert set(statistics.layers) - edited == {"node_conv2d", "val_45", "val_84"}  # behind the image, and behind Gelu
    assert any(c.is_skip and "gelu" in c.because for c in report.changes)
    (after,) = open_session(plain).run({"input": data}).values()
    assert prepared.tobytes() == after.tobytes()


@pytest.mark.product(days=6)
@pytest.mark.parametrize("preset", ["xint8", "a8w8"])
def test_rounding_and_correcting_gain_on_digits(preset: str) -> None:
    """At least 0.5 dB on images that were not calibrated on; the pairs stay where they were."""
    reference, feed = qdqtool.load(DIGITS), {"input": np.load(ROOT / "qdqtool/_demo/test.npz")["input"][:200]}
    plain = qdqtool.quantize(DIGITS, preset=preset, data=DATA).model
    better = qdqtool.quantize(DIGITS, preset=preset, data=DATA, round_weights=True, correct_bias=True).model
    assert sqnr(better, reference, feed) > sqnr(plain, reference, feed) + 0.5
    kinds = [
        [(p.tensor, p.kind, p.encoding) for p in sorted(qdq_pairs(m), key=lambda p: p.tensor)] for m in (plain, better)
    ]
    assert kinds[0] == kinds[1]
