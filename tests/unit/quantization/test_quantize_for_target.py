"""Quantizing for a target: what its file says of the pipeline, and that nothing would be compiled to float there."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from qdq_passes.errors import ModelError
from qdq_passes.qdq.look.pairs import qdq_pairs

import qdqtool
from qdqtool.presets.loading import load_preset
from qdqtool.quantization.plan import plan
from qdqtool.runtime.session import open_session
from qdqtool.targets.loading import load_target
from tests.golden_messages.refusal import refusal

DEMO = files("qdqtool") / "_demo"
TARGET = """description = "a chip"
version = "1"
[quantize]
{}
[[op]]
types = ["Relu"]
[[op.scheme]]
activations = ["int8"]
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("digits") / "htp.onnx"
    qdqtool.quantize(str(DEMO / "digits.onnx"), data=str(DEMO / "calib.npz"), target="qnn_htp", output=output)
    return output


def test_every_compute_node_stays_on_integers(digits: Path) -> None:
    report = qdqtool.analyze(digits, target="qnn_htp").to_json()
    computing = [n for n in report["nodes"] if n["op"] not in ("QuantizeLinear", "DequantizeLinear")]
    assert len(computing) == 18
    assert {n["verdict"] for n in computing} == {"npu-int"}


def test_biases_are_int32_at_the_product_of_the_scales(digits: Path) -> None:
    pairs = [pair for pair in qdq_pairs(qdqtool.load(digits)) if pair.kind == "bias"]
    assert len(pairs) == 7
    assert {pair.encoding.dtype.name for pair in pairs if pair.encoding is not None} == {"INT32"}


def test_the_accuracy_stays(digits: Path) -> None:
    """Within half a point of float on the held-out images: 3 of 597."""
    with np.load(str(DEMO / "test.npz")) as data:
        images, labels = data["input"], data["labels"]
    found = {}
    for name, path in (("float", DEMO / "digits.onnx"), ("int8", digits)):
        (logits,) = open_session(str(path)).run({"input": images}).values()
        found[name] = float((logits.argmax(axis=1) == labels).mean())
    assert found["int8"] > found["float"] - 0.005, found


def test_a_target_leaves_out_and_adds_passes(tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    file.write_text(TARGET.format('without = ["scale-average-pool"]\nbefore = "clip-to-relu"\nafter = "convert-bias"'))
    preset = load_preset("xint8")
    plain, legal = plan(preset), plan(preset, legalization=load_target(file).legalization)
    last = ["finite-masks", "remove-nan-guards"]
    assert [p.name() for p in plain.prepare.passes][-2:] == last
    names = [p.name() for p in plain.prepare.passes][:-2]
    assert [p.name() for p in legal.prepare.passes] == [*names, "clip-to-relu", *last]
    names = [p.name() for p in plain.materialise.passes if p.name() != "scale-average-pool"]
    assert [p.name() for p in legal.materialise.passes] == [*names, "convert-bias"]


@pytest.mark.parametrize(
    "line",
    [
        'without = ["scale-average-pol"]',
        'after = "convert-bias{to=int3}"',
        'sharing = ["9"]',
    ],
)
def test_a_broken_table_is_told(tmp_path: Path, line: str) -> None:
    file = tmp_path / "chip.toml"
    file.write_text(TARGET.format(line))
    with refusal(ModelError):
        load_target(file)
