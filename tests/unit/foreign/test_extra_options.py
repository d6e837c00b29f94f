"""Options of the references by their own names: how values are read, what they amount to, what is refused and why."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
from qdq_passes.core.registry import PASSES
from qdq_passes.errors import ModelError, UnsupportedError, UsageError
from qdq_passes.numerics.override import Override, format_overrides, parse_overrides

import qdqtool
from qdqtool.foreign.options import KNOWN, OPTIONS, parse_extra_options, read_extra_options, table
from qdqtool.foreign.values import to_overrides
from qdqtool.presets.loading import load_preset
from qdqtool.verbs.planned import Planned
from tests.cases.cli_helpers import cli, outputs, write
from tests.golden_messages.refusal import refusal

FLOAT_SCALES = {"UsePowerOf2Scale": False}


def materialised(**options: Any) -> str:
    """Text of the passes after calibration, over the preset xint8."""
    return str(Planned(preset="xint8", extra_options=options).plan().materialise)


def with_float_scales(**options: Any) -> str:
    return materialised(**FLOAT_SCALES, **options)


#: (option, value, what the text then holds); over float scales.
PRINTED = [
    ("OpTypesToExcludeOutputQuantization", ["Conv", "Gemm"], "outputs-stay-float=[Conv,Gemm]"),
    ("OpTypesToExcludeOutputQuantization", "Conv, Gemm", "outputs-stay-float=[Conv,Gemm]"),
    ("OpTypesToExcludeOutputQuantization", "['Conv', 'Gemm']", "outputs-stay-float=[Conv,Gemm]"),
    ("OpTypesToExcludeOutputQuantization", '["Conv"]', "outputs-stay-float=[Conv]"),
    ("AddQDQPairToWeight", "False", "insert-qdq{weights=dq}"),
    ("AddQDQPairToWeight", True, "},insert-qdq"),
    ("DedicatedQDQPair", "true", "insert-qdq{dedicated=true}"),
    ("UseQDQContribOps", 1, "insert-qdq{domain=com.microsoft}"),
    ("QDQOpTypePerChannelSupportToAxis", {"MatMul": 1, "Gather": 0}, "per-axis=[MatMul:1,Gather:0]"),
    ("QDQOpTypePerChannelSupportToAxis", "{'MatMul': -1}", "per-axis=[MatMul:-1]"),
    ("QDQOpTypePerChannelSupportToAxis", "MatMul:1", "per-axis=[MatMul:1]"),
    ("per_channel", "1", "per-axis=[Conv,ConvTranspose,Gemm,MatMul]"),
    ("WeightSymmetric", "no", "weights-symmetric=false"),
    ("ActivationSymmetric", False, "symmetric=false"),
    ("reduce_range", np.True_, "reduce-range=true"),
    ("weight_type", QuantType.QInt16, "weights=int16"),
    ("weight_type", "QuantType.QInt4", "weights=int4"),
    ("weight_type", "quint8", "weights=uint8 scales=any weights-symmetric=false"),
    ("activation_type", QuantType.QUInt8, "activations=uint8"),
    ("activation_type", "INT16", "activations=int16"),
    ("activation_type", "ExtendedQuantType.QUInt16", "activations=uint16"),
    ("Int32Bias", True, "bias=int32"),
    ("QuantizeBias", False, 'bias="none"'),
    ("MinimumRealRange", "0.0001", "min-range=0.0001"),
    ("QDQDisableWeightAdjustForInt32Bias", False, "bias-overflow=widen"),
    ("MatMulConstBOnly", True, "constant-b-only=true"),
    ("ForceQuantizeNoInputCheck", False, "follow-input=true"),
    ("op_types_to_quantize", ["Conv", "Exp"], "ops=[Conv,Exp]"),
    ("OpTypesToQuantize", "Conv,Exp", "ops=[Conv,Exp]"),
    ("ExtraOpTypesToQuantize", ["Exp"], "Where,Exp]"),
    ("nodes_to_quantize", ["/a/conv", "/b*"], 'only=["/a/conv","/b[*]"]'),
    ("nodes_to_exclude", "n:0", 'exclude="re:^n:0$"'),
    ("nodes_to_exclude", ["^/layer0/.*&"], 'exclude="re:^/layer0/.*\\\\&"'),
    ("calibrate_method", CalibrationMethod.MinMax, "scales=any"),
    ("TensorQuantOverrides", {"w": [{"quant_type": QuantType.QUInt8, "symmetric": False}]}, 'overrides="{\\"w\\":{\\"dtype\\":'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "text"), PRINTED, ids=lambda value: str(value)[:40])
def test_options_become_text(name: str, value: object, text: str) -> None:
    assert text in with_float_scales(**{name: value})


#: Values that leave the preset as it is.
NOTHING_SAID: dict[str, Any] = {
    "OpTypesToExcludeOutputQuantization": [],
    "QDQOpTypePerChannelSupportToAxis": {},
    "TensorQuantOverrides": "{}",
    "nodes_to_exclude": None,
    "op_types_to_quantize": "",
    "per_channel": False,
    "reduce_range": "none",
    "WeightSymmetric": True,
    "ActivationSymmetric": True,
    "AddQDQPairToWeight": True,
    "weight_type": QuantType.QInt8,
    "ForceQuantizeNoInputCheck": True,
    "QDQKeepRemovableActivations": False,
    "CalibTensorRangeSymmetric": True,
    "QDQDisableWeightAdjustForInt32Bias": True,
    "SimulateDPU": True,
    "ConvertSigmoidToHardSigmoid": True,
    "ConvertAvgPoolToDPUVersion": "true",
    "ConvertClipToDPUVersion": False,
    "ConvertSoftmaxToDPUVersion": False,
    "ConvertInstanceNormToDPUVersion": False,
    "NPULimitationCheck": True,
    "MaxLoopNum": 5,
    "AlignPool": True,
    "AlignSlice": True,
    "AlignTranspose": False,
    "AdjustShiftSwish": 1,
    "RemoveQDQConvRelu": True,
    "RemoveQDQConvGelu": False,
    "RemoveQDQInstanceNorm": False,
    "RemoveQDQMulAdd": False,
    "FuseLayerNorm": True,
    "FuseGelu": True,
    "ConvertBNToConv": True,
    "ConvertClipToRelu": False,
    "ReplaceClip6Relu": False,
    "FoldBatchNorm": True,
    "FoldBatchNormAfterConcat": True,
    "calibrate_method": "PowerOfTwoMethod.MinMSE",
    "WeightCalibrateMethod": "PowerOfTwoMethod.MinMSE",
    "MinMSEModePof2Scale": "All",
    "NumBins": 2048,
    "Percentile": 99.999,
    "CalibMovingAverage": "False",
    "CalibMovingAverageConstant": "0.01",
    "extra.Sigmoid.nnapi": False,
    "quant_format": QuantFormat.QDQ,
    "calibration_providers": "['CPUExecutionProvider']",
    "CalibOptimizeMem": True,
    "MinimumRealRange": None,
}


def planned(**options: Any) -> tuple[str, str, dict[str, Any]]:
    """All that will run: passes, calibration method and its options."""
    plan = Planned(preset="xint8", extra_options=options).plan()
    return str(plan.pipeline), plan.method, dict(plan.method_options)


@pytest.mark.parametrize(("name", "value"), NOTHING_SAID.items(), ids=NOTHING_SAID)
def test_what_says_nothing_changes_nothing(name: str, value: object) -> None:
    assert planned(**{name: value}) == planned()


def test_all_that_says_nothing_at_once() -> None:
    assert planned(**NOTHING_SAID) == planned()


#: Known to the references, no equivalent: (option, value).
REFUSED = [
    ("ConvertSoftmaxToDPUVersion", True),
    ("ConvertInstanceNormToDPUVersion", True),
    ("RemoveQDQMulAdd", True),
    ("FoldRelu", True),
    ("ConvertNCHWToNHWC", True),
    ("MinMSEModePof2Scale", "MostCommon"),
    ("LWPMetric", "mse"),
    ("NumBins", 512),
    ("NumQuantizedBins", 64),
    ("WeightCalibrateMethod", "Entropy"),
    ("CalibWorkerNum", 4),
    ("FixShapes", "x:[1,3]"),
    ("quant_format", QuantFormat.QOperator),
    ("BlockSize", 32),
    ("Int16Bias", True),
    ("weight_type", QuantType.QFLOAT8E4M3FN),
    ("weight_type", "ExtendedQuantType.QBFP"),
    ("activation_type", "QInt4"),
    ("calibrate_method", "CalibrationMethod.Nothing"),
    ("calibrate_method", "ExtendedCalibrationMethod.LayerwisePercentile"),
    ("TensorQuantOverrides", {"t": [{"convert": {"quant_type": "QUInt16"}}]}),
    (
        "TensorQuantOverrides",
        {"t": {"convert": {"quant_type": "QUInt16", "recv_nodes": ["a"], "rmin": 0}}},
    ),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=[row[0] for row in REFUSED])
def test_no_equivalent(name: str, value: object) -> None:
    with refusal(UnsupportedError) as caught:
        materialised(**{name: value})
    assert caught.value.exit_code == 3


def test_what_only_matters_with_zero_points() -> None:
    asymmetric = {**FLOAT_SCALES, "ActivationSymmetric": False}
    for name, value in (("CalibTensorRangeSymmetric", True), ("QDQKeepRemovableActivations", False)):
        with refusal(UnsupportedError):
            materialised(**asymmetric, **{name: value})
        assert "symmetric=false" in materialised(**asymmetric, **{name: not value})


#: (option, value): values that cannot be read.
UNREADABLE = [
    pytest.param("per_channel", "maybe", id="per_channel"),
    pytest.param("nodes_to_exclude", {"a": 1}, id="nodes_to_exclude"),
    pytest.param("weight_type", "int9", id="weight_type"),
    pytest.param("MinimumRealRange", "wide", id="MinimumRealRange"),
    pytest.param("QDQOpTypePerChannelSupportToAxis", "MatMul", id="axes in a text"),
    pytest.param("QDQOpTypePerChannelSupportToAxis", {"MatMul": 0.5}, id="half an axis"),
    pytest.param("TensorQuantOverrides", ["w"], id="a list"),
    pytest.param("TensorQuantOverrides", {"w": 8}, id="a number"),
    pytest.param("TensorQuantOverrides", {"w": [{"bits": 8}]}, id="an unknown key"),
    pytest.param("TensorQuantOverrides", {"w": [{"scale": 0.5}]}, id="no zero point"),
    pytest.param("TensorQuantOverrides", {"w": [{}, {"rmin": 1}]}, id="several entries"),
    pytest.param("TensorQuantOverrides", {"w": [{"axis": 0, "rmin": 0, "rmax": 1}, {}]}, id="one of two channels"),
    pytest.param("TensorQuantOverrides", {"w": [{"axis": 0}, {"symmetric": True}]}, id="differing channels"),
    pytest.param("TensorQuantOverrides", {"w": {"scale": 1, "zero_point": 0.5}}, id="half a zero point"),
    pytest.param("TensorQuantOverrides", {"w": {"convert": "QUInt16"}}, id="a conversion in a text"),
    pytest.param("TensorQuantOverrides", {"w": {"axis": 0, "convert": {}}}, id="a conversion of channels"),
    pytest.param("TensorQuantOverrides", {"w": {"rmin": 2, "rmax": 1}}, id="an empty range"),
    pytest.param("TensorQuantOverrides", {"w": {"scale": 1, "zero_point": 0, "rmin": 1}}, id="a scale and a range"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNREADABLE)
def test_values_that_cannot_be_read(name: str, value: object) -> None:
    with refusal(UsageError):
        parse_extra_options({name: value})


def test_unknown_options_have_near_names() -> None:
    with refusal(UsageError) as caught:
        parse_extra_options({"DedicatedQDQPairs": True})
    assert caught.value.exit_code == 2
    with refusal(UsageError):
        parse_extra_options({"xyz": 1})


def test_interplay() -> None:
    """What the references decide from several options together."""
    axes = "per-axis=[Conv,ConvTranspose,Gemm,MatMul:1]"
    assert axes in with_float_scales(per_channel=True, QDQOpTypePerChannelSupportToAxis={"MatMul": 1})
    assert "weights-symmetric" not in with_float_scales(weight_type="QUInt8", per_channel=True), "as in onnxruntime"
    assert "weights-symmetric=false" in with_float_scales(weight_type="QInt8", per_channel=True, WeightSymmetric=False)
    assert "bias=int16" in with_float_scales(weight_type="QInt16", Int32Bias=False)
    assert Planned(preset="xint8", extra_options=FLOAT_SCALES).plan().method == "minmax", (
        "power-of-two ranges are too wide"
    )
    assert (
        Planned(preset="xint8", extra_options={"calibrate_method": "PowerOfTwoMethod.NonOverflow"}).plan().method
        == "pow2-nonoverflow"
    )
    only = Planned(preset="xint8", only=["op:Conv"], extra_options={"nodes_to_quantize": "a"}).plan().annotate.only
    assert only.texts == ("op:Conv", "a")


def test_a_target_takes_the_types_asked_for() -> None:
    planned = Planned(
        preset="xint8", target="generic_int8", extra_options={"op_types_to_quantize": ["Gemm", "Einsum", "Conv"]}
    ).plan()
    assert planned.annotate.ops == ("Gemm", "Conv")
    with refusal(UsageError):
        Planned(preset="xint8", target="generic_int8", extra_options={"op_types_to_quantize": ["Einsum"]}).plan()


def test_overrides_as_onnxruntime_writes_them() -> None:
    zero, scale = np.array(3, np.uint8), np.array(0.5, np.float32)
    given = {
        "x": [{"quant_type": QuantType.QUInt16, "rmin": np.float32(-1), "rmax": 2}],
        "y": [{"quant_type": "QUInt8", "scale": scale, "zero_point": zero}],
        "w": [{"axis": -1, "quant_type": QuantType.QInt8, "reduce_range": True, "rmin": 0, "rmax": 1}, {"rmin": -1, "rmax": 0}],
        "b": [],
        "c": [{}],
    }  # fmt: skip
    found = to_overrides("TensorQuantOverrides", given)
    assert set(found) == {"x", "y", "w"}
    assert found["w"] == Override.from_json(
        {"axis": -1, "dtype": "int8", "reduced": True, "low": [0, -1], "high": [1, 0]}
    )
    assert found["y"].to_json() == {"dtype": "uint8", "scale": 0.5, "zero_point": 3}
    assert parse_overrides(format_overrides(found)) == found
    assert not found["y"].needs_range
    assert found["w"].low == (0.0, -1.0)


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"w": {"axis": true}}',
        '{"w": {"dtype": "int9"}}',
        '{"w": {"scale": [1, 2], "zero_point": [0, 0]}}',
        '{"w": {"scale": "1", "zero_point": 0}}',
        '{"w": {"axis": 0, "low": [1]}}',
    ],
)
def test_texts_that_are_no_overrides(text: str) -> None:
    with refusal(UsageError):
        parse_overrides(text)


def test_overrides_that_are_no_json() -> None:
    """What follows are json's words."""
    with pytest.raises(UsageError, match="overrides are no JSON: "):
        parse_overrides("{")


def test_conversions_for_named_receivers(tmp_path: Path) -> None:
    """One pair behind t for c alone; as it widens, not a bit of the outputs changes."""
    model = write(
        tmp_path / "m.onnx",
        """g (float[1,4] x) => (float[1,4] y, float[1,4] u) <float[4,4] w = {1,0,0,2, 0,1,0,0, 0,3,1,0, 0,0,0,1}> {
          [a] t = MatMul(x, w)  [b] u = Sigmoid(t)  [c] v = MatMul(t, w)  [d] y = Tanh(v) }""",
    )
    feed = {"x": np.array([[0.3, -1.5, 2.0, 0.1]], np.float32)}
    wide: dict[str, Any] = {name: [{"quant_type": "QUInt16"}] for name in ("v", "y")}
    convert = {"quant_type": QuantType.QUInt16, "recv_nodes": {"c"}}
    found = []
    for overrides in (wide, {**wide, "t": [{"convert": convert}]}):
        extra = {**FLOAT_SCALES, "activation_type": "QUInt8", "TensorQuantOverrides": overrides}
        done = qdqtool.quantize(model, tmp_path / "q.onnx", data="random:4", extra_options=extra, overwrite=True)
        found.append(
            (
                outputs(tmp_path / "q.onnx", feed),
                {p["tensor"] for p in cli("qdq", "list", tmp_path / "q.onnx", "--json").json["pairs"]},
            )
        )
    assert done.to_json()["pipeline"].endswith(',insert-qdq,convert-boundaries{select="c" dtype=uint16}')
    assert found[1][1] - found[0][1] == {"t_converted"}
    for name in ("y", "u"):
        np.testing.assert_array_equal(found[0][0][name], found[1][0][name])


def test_command_line_texts(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text('{"w": [{"symmetric": false}]}', "utf-8")
    texts = [
        "nodes_to_exclude=a,b",
        "nodes_to_exclude=['c']",
        "per_channel=1",
        f"TensorQuantOverrides=@{tmp_path}/o.json",
    ]
    found = parse_extra_options(read_extra_options([*texts, "per_channel=1"]))
    assert found == {"exclude": ("a", "b", "c"), "per-channel": True, "overrides": {"w": Override(symmetric=False)}}
    for bad in ("per_channel", "=1"):
        with refusal(UsageError):
            read_extra_options([bad])
    with refusal(UsageError):
        read_extra_options(["per_channel=1", "per_channel=0"])
    with refusal(ModelError):
        read_extra_options([f"TensorQuantOverrides=@{tmp_path}/no.json"])


def test_every_option_fills_what_is_there() -> None:
    """A key that `keys.toml` explains, or an option of a pass; no name stands in both halves of a table."""
    keys = table("keys")["keys"]
    for option in OPTIONS.values():
        name, _, entry = option.fills.partition(".")
        explained = option.fills in keys or f"{name}.*" in keys
        assert explained or entry.replace("-", "_") in {field.name for field in fields(PASSES.load(name))}
    assert not set(OPTIONS) & set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_known_options_say_why(name: str) -> None:
    """Each accepts something, and refuses the rest in one line."""
    known = KNOWN[name]
    for value in (*known.accepts, None):
        assert parse_extra_options({name: value}) == {}
    with pytest.raises(UnsupportedError) as caught:
        parse_extra_options({name: "something else"})
    assert name in caught.value.message
    assert caught.value.hint == known.why


def test_the_preset_decides_what_is_not_said() -> None:
    preset = load_preset("xint8")
    assert Planned(preset=preset, extra_options={}).plan().preset is preset
    assert Planned(preset=preset, extra_options={"DedicatedQDQPair": True}).plan().preset.annotate == preset.annotate
