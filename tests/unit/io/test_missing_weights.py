"""Models whose external data files are not there: `inspect` and `analyze` take them by types and shapes, all else refuses."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from qdq_passes.errors import ModelError
from qdq_passes.graph.uses import constant_array, is_constant
from qdq_passes.npu.units.units import units_of
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import load, missing_weights
from qdqtool.io.models.working import opened
from tests.cases.cli_helpers import cli
from tests.cases.small_models import parsed

NET = """g (float[1,8,6,6] x) => (float[1,288] y) <float[8,8,3,3] w, float[8] b, int64[2] s> {
    c = Conv<pads: ints = [1,1,1,1]>(x, w, b)  r = Relu(c)  y = Reshape(r, s) }"""
QUANTIZED = """g (int8[1,8,6,6] x) => (int8[1,512,6,6] y)
    <float s = {0.5}, int8 z = {0}, int8[512,8,1,1] w, float[512] t, int8[512] u> {
    a = DequantizeLinear(x, s, z)  b = DequantizeLinear<axis: int = 0>(w, t, u)
    f = Conv(a, b)  y = QuantizeLinear(f, s, z) }"""


def stripped(folder: Path, text: str = NET, *, threshold: int = 1024, keep: bool = False) -> Path:
    """The model of ``text``, whose tensors of ``threshold`` bytes and more lie in w.data, which is not there unless kept."""
    weights = {"w": np.ones((8, 8, 3, 3), np.float32), "b": np.ones(8, np.float32), "s": np.array([1, -1])}
    if text is QUANTIZED:
        weights = {"w": np.ones((512, 8, 1, 1), np.int8), "t": np.ones(512, np.float32), "u": np.zeros(512, np.int8)}
    path = folder / "m.onnx"
    onnx.save_model(
        parsed(text, weights), path, save_as_external_data=True, location="w.data", size_threshold=threshold
    )
    if not keep:
        (folder / "w.data").unlink()
    return path


def edit_weight(path: Path, key: str, value: str) -> None:
    proto = onnx.load(path, load_external_data=False)
    (weight,) = (tensor for tensor in proto.graph.initializer if tensor.name == "w")
    next(entry for entry in weight.external_data if entry.key == key).value = value
    onnx.save_model(proto, path)


@pytest.mark.parametrize(("threshold", "count"), [(1024, 1), (0, 3)])
def test_inspect_and_analyze_say_what_is_missing(tmp_path: Path, threshold: int, count: int) -> None:
    path = stripped(tmp_path, threshold=threshold)
    for command in (["inspect"], ["analyze", "--target", "qnn_htp", "--memory"]):
        said = cli(*command, path)
        assert f"'w.data' is missing: only type and shape of {count} tensor" in said.err
        found = cli(*command, path, "--json").json
        assert (found["missing_weights"], found["missing_files"]) == (count, {"w.data": count})
    assert found["partitions"][0]["weight_bytes"] == 4 * (8 * 8 * 9 + 8)
    assert not [finding for finding in found["findings"] if finding["rule"] == "not-simulated"]
    assert cli("inspect", path, "--json").json["parameters"] == 8 * 8 * 9 + 8 + 2
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_what_is_there_is_read_as_before(tmp_path: Path) -> None:
    path = stripped(tmp_path, threshold=0, keep=True)
    for command in (["inspect"], ["analyze", "--target", "qnn_htp"]):
        assert "missing" not in cli(*command, path).err
        assert "missing_weights" not in cli(*command, path, "--json").json
    run_pipeline(found := load(path), "infer-shapes")
    assert found.graph.outputs[0].shape == (1, 288)


def test_everything_else_refuses(tmp_path: Path) -> None:
    path = stripped(tmp_path)
    feed, out = "--data=random:1", tmp_path / "out.onnx"
    for command in (
        ("quantize", path, feed, "-o", out), ("simulate", path, "--target", "qnn_htp", feed), ("check", path),
        ("analyze", path, "--target", "qnn_htp", "--annotate", "-o", out),
        ("analyze", path, "--target", "qnn_htp", "--simulated"),
    ):  # fmt: skip
        assert "external data file 'w.data' is missing" in cli(*command, code=2).error
    assert not out.exists()


def test_values_are_not_made_up(tmp_path: Path) -> None:
    model, sha256 = opened(stripped(tmp_path), weights=False)
    weight = model.graph.initializers["w"]
    assert sha256
    assert missing_weights(model) == {"w.data": 1}
    assert is_constant(weight)
    assert constant_array(weight) is None
    with pytest.raises(ModelError, match="data file"):
        weight.const_value.numpy()  # type: ignore[union-attr]
    run_pipeline(model, "fold-constants{what=all},infer-shapes")
    assert model.graph.outputs[0].shape == (1, 288)


def test_missing_scales_leave_a_unit_quantized(tmp_path: Path) -> None:
    model = load(stripped(tmp_path, QUANTIZED), weights=False)
    (unit,) = units_of(model)
    assert unit.is_quantized
    assert unit.operands[1].kind == "weight"


def test_a_size_that_nobody_has_is_not_asked_for(tmp_path: Path) -> None:
    path = stripped(tmp_path, threshold=0)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        del tensor.external_data[1:]  # location alone: as long as the tensor is
        tensor.dims[:] = {"w": [1 << 45, 8, 1, 1], "b": [1 << 45], "s": [2]}[tensor.name]
    onnx.save_model(proto, path)
    assert cli("inspect", path, "--json").json["parameters"] > 1 << 48
    cli("analyze", "--target", "qnn_htp", path, code=None)


@pytest.mark.parametrize("location", ["../w.data", "/w.data", "link/w.data", "dangling"])
def test_a_file_outside_is_refused_whether_it_is_there_or_not(tmp_path: Path, location: str) -> None:
    path = stripped(tmp_path)
    os.symlink(tmp_path.parent, tmp_path / "link")
    os.symlink(tmp_path / "gone", tmp_path / "dangling")
    edit_weight(path, "location", location)
    for command in (["inspect"], ["analyze", "--target", "qnn_htp"]):
        assert "external data" in cli(*command, path, code=2).error


def test_a_length_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = stripped(tmp_path)
    edit_weight(path, "length", "7")
    assert "length of 7 bytes" in cli("inspect", path, code=2).error
