"""Options of the references that contradict each other, the scales, or options of ours: refused, with a way out."""

from __future__ import annotations

import re
from typing import Any

import pytest
from qdq_passes.errors import UsageError

from qdqtool.verbs.planned import Planned
from tests.golden_messages.refusal import refusal

FLOAT_SCALES = {"UsePowerOf2Scale": False}

#: Contradictions: (options, what the message holds).
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"per_channel": True}, "power-of-two scales exclude a scale per channel"),
    ({"QDQOpTypePerChannelSupportToAxis": {"MatMul": 1}}, "power-of-two scales exclude a scale per channel"),
    ({"TensorQuantOverrides": {"w": [{"axis": 0}]}}, "power-of-two scales exclude an axis in TensorQuantOverrides"),
    ({"ActivationSymmetric": False}, "power-of-two scales exclude ActivationSymmetric=false: a shift has no zero point"),
    ({"WeightSymmetric": False}, "power-of-two scales exclude WeightSymmetric=false"),
    ({"TensorQuantOverrides": {"w": {"symmetric": False}}}, "exclude symmetric=false in TensorQuantOverrides"),
    ({"TensorQuantOverrides": {"x": [{"scale": 0.3, "zero_point": 0}]}}, "exclude a scale that is no power of two in Tensor"),
    ({"TensorQuantOverrides": {"x": [{"scale": 0.5, "zero_point": 5}]}}, "exclude a zero point in TensorQuantOverrides: a shift"),
    ({"reduce_range": True}, "power-of-two scales exclude reduce_range"),
    ({"weight_type": "QUInt8"}, "power-of-two scales exclude weight_type uint8"),
    ({"UsePowerOf2Scale": False, "calibrate_method": "NonOverflow"}, "contradicts the method pow2-nonoverflow"),
    ({"Int32Bias": True, "QuantizeBias": False}, "Int32Bias=true contradicts QuantizeBias=false"),
    ({**FLOAT_SCALES, "per_channel": False, "QDQOpTypePerChannelSupportToAxis": {"Conv": 0}}, "contradicts per_channel=false"),
    ({**FLOAT_SCALES, "weight_type": "QUInt8", "activation_type": "QInt8"}, "weight_type uint8 with activation_type int8"),
    ({"OpTypesToQuantize": ["Conv"], "op_types_to_quantize": ["Gemm"]}, "op_types_to_quantize is given twice"),
    ({"Percentile": 99.9, "CalibPercentile": 99.0}, "CalibPercentile is given twice"),
    ({**FLOAT_SCALES, "SimulateDPU": True}, "float scales exclude SimulateDPU=true: the DPU has none"),
    ({**FLOAT_SCALES, "ConvertAvgPoolToDPUVersion": True}, "float scales exclude ConvertAvgPoolToDPUVersion=true"),
    ({**FLOAT_SCALES, "NPULimitationCheck": True}, "float scales exclude NPULimitationCheck=true: they have no positions"),
    ({**FLOAT_SCALES, "AdjustShiftSwish": True}, "float scales exclude AdjustShiftSwish=true: they have no positions"),
    ({**FLOAT_SCALES, "MaxLoopNum": 3}, "float scales exclude MaxLoopNum: nothing is refined"),
    ({**FLOAT_SCALES, "WeightCalibrateMethod": "MinMSE"}, "float scales exclude WeightCalibrateMethod=MinMSE"),
    ({"calibrate_method": "Entropy", "CalibMovingAverage": True}, "CalibMovingAverage=true contradicts the method entropy"),
    ({"CalibMovingAverageConstant": 0.1}, "CalibMovingAverageConstant is no option of the method pow2-minmse"),
    ({"Percentile": 99.9}, "Percentile is no option of the method pow2-minmse"),
    ({**FLOAT_SCALES, "Percentile": 99.9}, "Percentile is no option of the method minmax"),
    ({"FoldBatchNorm": False, "FoldBatchNormAfterConcat": True}, "nothing folds BatchNormalization"),
    ({"ReplaceClip6Relu": True, "ConvertClipToRelu": False}, "ConvertClipToRelu=false contradicts ReplaceClip6Relu=true"),
    ({"MaxLoopNum": 0}, "MaxLoopNum is 1 or more, not 0"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS, ids=[row[1][:40] for row in CONTRADICTIONS])
def test_contradictions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        Planned(preset="xint8", extra_options=options).plan()
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_contradictions_with_options_of_ours() -> None:
    with refusal(UsageError):
        Planned(preset="xint8", weights="dq", extra_options={"AddQDQPairToWeight": True}).plan()
    with refusal(UsageError):
        Planned(preset="xint8", method="pow2-nonoverflow", extra_options={"calibrate_method": "MinMax"}).plan()
    assert str(Planned(preset="xint8", weights="dq").plan().materialise).endswith(",fold-weight-qdq"), (
        "not refused by itself"
    )
    for options, message in (
        ({"CalibMovingAverage": True}, "CalibMovingAverage=true contradicts --method minmax"),
        ({"FuseGelu": True}, "FuseGelu=true contradicts --no-fuse-layers"),
        ({"FoldBatchNormAfterConcat": True}, "FoldBatchNormAfterConcat=true contradicts --no-fuse-layers"),
        ({"RemoveQDQConvClip": True}, "RemoveQDQConvClip=true contradicts --no-fuse-layers"),
        ({"ConvertSigmoidToHardSigmoid": True}, "ConvertSigmoidToHardSigmoid=true contradicts --keep-sigmoid"),
    ):
        with pytest.raises(UsageError, match=message):
            Planned(preset="xint8", method="minmax", fuse_layers=False, keep_sigmoid=True, extra_options=options).plan()
    for options in ({"FuseGelu": False}, {"ConvertBNToConv": True}, {"SimulateDPU": True}):
        Planned(preset="xint8", method="minmax", fuse_layers=False, keep_sigmoid=True, extra_options=options).plan()
