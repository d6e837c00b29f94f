"""Options of onnxruntime's quantizer give here what they give there: the same scales, zero points and integers, bit for bit.

The reference is `quantize_static` on the same samples, which calibrates without optimization; ours runs without fusing, with float
scales and stored weights, and here calibrates likewise: sums that associate differently move a range in its last bits. Differences
on purpose are in `test_differences_on_purpose`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import qdqtool
from qdqtool.calibrate.methods.minmax import Minmax
from qdqtool.runtime.session import open_session
from tests.cases.small_models import parsed

GRAPH = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1,3,8,8] x) => (float[1,5] y) {
  [conv] a = Conv<pads: ints = [1,1,1,1]>(x, w, b)
  [sigmoid] c = Sigmoid(a)
  [convt] d = ConvTranspose(c, wt, bt)
  [pool] e = GlobalAveragePool(d)
  [flatten] f = Flatten(e)
  [gemm] h = Gemm<transB: int = 1>(f, wg, bg)
  [first] k = MatMul(h, wm)
  [squash] g = Sigmoid(h)
  [second] l = MatMul(g, wm)
  [add] y = Add(k, l)
}
"""
pytestmark = pytest.mark.newest
WEIGHTS = {"w": (4, 3, 3, 3), "b": (4,), "wt": (4, 6, 2, 2), "bt": (6,), "wg": (7, 6), "bg": (7,), "wm": (7, 5)}
SAMPLES = [np.random.default_rng(seed).normal(size=(1, 3, 8, 8)).astype(np.float32) for seed in range(4)]
#: What the reference does without being asked.
AS_THERE: dict[str, Any] = {
    "UsePowerOf2Scale": False,
    "AddQDQPairToWeight": False,
    "ActivationSymmetric": False,
    "Int32Bias": True,
    "ForceQuantizeNoInputCheck": False,
}


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """The samples, one by one."""

    def __init__(self) -> None:
        self.feeds: Iterator[dict[str, npt.NDArray[np.float32]]] = iter([{"x": sample} for sample in SAMPLES])

    def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
        return next(self.feeds, None)


@pytest.fixture(autouse=True)
def as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of the model as it is written, to the last bit."""
    monkeypatch.setattr(Minmax, "as_written", True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights whose channels differ by a factor of 18, so that a scale per channel is another one."""
    random, weights = np.random.default_rng(0), {}
    for name, shape in WEIGHTS.items():
        spread = np.arange(1, shape[0] + 1).reshape(-1, *[1] * (len(shape) - 1)) ** 1.5
        weights[name] = (random.normal(size=shape) * spread).astype(np.float32)
    folder = tmp_path_factory.mktemp("source")
    onnx.save(parsed(GRAPH, weights), folder / "m.onnx")
    np.savez(folder / "x.npz", x=np.concatenate(SAMPLES))
    return folder


Array = npt.NDArray[Any]


def encodings(path: Path) -> dict[str, tuple[Array, Array, Array | None, int | None, str]]:
    """Float name → scale, zero point, stored integers, axis, type, of every DequantizeLinear."""
    graph = onnx.load(path).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            name = node.input[1].removesuffix("_scale").removesuffix("_quantized")
            scale, zero_point = constants[node.input[1]], constants[node.input[2]]
            axis = next((a.i for a in node.attribute if a.name == "axis"), None)
            found[name] = (
                scale.squeeze(),
                zero_point.squeeze(),
                constants.get(node.input[0]),
                axis,
                str(zero_point.dtype),
            )
    return found


def both(source: Path, tmp_path: Path, options: dict[str, Any], extra: dict[str, Any]) -> tuple[Path, Path]:
    """The model quantized there and here."""
    logging.disable(logging.WARNING)
    try:
        quantize_static(
            str(source / "m.onnx"), str(tmp_path / "there.onnx"), Reader(), quant_format=QuantFormat.QDQ,
            extra_options=dict(extra), **options,
        )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    said = {**AS_THERE, **options, **extra}
    if "QuantizeBias" in extra:
        del said["Int32Bias"]
    qdqtool.quantize(
        source / "m.onnx", tmp_path / "here.onnx", data=str(source / "x.npz"), fuse_layers=False,
        extra_options=said,
    )  # fmt: skip
    onnx.checker.check_model(str(tmp_path / "here.onnx"), full_check=True)
    return tmp_path / "there.onnx", tmp_path / "here.onnx"


OVERRIDES = {
    "x": [{"quant_type": QuantType.QUInt16, "symmetric": False}],
    "d": [{"rmin": np.float32(-3.0)}],
    "h": [{"quant_type": QuantType.QInt8, "scale": np.array(0.25, np.float32), "zero_point": np.array(-3, np.int8)}],
    "w": [{"quant_type": QuantType.QInt16, "axis": 0, "symmetric": True}],
    "wm": [{"axis": 1, "rmin": np.float32(-i), "rmax": np.float32(20)} for i in range(5)],
    "bg": [{"quant_type": QuantType.QInt16}],
}
U8S8 = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
S8S8 = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
#: Name → (arguments, extra options).
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "u8s8": (U8S8, {}),
    "s8s8 asymmetric": (S8S8, {}),
    "s8s8 symmetric": (S8S8, {"ActivationSymmetric": True}),
    "u8u8": ({"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}, {}),
    "s8s8 asymmetric weights": (S8S8, {"WeightSymmetric": False}),
    "u16s8": ({"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8}, {}),
    "s16s16 symmetric": ({"activation_type": QuantType.QInt16, "weight_type": QuantType.QInt16}, {"ActivationSymmetric": True}),
    "per channel": ({**U8S8, "per_channel": True}, {}),
    "per channel, one bit less": ({**U8S8, "per_channel": True, "reduce_range": True}, {}),
    "one bit less": ({**S8S8, "reduce_range": True}, {"ActivationSymmetric": True}),
    "one bit less, unsigned": (
        {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8, "reduce_range": True}, {},
    ),
    "axis by operator": ({**U8S8, "per_channel": True}, {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 0}}),
    "widest range": (U8S8, {"MinimumRealRange": 5.0}),
    "overrides": ({**U8S8, "per_channel": False}, {"TensorQuantOverrides": OVERRIDES}),
    "pair on weights": ({**S8S8, "per_channel": True}, {"AddQDQPairToWeight": True, "ActivationSymmetric": True}),
}  # fmt: skip


@pytest.mark.parametrize(("options", "extra"), CASES.values(), ids=CASES)
def test_scales_zero_points_and_integers(
    source: Path, tmp_path: Path, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    there, here = map(encodings, both(source, tmp_path, options, extra))
    assert set(here) == set(there)
    assert "f" not in here, "the Flatten refers to the scale of its input"
    for name, (scale, zero_point, integers, axis, dtype) in there.items():
        ours = here[name]
        assert ours[4] == dtype, name
        np.testing.assert_array_equal(ours[0], scale, err_msg=name)
        np.testing.assert_array_equal(ours[1], zero_point, err_msg=name)
        if integers is not None:
            assert (ours[3] if scale.ndim else None) == (axis if scale.ndim else None), name
            np.testing.assert_array_equal(ours[2], integers, err_msg=name)


@pytest.mark.parametrize("case", ["s8s8 symmetric", "pair on weights", "s16s16 symmetric"])
def test_outputs(source: Path, tmp_path: Path, case: str) -> None:
    """Where the reference keeps every node, the two models compute the same bits."""
    there, here = both(source, tmp_path, *CASES[case])
    for sample in SAMPLES:
        np.testing.assert_array_equal(
            open_session(str(here)).run({"x": sample})["y"], open_session(str(there)).run({"x": sample})["y"]
        )


def pairs_behind(path: Path) -> dict[str, int]:
    """Scale → number of QuantizeLinear with it."""
    scales = [node.input[1] for node in onnx.load(path).graph.node if node.op_type == "QuantizeLinear"]
    return {scale: scales.count(scale) for scale in scales}


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({}, {"OpTypesToExcludeOutputQuantization": ["Conv", "MatMul", "GlobalAveragePool"]}),
        ({}, {"DedicatedQDQPair": True}),
        ({}, {"QuantizeBias": False}),
        ({"op_types_to_quantize": ["Conv", "MatMul"]}, {}),
        ({"nodes_to_exclude": ["conv", "first"]}, {}),
        ({"nodes_to_quantize": ["gemm", "second"]}, {}),
    ],
    ids=str,
)
def test_where_pairs_stand(source: Path, tmp_path: Path, options: dict[str, Any], extra: dict[str, Any]) -> None:
    there, here = both(source, tmp_path, {**S8S8, **options}, {"ActivationSymmetric": True, **extra})
    theirs, ours = pairs_behind(there), pairs_behind(here)
    if "DedicatedQDQPair" in extra:
        assert ours["h_scale"] == theirs["h_scale"] == 2
    assert set(ours) - set(theirs) <= {"f_scale"}, "there the Flatten refers to the scale of its input"
    assert not set(theirs) - set(ours)
    stored = [{name for name, found in encodings(path).items() if found[2] is not None} for path in (there, here)]
    assert stored[0] == stored[1]


def test_pairs_of_com_microsoft(source: Path, tmp_path: Path) -> None:
    for path in both(source, tmp_path, S8S8, {"UseQDQContribOps": True}):
        domains = {node.domain for node in onnx.load(path).graph.node if node.op_type.endswith("QuantizeLinear")}
        assert domains | {node.domain for node in onnx.load(path).graph.node if node.op_type == "DequantizeLinear"} == {
            "com.microsoft"
        }


def test_differences_on_purpose(source: Path, tmp_path: Path) -> None:
    """Symmetric uint8: there 2a/255 with zero point 128, which clips the upper end by half a step; here a/127, which does not."""
    options = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}
    there, here = map(encodings, both(source, tmp_path, options, {"WeightSymmetric": True}))
    largest = float(
        np.abs(
            numpy_helper.to_array(next(t for t in onnx.load(source / "m.onnx").graph.initializer if t.name == "w"))
        ).max()
    )
    assert there["w"][1] == here["w"][1] == 128
    assert there["w"][0] == np.float32(2 * largest / 255)
    assert here["w"][0] == np.float32(largest / 127)
