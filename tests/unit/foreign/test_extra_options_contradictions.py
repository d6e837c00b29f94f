"""Options of the references that contradict each other, the scales, or options of ours: refused, with a way out."""

from __future__ import annotations

from typing import Any

import pytest
from qdq_passes.errors import UsageError

from qdqtool.verbs.planned import Planned
from tests.golden_messages.refusal import refusal

FLOAT_SCALES = {"UsePowerOf2Scale": False}

#: Options that contradict each other.
CONTRADICTIONS = [
    pytest.param({"per_channel": True}, id="per channel"),
    pytest.param({"QDQOpTypePerChannelSupportToAxis": {"MatMul": 1}}, id="per channel by type"),
    pytest.param({"TensorQuantOverrides": {"w": [{"axis": 0}]}}, id="axis"),
    pytest.param({"ActivationSymmetric": False}, id="asymmetric activations"),
    pytest.param({"WeightSymmetric": False}, id="asymmetric weights"),
    pytest.param({"TensorQuantOverrides": {"w": {"symmetric": False}}}, id="asymmetric override"),
    pytest.param({"TensorQuantOverrides": {"x": [{"scale": 0.3, "zero_point": 0}]}}, id="scale"),
    pytest.param({"TensorQuantOverrides": {"x": [{"scale": 0.5, "zero_point": 5}]}}, id="zero point"),
    pytest.param({"reduce_range": True}, id="reduced range"),
    pytest.param({"weight_type": "QUInt8"}, id="unsigned weights"),
    pytest.param({"UsePowerOf2Scale": False, "calibrate_method": "NonOverflow"}, id="NonOverflow"),
    pytest.param({"Int32Bias": True, "QuantizeBias": False}, id="bias"),
    pytest.param({**FLOAT_SCALES, "per_channel": False, "QDQOpTypePerChannelSupportToAxis": {"Conv": 0}}, id="per channel twice"),
    pytest.param({**FLOAT_SCALES, "weight_type": "QUInt8", "activation_type": "QInt8"}, id="signs"),
    pytest.param({"OpTypesToQuantize": ["Conv"], "op_types_to_quantize": ["Gemm"]}, id="types twice"),
    pytest.param({"Percentile": 99.9, "CalibPercentile": 99.0}, id="percentile twice"),
    pytest.param({**FLOAT_SCALES, "SimulateDPU": True}, id="SimulateDPU"),
    pytest.param({**FLOAT_SCALES, "ConvertAvgPoolToDPUVersion": True}, id="AvgPool"),
    pytest.param({**FLOAT_SCALES, "NPULimitationCheck": True}, id="NPULimitationCheck"),
    pytest.param({**FLOAT_SCALES, "AdjustShiftSwish": True}, id="AdjustShiftSwish"),
    pytest.param({**FLOAT_SCALES, "MaxLoopNum": 3}, id="MaxLoopNum"),
    pytest.param({**FLOAT_SCALES, "WeightCalibrateMethod": "MinMSE"}, id="WeightCalibrateMethod"),
    pytest.param({"calibrate_method": "Entropy", "CalibMovingAverage": True}, id="moving average"),
    pytest.param({"CalibMovingAverageConstant": 0.1}, id="constant of a moving average"),
    pytest.param({"Percentile": 99.9}, id="percentile of shifts"),
    pytest.param({**FLOAT_SCALES, "Percentile": 99.9}, id="percentile of minmax"),
    pytest.param({"FoldBatchNorm": False, "FoldBatchNormAfterConcat": True}, id="BatchNormalization"),
    pytest.param({"ReplaceClip6Relu": True, "ConvertClipToRelu": False}, id="Clip"),
    pytest.param({"MaxLoopNum": 0}, id="no loop"),
    pytest.param({"need_layer_fusing": False, "RemoveQDQConvRelu": True}, id="fusing of activations"),
    pytest.param({"need_layer_fusing": False, "RemoveQDQInstanceNorm": True}, id="fusing of norms"),
]  # fmt: skip


@pytest.mark.parametrize("options", CONTRADICTIONS)
def test_contradictions(options: dict[str, Any]) -> None:
    with refusal(UsageError) as caught:
        Planned(preset="xint8", extra_options=options).plan()
    assert caught.value.hint


def test_contradictions_with_options_of_ours() -> None:
    with refusal(UsageError):
        Planned(preset="xint8", weights="dq", extra_options={"AddQDQPairToWeight": True}).plan()
    with refusal(UsageError):
        Planned(preset="xint8", method="pow2-nonoverflow", extra_options={"calibrate_method": "MinMax"}).plan()
    assert str(Planned(preset="xint8", weights="dq").plan().materialise).endswith(",fold-weight-qdq"), (
        "not refused by itself"
    )
    for options in (
        {"CalibMovingAverage": True},
        {"FuseGelu": True},
        {"FoldBatchNormAfterConcat": True},
        {"RemoveQDQConvClip": True},
        {"ConvertSigmoidToHardSigmoid": True},
    ):
        with refusal(UsageError):
            Planned(preset="xint8", method="minmax", fuse_layers=False, keep_sigmoid=True, extra_options=options).plan()
    for options in ({"FuseGelu": False}, {"ConvertBNToConv": True}, {"SimulateDPU": True}):
        Planned(preset="xint8", method="minmax", fuse_layers=False, keep_sigmoid=True, extra_options=options).plan()
