"""`calibrate`: ranges over every kind of data, images above all, and merged as if all data had come at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cases.cli_helpers import CALIB, DIGITS, accepted, cli, write
from tests.golden_messages.refusal import told

#: One output that shows the pixels: what the ranges of y are, the preprocessing made.
EYES = {
    "nchw": "g (float[N,3,4,6] x) => (float[N,3,4,6] y) { [see] y = Relu(x) }",
    "nhwc": "g (float[N,4,6,3] x) => (float[N,4,6,3] y) { [see] y = Relu(x) }",
    "dynamic": "g (float[N,3,H,W] x) => (float[N,3,H,W] y) { [see] y = Relu(x) }",
    "gray": "g (float[N,1,4,4] x) => (float[N,1,4,4] y) { [see] y = Relu(x) }",
    "channels": "g (float[N,3,4,6] x) => (float[N,1,4,6] r, float[N,2,4,6] gb) <int64[2] s = {1, 2}> { [cut] r, gb = Split<axis = 1>(x, s) }",
}  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two images of 8x12 (h x w): one red 255, green 51, blue 0; one all 102."""
    folder = tmp_path_factory.mktemp("pictures")
    Image.new("RGB", (12, 8), (255, 51, 0)).save(folder / "a.png")
    Image.new("RGB", (12, 8), (102, 102, 102)).save(folder / "b.png")
    return str(folder)


def ranges(path: Path) -> dict[str, list[float]]:
    data: dict[str, Any] = json.loads(path.read_text())["tensors"]
    return {name: [float(np.float32(r["low"])), float(np.float32(r["high"]))] for name, r in data.items()}


def seen(tmp_path: Path, pictures: str, eyes: str, *options: str) -> dict[str, list[float]]:
    model = write(tmp_path / "m.onnx", EYES[eyes])
    cli("calibrate", model, "--data", pictures, *options, "-o", tmp_path / "r.json", "--overwrite")
    return ranges(tmp_path / "r.json")


def near(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-6, abs=1e-6)


def test_images_become_what_the_model_wants(tmp_path: Path, pictures: str) -> None:
    assert seen(tmp_path, pictures, "nchw")["x"] == [0, 1]
    assert seen(tmp_path, pictures, "nhwc")["x"] == [0, 1]
    assert seen(tmp_path, pictures, "nchw", "--image-scale", "1")["x"] == [0, 255]
    assert seen(tmp_path, pictures, "gray", "--samples", "1")["x"][1] < 0.5
    assert seen(tmp_path, pictures, "dynamic", "--image-size", "4x6")["x"] == [0, 1]
    assert seen(tmp_path, pictures, "dynamic", "--image-size", "4")["x"] == [0, 1]


def test_mean_and_std(tmp_path: Path, pictures: str) -> None:
    options = ("--image-mean", "0.5,0.2,0", "--image-std", "0.5,1,2")
    assert seen(tmp_path, pictures, "nchw", *options)["x"] == near([-0.2, 1.0])
    assert seen(tmp_path, pictures, "nchw", "--image-mean", "0.4")["x"] == near([-0.4, 0.6])


def test_order_of_the_channels(tmp_path: Path, pictures: str) -> None:
    found = seen(tmp_path, pictures, "channels", "--samples", "1")
    assert (found["r"], found["gb"]) == ([1, 1], near([0, 0.2]))
    found = seen(tmp_path, pictures, "channels", "--samples", "1", "--image-order", "bgr")
    assert (found["r"], found["gb"]) == ([0, 0], near([0.2, 1]))


def test_fit(tmp_path: Path, pictures: str) -> None:
    """4x4 from 8x12 and (0.37, 0.4): letterbox adds a border of gray 114/255, the others add nothing."""
    found = {
        fit: seen(tmp_path, pictures, "gray", "--image-fit", fit)["x"]
        for fit in ("stretch", "letterbox", "center-crop")
    }
    assert found["stretch"] == found["center-crop"]
    assert found["stretch"][1] == pytest.approx(0.416, abs=0.01)
    assert found["letterbox"] == near([found["stretch"][0], 114 / 255])


def test_layout_where_the_shape_does_not_tell(tmp_path: Path, pictures: str) -> None:
    model = write(tmp_path / "m.onnx", "g (float[N,3,4,3] x) => (float[N,3,4,3] y) { [see] y = Relu(x) }")
    command = ("calibrate", model, "--data", pictures, "-o", tmp_path / "r.json")
    told(cli(*command, code=2).error)
    cli(*command, "--image-layout", "nhwc")
    cli(*command, "--image-layout", "nchw", "--overwrite")


def test_images_without_preprocessing_are_warned_about(tmp_path: Path, pictures: str) -> None:
    model = write(tmp_path / "m.onnx", EYES["nchw"])
    done = cli("calibrate", model, "--data", pictures, "-o", tmp_path / "r.json")
    assert (
        done.err
        == "warning: images: pixels divided by 255, no mean or std; see --image-scale, --image-mean, --image-std\n"
    )
    assert "2 ranges over 2 samples (minmax)" in done.out


def test_wrong_image_options_in_one_line(tmp_path: Path, pictures: str) -> None:
    model = write(tmp_path / "m.onnx", EYES["nchw"])
    command = ("calibrate", model, "--data", pictures, "-o", tmp_path / "r.json")
    told(cli(*command, "--image-mean", "1,2", code=2).error)
    told(cli(*command, "--image-std", "0", code=2).error)
    told(cli(*command, "--image-size", "8x8", code=2).error)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"no picture")
    done = cli("calibrate", model, "--data", tmp_path / "bad", "-o", tmp_path / "r.json", code=2)
    assert "a.png: cannot be read as an image" in done.error


def test_quantize_takes_images_too(tmp_path: Path, pictures: str) -> None:
    model = write(tmp_path / "m.onnx", EYES["nchw"])
    options = ("--data", pictures, "--image-mean", "0.5", "--image-std", "0.25", "--image-order", "bgr")
    done = cli("quantize", model, *options, "--preset", "xint8", "-o", tmp_path / "q.onnx", "--json")
    assert (done.json["samples"], done.err) == (2, "")
    accepted(tmp_path / "q.onnx")
    (x, _) = cli("qdq", "list", tmp_path / "q.onnx", "--json").json["pairs"]
    assert x["position"] == 5  # 2/127 rounded up to a power of two


@pytest.mark.parametrize("method", ["minmax", "pow2-nonoverflow", "pow2-minmse", "moving-average", "percentile"])
def test_merged_ranges_are_those_of_all_data(method: str, tmp_path: Path) -> None:
    with np.load(CALIB) as data:
        images = data["input"][:12]
    for name, part in (("all", images), ("a", images[:5]), ("b", images[5:9]), ("c", images[9:])):
        np.savez(tmp_path / f"{name}.npz", input=part)
        data_file = tmp_path / f"{name}.npz"
        cli("calibrate", DIGITS, "--data", data_file, "--method", method, "-o", tmp_path / f"{name}.json")
    parts = [tmp_path / f"{name}.json" for name in "abc"]
    done = cli("calibrate", "--merge", *parts, "-o", tmp_path / "m" / "merged.json", "--json").json
    assert (tmp_path / "m" / "merged.json").read_bytes() == (tmp_path / "all.json").read_bytes()
    assert (done["samples"], done["method"]) == (12, method)


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    for name, method in (("a", "minmax"), ("b", "pow2-nonoverflow")):
        cli("calibrate", DIGITS, "--data", "random:1", "--method", method, "-o", tmp_path / f"{name}.json")
    merge = ("calibrate", "--merge", "-o", tmp_path / "m.json")
    told(cli(*merge, tmp_path / "a.json", tmp_path / "b.json", code=2).error)
    told(cli(*merge, tmp_path / "a.json", code=2).error)
    told(cli(*merge, tmp_path / "a.json", DIGITS, code=2).error)
    told(cli("calibrate", "-o", tmp_path / "m.json", code=2).error)
    told(cli("calibrate", DIGITS, "-o", tmp_path / "m.json", code=2).error)
    told(cli("calibrate", DIGITS, "x", "--data", "random:1", "-o", tmp_path / "m", code=2).error)


def test_options_of_a_method(tmp_path: Path) -> None:
    command = (
        "calibrate",
        DIGITS,
        "--data",
        "random:2",
        "--method",
        "percentile",
        "-o",
        tmp_path / "r.json",
        "--overwrite",
    )
    cli(*command, "--method-option", "percentile=90", "--method-option", "symmetric=false")
    assert json.loads((tmp_path / "r.json").read_text())["options"] == {"percentile": 90.0, "symmetric": False}
    for option in ("percent=90", "percentile=much", "percentile=101", "percentile"):
        told(cli(*command, "--method-option", option, code=2).error)
    told(cli(*command, "--method-option", "percentile=90", "--method-option", "percentile=91", code=2).error)


def test_the_histogram_of_the_reference_is_not_merged(tmp_path: Path) -> None:
    for name in "ab":
        cli(
            "calibrate",
            DIGITS,
            "--data",
            "random:1",
            "--method",
            "pow2-minmse",
            "--method-option",
            "reference=true",
            "-o",
            tmp_path / name,
        )
    refused = cli("calibrate", "--merge", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "m.json", code=2)
    told(refused.error)


def test_statistics_and_cache(tmp_path: Path) -> None:
    command = ("calibrate", DIGITS, "--data", "random:3", "--cache", tmp_path / "cache", "--json")
    plain = cli(*command, "-o", tmp_path / "plain.json").json
    full = cli(*command, "--statistics", "-o", tmp_path / "full.json").json
    again = cli(*command, "--statistics", "-o", tmp_path / "again.json").json
    assert plain["ranges_sha256"] == full["ranges_sha256"] == again["ranges_sha256"]
    assert (tmp_path / "full.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    tensors = json.loads((tmp_path / "full.json").read_text())["tensors"]
    assert all(t["histogram"]["low"] == t["low"] for t in tensors.values())
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_select(tmp_path: Path) -> None:
    cli("calibrate", DIGITS, "--data", "random:2", "--select", "op:Relu", "-o", tmp_path / "r.json")
    assert len(ranges(tmp_path / "r.json")) == 6
    refused = cli("calibrate", DIGITS, "--data", "random:1", "--select", "tensor:*weight", "-o", tmp_path / "s", code=2)
    told(refused.error)


READER = """
import numpy as np

class Reader:
    '''What onnxruntime calls a CalibrationDataReader: no rewind.'''
    def __init__(self):
        self.left = 3
    def get_next(self):
        self.left -= 1
        return {"input": np.full((1, 1, 8, 8), self.left, np.float32)} if self.left >= 0 else None

def feeds():
    yield {"input": np.zeros((1, 1, 8, 8), np.float32)}

def broken():
    yield {"input": np.zeros((1, 1, 8, 8), np.float32)}
    raise RuntimeError("disk on fire")
"""


def test_data_from_python(tmp_path: Path) -> None:
    file = tmp_path / "reader.py"
    file.write_text(READER)
    for name, samples in (("Reader", 3), ("feeds", 1)):
        done = cli("quantize", DIGITS, "--data", f"{file}:{name}", "-o", tmp_path / f"{name}.onnx", "--json").json
        assert (done["samples"], done["judged_on"]["samples"]) == (samples, samples)
    done = cli("quantize", DIGITS, "--data", f"{file}:broken", "-o", tmp_path / "q.onnx", code=2)
    told(done.error)
    told(cli("quantize", DIGITS, "--data", f"{file}:nope", "-o", tmp_path / "q.onnx", code=2).error)
