"""A C++ program without Python runs what Python compiled, through the onnxruntime of the wheel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from qdqtool.runtime.provider import PROVIDER
from tests.architecture.places import ROOT
from tests.npu.small_programs import SOURCES, context_model, feed, library, mixed


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("missing: a C++ compiler")
    built = tmp_path_factory.mktemp("host") / "host"
    source = ROOT / "tests" / "npu" / "cpp" / "host.cc"
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(SOURCES)]
    subprocess.run(
        [compiler, *options, str(source), "-o", str(built), "-ldl", "-pthread"], check=True, capture_output=True
    )
    return built


def run_host(host: Path, model: onnx.ModelProto, folder: Path) -> subprocess.CompletedProcess[str]:
    onnx.save(model, folder / "m.onnx")
    (folder / "x.bin").write_bytes(feed().tobytes())
    (runtime,) = Path(ort.__file__).parent.glob("capi/libonnxruntime.so.*")
    words = [host, runtime, library(), folder / "m.onnx", folder / "x.bin", folder / "y.bin", "2", "3", "4"]
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)


def test_bit_equal(host: Path, tmp_path: Path) -> None:
    done = run_host(host, context_model(), tmp_path)
    assert done.stdout.strip() == f"onnxruntime {ort.__version__}, 1 device, same every time"
    assert done.returncode == 0
    assert (tmp_path / "y.bin").read_bytes() == b"".join(y.tobytes() for y in mixed(feed()))


def test_a_model_of_another_format_is_refused_by_its_mark(host: Path, tmp_path: Path) -> None:
    """What onnxruntime's own check of compiled models says, before anything of them is read."""
    model = context_model()
    onnx.helper.set_model_props(model, {f"ep_compatibility_info.{PROVIDER}": "qdqtool-npu;format=2"})
    done = run_host(host, model, tmp_path)
    assert done.returncode == 1
    assert f"Compiled model is not supported by execution provider: {PROVIDER}" in done.stdout


def test_without_a_compiler_it_says_so(host: Path, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> m (uint8[2, 3, 4] x) => (uint8[2, 3, 4] y) { y = Identity (x) }'
    done = run_host(host, onnx.parser.parse_model(text), tmp_path)
    assert done.returncode == 1
    assert "no compiler is attached" in done.stdout
