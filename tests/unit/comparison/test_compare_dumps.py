"""`compare --dumps`: tensors that a board dumped, under mangled names, in other layouts, as integers; and where the error starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.encoding import Encoding

from qdqtool import api
from qdqtool.comparison.dump_files import mangled, names_of, read_dump
from qdqtool.io.files.dumps import dumps_in
from qdqtool.record.record import NOTHING
from tests.cases.cli_helpers import cli, write
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal, told

Array = npt.NDArray[Any]

FLOAT = """g (float[1,2,2,3] x) => (float[1,2,2,3] y) {
    [c] "/a/Neg_output_0" = Neg(x)  [d] "/a/Abs:0" = Abs("/a/Neg_output_0")  [e] y = Neg("/a/Abs:0") }"""
QUANTIZED = """g (float[1,2,2,3] x) => (float[1,2,2,3] y) <float s = {0.125}, uint8 z = {128}> {
    [c] "/a/Neg_output_0" = Neg(x)
    q = QuantizeLinear("/a/Neg_output_0", s, z)  dq = DequantizeLinear(q, s, z)
    [d] "/a/Abs:0" = Abs(dq)  [e] y = Neg("/a/Abs:0") }"""
X = np.arange(-6, 6, dtype=np.float32).reshape(1, 2, 2, 3) / 4
DATA = [{"x": X}, {"x": X[..., ::-1].copy()}]


def plain(text: str) -> ir.Model:
    """ONNX text has no names such as /a/Abs:0."""
    made = model(text.replace('"/a/Neg_output_0"', "neg").replace('"/a/Abs:0"', "abs"))
    for node in made.graph:
        for value in node.outputs:
            value.name = {"neg": "/a/Neg_output_0", "abs": "/a/Abs:0"}.get(value.name or "", value.name)
    return made


def values(x: Array) -> dict[str, Array]:
    return {"/a/Neg_output_0": -x, "/a/Abs:0": np.abs(x), "y": -np.abs(x)}


def test_a_folder_a_sample_with_mangled_names(tmp_path: Path) -> None:
    for index, feed in enumerate(DATA):
        folder = tmp_path / f"Result_{index}"
        folder.mkdir()
        made = values(feed["x"])
        made["/a/Neg_output_0"].tofile(folder / "_a_neg_output_0.raw")
        made["/a/Abs:0"].astype(np.float16).tofile(folder / "_A_Abs_0_native.bin")
        np.save(folder / "y.npy", made["y"])
    found = api.compare(plain(FLOAT), None, DATA, dumps=tmp_path)
    assert [(t.name, t.agreement.is_exact) for t in found.tensors] == [
        ("/a/Neg_output_0", True),
        ("/a/Abs:0", True),
        ("y", True),
    ]
    assert found.first_diverging is None
    assert found.samples == 2
    assert found.unmatched == ()
    assert found.min_sqnr is None


def test_the_first_that_diverges_is_where_the_error_starts(tmp_path: Path) -> None:
    made = values(X)
    np.savez(
        tmp_path / "all.npz",
        **{"a/Neg_output_0": made["/a/Neg_output_0"], "a_Abs_0": made["/a/Abs:0"] + 1, "y": made["y"] - 1},
    )
    found = api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path)
    assert found.first_diverging is not None
    assert found.first_diverging.name == "/a/Abs:0"
    data = found.to_json()
    assert data["first_diverging"] == "/a/Abs:0"
    assert list(data["outputs"]) == ["y"]
    assert found.record.noise == {"y": pytest.approx(1 / np.mean(np.square(made["y"])))}
    assert {node.name for node in found.record.nodes} == {node.name for node in plain(FLOAT).graph}
    assert api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path, min_sqnr=-90).first_diverging is None


def test_integers_are_dequantized_by_the_pair_of_b(tmp_path: Path) -> None:
    integers = np.clip(np.rint(-X / 0.125) + 128, 0, 255).astype(np.uint8)
    integers.tofile(tmp_path / "a_Neg_output_0.raw")
    found = api.compare(plain(FLOAT), plain(QUANTIZED), DATA[:1], dumps=tmp_path)
    (only,) = found.tensors
    assert only.agreement.is_exact, "multiples of 1/4"
    assert only.with_b is not None
    assert only.with_b.is_exact
    assert only.of_b is not None
    integers[0, 0, 0, 0] += 3
    integers.tofile(tmp_path / "a_Neg_output_0.raw")
    (only,) = api.compare(plain(FLOAT), plain(QUANTIZED), DATA[:1], dumps=tmp_path).tensors
    assert only.with_b is not None
    assert only.with_b.lsb == pytest.approx(3)
    np.save(tmp_path / "a_Neg_output_0.npy", integers)
    (tmp_path / "a_Neg_output_0.raw").unlink()
    with_pairs = api.compare(plain(QUANTIZED), None, DATA[:1], dumps=tmp_path)
    assert with_pairs.tensors[0].agreement.lsb == pytest.approx(3), "its own pair tells"
    assert with_pairs.record == NOTHING, "what differs from a quantized model is no noise of quantization"
    np.save(tmp_path / "y.npy", values(X)["y"])
    without = api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path)
    assert without.unmatched == (
        ("a_Neg_output_0", "holds integers, and no pair says what they stand for; give the quantized model as B"),
    )


@pytest.mark.parametrize("kind", ["raw", "npy"])
def test_channels_last(tmp_path: Path, kind: str) -> None:
    nhwc = np.ascontiguousarray(np.moveaxis(-X, 1, -1))
    nhwc.tofile(tmp_path / "a_Neg_output_0.raw") if kind == "raw" else np.save(tmp_path / "a_Neg_output_0.npy", nhwc)
    (only,) = api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path, dumps_layout="nhwc").tensors
    assert only.agreement.is_exact
    if kind == "npy":  # [1,2,3,2] is no [1,2,2,3]
        assert api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path).tensors[0].agreement.is_exact
    else:
        with refusal(UsageError):
            api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path)


def test_channels_last_of_a_shape_that_tells_nothing(tmp_path: Path) -> None:
    """[1, 3, 3, 3] is as good as itself with its channels last; what agrees only so is not held against the board."""
    cube = model("g (float[1,3,3,3] x) => (float[1,3,3,3] y) { h = Neg(x)  y = Neg(h) }")
    x = np.arange(27, dtype=np.float32).reshape(1, 3, 3, 3)
    np.save(tmp_path / "h.npy", np.moveaxis(-x, 1, -1))
    np.save(tmp_path / "y.npy", x)
    found = api.compare(cube, None, [{"x": x}], dumps=tmp_path)
    assert found.unmatched == (("h", "agrees with its channels last; give --dumps-layout nhwc"),)
    assert found.first_diverging is None


def test_missing_samples_are_told_and_do_not_shift_the_others(tmp_path: Path) -> None:
    feeds = [{"x": X + step} for step in range(4)]
    for index in (0, 2, 3):
        (tmp_path / f"Result_{index}").mkdir()
        np.save(tmp_path / f"Result_{index}" / "y.npy", values(feeds[index]["x"])["y"])
    np.save(tmp_path / "Result_3" / "a_Abs_0.npy", values(feeds[3]["x"])["/a/Abs:0"])
    found = api.compare(plain(FLOAT), None, feeds, dumps=tmp_path)
    assert [(t.name, t.agreement.is_exact) for t in found.tensors] == [("/a/Abs:0", True), ("y", True)]
    assert found.samples == 3
    assert "no dumps of sample 1, counted from 0, which is left out" in found.warnings
    assert "not in each of the 3 samples: a_Abs_0 (1)" in found.warnings


@pytest.mark.parametrize("kind", ["U1", "complex64", "bool"])
def test_what_holds_no_numbers_is_no_tensor(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "y.npy", np.ones(X.shape).astype(kind))
    with refusal(UsageError):
        api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path)


def test_what_fits_nothing_is_listed_with_the_nearest_names(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", values(X)["y"])
    np.save(tmp_path / "a_Nog_output.npy", X)
    (tmp_path / "a_Abs_0.raw").write_bytes(b"123")
    found = api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path)
    reasons = dict(found.unmatched)
    assert "nearest: /a/Neg_output_0" in reasons["a_Nog_output"]
    assert reasons["a_Abs_0"] == "has 3 bytes, the model's tensor [1, 2, 2, 3] of float32 has 48"
    (tmp_path / "y.npy").unlink()
    (tmp_path / "a_Abs_0.raw").unlink()
    with refusal(UsageError):
        api.compare(plain(FLOAT), None, DATA[:1], dumps=tmp_path)


def test_names() -> None:
    names = names_of(["/a/Neg_output_0", "/a/Abs:0", "b.c", "b/c"], [plain(FLOAT)])
    assert mangled("/model.0/Conv:1") == "model_0_conv_1"
    assert names.find("a_neg_output_0_0") == "/a/Neg_output_0"
    assert names.find("_A_Neg_output_0_dequantized") == "/a/Neg_output_0"
    assert names.find("c") == "/a/Neg_output_0", "the node's name"
    assert names.find("b_c") == ["b.c", "b/c"]
    assert names.find("zzz") == []
    quantized = names_of(["/a/Neg_output_0"], [plain(QUANTIZED)])
    assert quantized.find("q") == quantized.find("dq") == "/a/Neg_output_0", "what Q and DQ write"


def test_a_name_that_may_be_two_tensors_is_not_guessed(tmp_path: Path) -> None:
    two = model("g (float[2] x) => (float[2] y) { b = Neg(x)  B = Abs(b)  y = Neg(B) }")
    made = {"x": np.ones(2, np.float32)}
    np.save(tmp_path / "_b_.npy", np.ones(2, np.float32))
    np.save(tmp_path / "y.npy", -np.ones(2, np.float32))
    found = api.compare(two, None, [made], dumps=tmp_path)
    assert found.unmatched == (("_b_", "may be B or b"),)


def test_folders(tmp_path: Path) -> None:
    for name in ("10", "2"):
        (tmp_path / "many" / name).mkdir(parents=True)
        np.save(tmp_path / "many" / name / "y.npy", np.zeros(1))
    assert [sample[0].path.split("/")[-2] for sample in dumps_in(tmp_path / "many")] == ["2", "10"]
    (tmp_path / "deep" / "conv1").mkdir(parents=True)
    np.save(tmp_path / "deep" / "conv1" / "relu.npy", np.zeros(1))
    assert [d.name for sample in dumps_in(tmp_path / "deep") for d in sample] == ["conv1/relu"]
    (tmp_path / "files").mkdir()
    for index in range(3):
        np.savez(tmp_path / "files" / f"sample_{index}.npz", y=np.zeros(1))
    assert [len(sample) for sample in dumps_in(tmp_path / "files")] == [1, 1, 1]
    (tmp_path / "empty").mkdir()
    with refusal(UsageError):
        dumps_in(tmp_path / "empty")
    with refusal(UsageError):
        dumps_in(tmp_path / "nowhere")
    (tmp_path / "empty" / "broken.npy").write_bytes(b"x")
    with pytest.raises(ModelError, match="cannot be read"):
        dumps_in(tmp_path / "empty")[0][0].read()


def test_a_count_of_samples_that_differs_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", values(X)["y"])
    data = {"x": np.concatenate([feed["x"] for feed in DATA])}
    warnings: list[str] = []
    found = api.compare(plain(FLOAT), None, data, dumps=tmp_path, warn=warnings.append)
    assert found.samples == 1
    assert "1 dumped samples and 2 of data" in warnings[0]


def test_types() -> None:
    like = np.zeros((2, 2), np.float32)
    sixteen = Encoding.per_tensor(ir.DataType.UINT16, 0.5, 10)
    stored = np.array([[10, 12], [14, 8]], np.uint16)
    wanted = [[0, 1], [2, -1]]
    np.testing.assert_array_equal(read_dump(stored.tobytes(), like, sixteen), wanted)
    np.testing.assert_array_equal(read_dump(stored.astype(np.int32), like, sixteen), wanted)
    np.testing.assert_array_equal(read_dump(np.array(wanted, np.float16).tobytes(), like, None), wanted)
    np.testing.assert_array_equal(read_dump(np.array(wanted, np.float64).tobytes(), like, None), wanted)
    with refusal(ModelError):
        read_dump(stored.astype(np.int16), like, sixteen)
    with refusal(ModelError):
        read_dump(np.zeros(3, np.float32), like, None)
    indices = np.array([[1, 2], [3, 4]], np.int64)
    np.testing.assert_array_equal(read_dump(indices.tobytes(), indices, None), indices)


def test_the_command(tmp_path: Path) -> None:
    source = write(tmp_path / "a.onnx", "g (float[2] x) => (float[2] y) { [n] h = Neg(x)  [m] y = Neg(h) }")
    np.savez(tmp_path / "data.npz", x=np.array([[1.0, 2.0]], np.float32))
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    np.save(dumps / "h.npy", np.array([-1.0, 2.0], np.float32))
    np.save(dumps / "y.npy", np.array([1.0, 2.0], np.float32))
    asked = ("compare", source, "--dumps", dumps, "--data", tmp_path / "data.npz")
    result = cli(*asked)
    assert "first below 20 dB: h" in result.out
    data = cli(*asked, "--json").json
    assert (data["mode"], data["first_diverging"]) == ("dumps", "h")
    assert cli(*asked, "--min-sqnr", "20", code=1).code == 1
    cli("compare", source, source, "--dumps", dumps, "--data", tmp_path / "data.npz")
    told(cli(*asked, "--mode", "local", code=2).error)
    told(cli("compare", source, "--data", "random:1", code=2).error)
