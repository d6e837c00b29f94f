"""What `analyze` predicts is what onnxruntime's own assignment information says, on every sample model and target."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

import qdqtool
import qdqtool.npu
from qdqtool.runtime import provider
from qdqtool.runtime.plugin import assignment
from qdqtool.runtime.session import open_session
from tests.unit.cli.test_cli_edits import llama_feed

ROOT = Path(__file__).resolve().parents[2]
#: Float samples; random data calibrate them well enough to ask where nodes run.
FLOATS = [
    "digits",
    "detector",
    "mobilenet_block",
    "vit_block",
    "tiny_llama",
    "if_branch",
    "loop_body",
    "local_function",
]
#: All that could be quantized is in a body, which stays float.
BODIES = ["loop_body"]
QUANTIZED = ["quark_layout", "int4_weights"]
TARGETS = ["generic_int8", "vitis_xint8", "qnn_htp", "qnn_htp_v68", "apple_ane", "cloud_ai100", "tpu_like"]
NEWEST = pytest.mark.newest  # onnxruntime tells its assignment from 1.24 on


def _path(name: str) -> Path:
    if name == "digits":
        return Path(str(files("qdqtool") / "_demo" / "digits.onnx"))
    return ROOT / "sample_models" / f"{name}.onnx"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Sample, preset → its QDQ file, made when first asked for."""
    folder = tmp_path_factory.mktemp("quantized")

    class Files(dict[tuple[str, str], Path]):
        def __missing__(self, key: tuple[str, str]) -> Path:
            name, preset = key
            output = folder / f"{name}_{preset}.onnx"
            data = [llama_feed()] if name == "tiny_llama" else "random:2"
            qdqtool.quantize(str(_path(name)), preset=preset, data=data, output=output)
            self[key] = output
            return output

    return Files()


def _agree(path: Path, target: str, *, optimize: bool) -> int:
    """Compare; the number of operators that run on the NPU."""
    report = qdqtool.analyze(path, target=target, simulated=True).to_json()
    predicted = {
        node["name"]: node["partition"] is not None
        for node in report["nodes"]
        if node["op"] not in ("QuantizeLinear", "DequantizeLinear", "Constant")
    }
    qdqtool.npu.register()
    session = provider.open_session(path, {"target": target}, optimize=optimize)
    found = assignment(session)
    assert found is not None
    said = {one.name: one.provider == provider.PROVIDER for one in found if one.name in predicted}
    assert said, "onnxruntime knows none of the names"
    assert {name: predicted[name] for name in said} == said
    if not optimize:
        top = {name for name in predicted if "/" not in name or name in said}
        assert top == set(said), "onnxruntime has other nodes"
    return sum(said.values())


@pytest.mark.product(cover=("name", "preset", "target"))
@NEWEST
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("preset", ["xint8", "a8w8"])
@pytest.mark.parametrize("name", FLOATS)
def test_prediction_is_what_onnxruntime_says(
    name: str, preset: str, target: str, quantized: dict[tuple[str, str], Path]
) -> None:
    _agree(quantized[name, preset] if name not in BODIES else _path(name), target, optimize=False)


@pytest.mark.product(cover=("name", "target"))
@NEWEST
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_samples_that_come_quantized(name: str, target: str) -> None:
    _agree(_path(name), target, optimize=False)


@NEWEST
def test_a_network_that_the_target_takes_is_on_the_npu(quantized: dict[tuple[str, str], Path]) -> None:
    assert _agree(quantized["digits", "xint8"], "vitis_xint8", optimize=False) == 19


@pytest.mark.product(extra=1)
@NEWEST
@pytest.mark.parametrize("name", ["digits", "detector", "mobilenet_block"])
def test_it_holds_after_onnxruntime_has_optimized(name: str, quantized: dict[tuple[str, str], Path]) -> None:
    """For the nodes that are left: some are fused or removed before a provider is asked."""
    path = quantized[name, "a8w8"]
    qdqtool.npu.register()
    session = provider.open_session(path, {"target": "generic_int8"}, optimize=True)
    found = assignment(session)
    assert found is not None
    assert sum(one.provider == provider.PROVIDER for one in found) > len(found) // 2
    assert open_session(path).run  # the file itself loads
