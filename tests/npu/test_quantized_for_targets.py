"""Sample models, float and quantized for each target that comes along: the NPU computes what the reference does, where predicted."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline

import qdqtool
from tests.cases.cli_helpers import CALIB, DIGITS, cli

ROOT = Path(__file__).resolve().parents[2]
#: With a feed that random numbers can be; of control flow, local functions and attention each one.
NAMES = ["digits", "detector", "if_branch", "local_function", "mobilenet_block", "vit_block"]
#: qnn_htp_v68 is qnn_htp without 16-bit weights.
TARGETS = ["apple_ane", "cloud_ai100", "generic_int8", "qnn_htp", "tpu_like", "vitis_xint8"]
#: Nothing of a model runs where one node is refused (whole-model).
NOTHING = {("if_branch", "apple_ane"), ("if_branch", "cloud_ai100")}
#: What compute in floating point what is not quantized.
FLOATS = ["apple_ane", "cloud_ai100", "qnn_htp", "tpu_like"]


def _bound(model: ir.Model) -> ir.Model:
    """The batch bound to 1, as targets want it."""
    names = {dim.value for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)}
    for name in sorted(name for name in names if name is not None):
        run_pipeline(model, f'fix-shapes{{dims=["{name}=1"]}}')
    return model


def _path(name: str) -> str:
    if name == "digits":
        return str(files("qdqtool") / "_demo" / "digits.onnx")
    return str(ROOT / "sample_models" / f"{name}.onnx")


def _simulated(model: ir.Model, target: str) -> int:
    """Compare with the reference at tolerance zero, and placements; how many operators run on the NPU."""
    found = qdqtool.simulate(model, "random:1", target=target).to_json()
    assert found["device"] == "the simulated NPU"
    assert found["compared_with"] == "the numpy reference"
    for name, figures in found["outputs"].items():
        assert (figures["max_lsb"], figures["exact"], figures["max_abs"]) == (0, 1.0, 0.0), name
    assert not [note for note in found["notes"] if "otherwise than predicted" in note]
    for node in found["placement"]["nodes"]:
        assert node["partition"] is not None or node["reason"], node["name"]
    return int(found["placement"]["npu_nodes"])


@pytest.mark.product(cover=("name", "target"))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_quantized_for_a_target(name: str, target: str, tmp_path: Path) -> None:
    output = tmp_path / "quantized.onnx"
    qdqtool.quantize(_path(name), data="random:2", target=target, output=output)
    on_npu = _simulated(_bound(qdqtool.load(output)), target)
    assert (on_npu == 0) == ((name, target) in NOTHING)


@pytest.mark.product(cover=("name", "target"))
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_float(name: str, target: str) -> None:
    assert (_simulated(_bound(qdqtool.load(_path(name))), target) == 0) == ((name, target) in NOTHING)


def test_unsigned_integers_about_128_are_the_signed_ones_about_0(tmp_path: Path) -> None:
    """Files of Quark hold them; the DPU computes the same numbers."""
    signed, unsigned = tmp_path / "signed.onnx", tmp_path / "unsigned.onnx"
    cli("quantize", DIGITS, "--target", "vitis_xint8", "--data", CALIB, "--samples", "8", "-o", signed)
    cli("qdq", "convert", signed, "--dtype", "uint8", "--symmetric", "-o", unsigned)
    pairs = cli("qdq", "list", unsigned, "--json").json["pairs"]
    assert {pair["zero_point"] for pair in pairs if pair["dtype"] == "uint8"} == {128}
    found = []
    for file in (signed, unsigned):
        told = cli(
            "simulate",
            file,
            "--target",
            "vitis_xint8",
            "--data",
            CALIB,
            "--samples",
            "4",
            "-o",
            f"{file}.npz",
            "--json",
        ).json
        assert (told["outputs"]["logits"]["exact"], told["placement"]["cpu_nodes"]) == (1.0, 0)
        found.append(dict(np.load(f"{file}.npz")))
    assert found[0].keys() == found[1].keys()
    assert all(found[1][key].tobytes() == array.tobytes() for key, array in found[0].items())
