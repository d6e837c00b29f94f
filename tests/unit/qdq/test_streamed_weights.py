"""Weights quantized while they are written: the bytes are those of a model in memory, and memory does not grow with the model."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.errors import ModelError
from qdq_passes.numerics import mapped
from qdq_passes.qdq.edit.streamed import StreamedTensor

from qdqtool import api
from qdqtool.io.models.save import save
from qdqtool.runtime.session import open_session
from tests.cases.cli_helpers import ROOT, cli, environment
from tests.dial import sized

#: Weights of 256 KiB and more, in columns, rows, with an odd K, an odd number of elements; and one that is too small to stay outside.
SHAPES = {"w": (300, 257), "v": (257, 301), "t": (260, 301), "u": (5, 260)}


def write(path: Path, *, external: bool, dtype: type = np.float32) -> None:
    """x [2, 300] → MatMul w → MatMul v → Gemm t (transposed) → Gemm u (transposed) → y [2, 5]."""
    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 16).astype(dtype), name) for name, shape in SHAPES.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "v"], ["b"], name="second"),
        helper.make_node("Gemm", ["b", "t"], ["c"], name="third", transB=1),
        helper.make_node("Gemm", ["c", "u"], ["y"], name="fourth", transB=1),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [[helper.make_tensor_value_info(name, kind, shape)] for name, shape in (("x", [2, 300]), ("y", [2, 5]))]
    graph = helper.make_graph(nodes, "chain", *ends, weights)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}.data", size_threshold=1024)


def data_of(path: Path) -> dict[str, tuple[int, list[int], bytes]]:
    """Name → type, shape and raw bytes of every initializer, wherever they lie."""
    return {t.name: (t.data_type, list(t.dims), t.raw_data) for t in onnx.load(path).graph.initializer}


def is_outside(path: Path) -> Mapping[str, bool]:
    """Name → whether the initializer lies in a data file."""
    held = onnx.load(path, load_external_data=False).graph.initializer
    return {t.name: t.data_location == TensorProto.EXTERNAL for t in held}


@pytest.mark.product(cover=("name", "dtype"))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", ["w4-g32", "w4-g128", "vulkan-8w", "dynamic", "dynamic-per-token"])
def test_the_bytes_are_those_of_a_model_in_memory(
    name: str, dtype: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when each weight is worked on in many pieces."""
    if dtype == np.float16:
        monkeypatch.setattr(mapped, "LARGE", 1 << 16)
    monkeypatch.setattr(mapped, "PIECE", 5000)
    inside, outside = tmp_path / "inside.onnx", tmp_path / "outside.onnx"
    write(inside, external=False, dtype=dtype)
    write(outside, external=True, dtype=dtype)
    for path in (inside, outside):
        api.quantize(path, tmp_path / "out" / path.name, preset=name)
    assert data_of(tmp_path / "out" / "inside.onnx") == data_of(tmp_path / "out" / "outside.onnx")
    assert not any(is_outside(tmp_path / "out" / "inside.onnx").values())
    assert is_outside(tmp_path / "out" / "outside.onnx")["w_quantized"]
    onnx.checker.check_model(tmp_path / "out" / "outside.onnx", full_check=True)


def test_the_result_runs_before_and_after_it_is_written(tmp_path: Path) -> None:
    """In memory the tensors are computed when a session asks for them: the same numbers as from the file."""
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    write(source, external=True)
    done = api.quantize(source, output, preset="w4-g32", data="random:2")
    streamed = [v.name for v in done.model.graph.initializers.values() if isinstance(v.const_value, StreamedTensor)]
    assert sorted(streamed) == sorted(f"{w}_{part}" for w in "wvt" for part in ("quantized", "scale", "zero_point"))
    feed = {"x": np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)}
    before, after = open_session(done.model).run(feed), open_session(str(output)).run(feed)
    assert np.array_equal(before["y"], after["y"])
    assert done.comparison is not None
    assert done.comparison.min_sqnr is not None
    assert done.comparison.min_sqnr > 10


def test_the_report_stays_small(tmp_path: Path) -> None:
    """Of scales that are not computed yet it says how many they are; noise is not measured, as that would read all data again."""
    source = tmp_path / "m.onnx"
    write(source, external=True)
    said = cli("quantize", source, "--preset", "w4-g32", "-o", tmp_path / "q.onnx", "--json").json
    found = {t["tensor"]: t for t in said["tensors"]}
    assert (found["w"]["scale"], found["w"]["scales"], found["w"]["block_size"]) == (None, 10 * 257, 32)
    assert found["w"]["sqnr_db"] is None
    assert len(found["u"]["scale"]) == 5
    assert found["u"]["sqnr_db"] > 15


def test_what_is_not_finite_stays_float(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    write(source, external=True)
    data = np.fromfile(f"{source}.data", np.float32)
    data[1000] = np.inf
    data.tofile(f"{source}.data")
    done = api.quantize(source, tmp_path / "q.onnx", preset="w4-g32")
    assert len(done.quantization.refused) == 1
    assert done.quantization.refused[0][1] == "holds values that are not finite"


def test_a_data_file_that_goes_away_is_one_clear_error(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    write(source, external=True)
    done = api.quantize(source, preset="w4-g32")
    Path(f"{source}.data").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        save(done.model, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


def test_a_streamed_tensor_packs_odd_counts() -> None:
    """Pieces with odd numbers of elements, two a byte, the first one low."""
    pieces = [np.array([1, -2, 3], np.int8), np.array([-4], np.int8), np.array([5, 6, 7], np.int8)]
    made = StreamedTensor(lambda: iter(pieces), ir.DataType.INT4, (7,), "w")
    assert b"".join(made.chunks()) == bytes([0xE1, 0xC3, 0x65, 0x07])
    assert made.numpy().astype(int).tolist() == [1, -2, 3, -4, 5, 6, 7]
    assert made.tobytes() == b"".join(made.chunks())


@pytest.mark.product(days=3)
@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux for the most memory of a process")
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """With 67 MB of weights and with 268 MB, half of each in the part, the peaks are within 40 MB; in memory they would be the
    weights apart."""
    peaks = []
    for layers in (1, 4):
        path = tmp_path / f"{layers}.onnx"
        subprocess.run(
            [sys.executable, ROOT / "sample_models" / "big_model.py", path, "--gigabytes", str(layers * sized(0.067, 0.034))],
            check=True, capture_output=True,
        )  # fmt: skip
        found = subprocess.run(
            [sys.executable, "-c", _MEASURED, path, tmp_path / "out" / path.name],
            check=True, capture_output=True, text=True, env=environment(),
        )  # fmt: skip
        peaks.append(int(found.stdout) / 1024)
    assert math.isclose(peaks[0], peaks[1], abs_tol=40), peaks


#: Quantizes and prints the most memory the process had, in KiB.
_MEASURED = """
import resource, sys
from qdqtool import api
api.quantize(sys.argv[1], sys.argv[2], preset="w4-g128")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
