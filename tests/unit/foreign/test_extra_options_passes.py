"""Options of the references that put passes in or leave them out: what runs then, and what becomes of the digits network."""

from __future__ import annotations

import difflib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationMethod
from qdq_passes.pipeline.text import format_pass, parse_passes

import qdqtool
from qdqtool.foreign.options import OPTIONS
from qdqtool.foreign.switching import AFTER, BEFORE, DPU
from qdqtool.presets.loading import load_preset
from qdqtool.quantization.quantizing import Quantization
from qdqtool.verbs.planned import Planned
from tests.cases.cli_helpers import CALIB, DIGITS, write

FLOAT_SCALES = {"UsePowerOf2Scale": False}
DPU_PASSES = [
    "round-leaky-relu{ranges=@ranges}", "sigmoid-to-hard-sigmoid{ranges=@ranges}", "scale-hard-sigmoid", "scale-average-pool",
    "scale-reduce-mean",
]  # fmt: skip
ALL_STEPS = (
    "align-concat,align-pool,align-pad,align-slice,adjust-shift-read,adjust-shift-write,adjust-shift-cut,adjust-shift-bias,"
    "adjust-hard-sigmoid,adjust-swish"
)


def steps_without(*left_out: str) -> str:
    return ",".join(step for step in ALL_STEPS.split(",") if step not in left_out)


def refined(steps: str, more: str = "") -> str:
    return f"refine-positions{{{more}steps=[{steps}] ranges=@ranges}}"


def difference(preset: str, options: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(passes left out, passes put in) by ``options``, in their order."""
    texts = (str(Planned(preset=preset, extra_options=said).plan().pipeline) for said in ({}, options))
    before, after = ([format_pass(p) for p in parse_passes(text)] for text in texts)
    rows = list(difflib.ndiff(before, after))
    return [row[2:] for row in rows if row[0] == "-"], [row[2:] for row in rows if row[0] == "+"]


REFINE = "refine-positions{ranges=@ranges}"
#: What xint8 has before it for the sake of adjust-hard-sigmoid.
SATURATE = "saturate-hard-sigmoid"
FUSE = "fuse-conv-activation"
#: (preset, options, passes that go, passes that come)
SWITCHED: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("xint8", {"SimulateDPU": False}, DPU_PASSES, []),
    ("xint8", {"SimulateDPU": False, "ConvertAvgPoolToDPUVersion": True}, DPU_PASSES, []),
    ("vint8", {"SimulateDPU": True}, [], DPU_PASSES),
    ("vint8", {"SimulateDPU": True, "ConvertHardSigmoidToDPUVersion": False}, [], [p for p in DPU_PASSES if p != "scale-hard-sigmoid"]),
    ("xint8", {"ConvertLeakyReluToDPUVersion": False}, DPU_PASSES[:1], []),
    ("xint8", {"ConvertSigmoidToHardSigmoid": False}, DPU_PASSES[1:2], []),
    ("xint8", {"ConvertHardSigmoidToDPUVersion": False}, DPU_PASSES[2:3], []),
    ("xint8", {"ConvertAvgPoolToDPUVersion": False}, DPU_PASSES[3:4], []),
    ("vint8", {"ConvertReduceMeanToDPUVersion": True}, [], DPU_PASSES[4:]),
    ("xint8-compat", {"ConvertClipToDPUVersion": True}, [], ["round-clip-bounds{ranges=@ranges}"]),
    ("xint8", {"NPULimitationCheck": False}, [SATURATE, REFINE], []),
    ("xint8", {"NPULimitationCheck": False, "AlignPool": True, "MaxLoopNum": 2}, [SATURATE, REFINE], []),
    ("xint8", {"AlignConcat": False}, [REFINE], [refined(steps_without("align-concat"))]),
    ("xint8", {"AlignPool": False}, [REFINE], [refined(steps_without("align-pool"))]),
    ("xint8", {"AlignPad": False}, [REFINE], [refined(steps_without("align-pad"))]),
    ("xint8", {"AdjustShiftRead": False}, [REFINE], [refined(steps_without("adjust-shift-read"))]),
    ("xint8", {"AdjustShiftWrite": False}, [REFINE], [refined(steps_without("adjust-shift-write"))]),
    ("xint8", {"AdjustShiftCut": False, "AdjustShiftBias": 0}, [REFINE], [refined(steps_without("adjust-shift-cut", "adjust-shift-bias"))]),
    ("xint8", {"AdjustHardSigmoid": False}, [SATURATE, REFINE], [refined(steps_without("adjust-hard-sigmoid"))]),
    ("xint8", {"AdjustShiftSwish": "false"}, [REFINE], [refined(steps_without("adjust-swish"))]),
    ("xint8", {"MaxLoopNum": "3"}, [REFINE], ["refine-positions{loops=3 ranges=@ranges}"]),
    (
        "xint8-compat", {"AlignPad": False},
        ["refine-positions{stored=keep reference=true}"],
        [f"refine-positions{{steps=[{steps_without('align-pad')}] stored=keep reference=true}}"],
    ),
    ("a8w8", {"AlignConcat": False}, ["align-concat{ranges=@ranges scales=any}"], []),
    ("a8w8", {"AlignPool": True, "AlignPad": True}, [], ["align-pool{scales=any}", "align-pad{scales=any}"]),
    ("vint8", {"FoldBatchNorm": False}, ["fold-batch-norm"] * 3, []),
    ("vint8", {"FoldBatchNormAfterConcat": False}, ["fold-batch-norm"] * 3, ["fold-batch-norm{concat=false}"] * 3),
    (
        "xint8-compat", {"FoldBatchNormAfterConcat": "true"},
        ["fold-batch-norm{precision=float32 reference=true}"] * 3,
        ["fold-batch-norm{precision=float32 concat=true reference=true}"] * 3,
    ),
    ("xint8", {"ConvertBNToConv": False}, ["batch-norm-to-conv"], []),
    ("xint8", {"ConvertSplitToSlice": False}, ["split-to-slice"], []),
    ("vint8", {"ConvertReduceMeanToGlobalAvgPool": True}, [], ["reduce-mean-to-global-pool"]),
    ("a8w8", {"SplitLargeKernelPool": True}, [], ["split-large-pool"]),
    ("xint8", {"ConvertClipToRelu": True}, [], ["clip-to-relu"]),
    ("xint8", {"ReplaceClip6Relu": True}, [], ["clip-to-relu{clip6=true}"]),
    ("vint8", {"ReplaceClip6Relu": True}, ["clip-to-relu"], ["clip-to-relu{clip6=true}"]),
    ("vint8", {"ConvertClipToRelu": False}, ["clip-to-relu"], []),
    ("xint8", {"FuseLayerNorm": False, "FuseGelu": False}, ["fuse-layer-norm", "fuse-gelu"], []),
    ("xint8-compat", {"FuseInstanceNorm": False, "FuseL2Norm": False}, ["fuse-instance-norm{into=operator}", "fuse-l2-norm{into=operator}"], []),
    ("xint8", {"RemoveQDQConvRelu": False}, [FUSE], [f"{FUSE}{{activations=[Clip,LeakyRelu,PRelu]}}"]),
    ("xint8", {"RemoveQDQConvClip": False}, [FUSE], [f"{FUSE}{{activations=[LeakyRelu,PRelu,Relu]}}"]),
    ("xint8", {"RemoveQDQConvLeakyRelu": 0, "RemoveQDQConvPRelu": 0}, [FUSE], [f"{FUSE}{{activations=[Clip,Relu]}}"]),
    ("xint8", {"RemoveQDQConvGelu": True}, [FUSE], [f"{FUSE}{{activations=[Clip,Gelu,LeakyRelu,PRelu,Relu]}}"]),
    ("vint8", {"RemoveQDQConvRelu": True, "RemoveQDQConvClip": True}, [], [f"{FUSE}{{activations=[Clip,Relu] pools=[]}}"]),
    (
        "xint8", {"RemoveQDQInstanceNorm": True}, [FUSE],
        [f"{FUSE}{{producers=[Add,AveragePool,Conv,ConvTranspose,Gemm,GlobalAveragePool,InstanceNormalization,MatMul,MaxPool]}}"],
    ),
    ("xint8", {"AddQDQPairToWeight": False}, [], []),
    ("xint8-compat", {"AddQDQPairToWeight": False}, [], []),
    ("vint8", {"need_layer_fusing": True}, [], [FUSE]),
    ("xint8", {"need_layer_fusing": True}, [], []),
    ("xint8", {"need_layer_fusing": False}, [FUSE], []),
    ("xint8", {"need_layer_fusing": True, "RemoveQDQConvRelu": False}, [FUSE], [f"{FUSE}{{activations=[Clip,LeakyRelu,PRelu]}}"]),
    ("xint8-compat", {"AddQDQPairToWeight": True}, ["insert-qdq{weights=dq narrow=true}"], ["insert-qdq{narrow=true}"]),
    (
        "xint8", {"NPULimitationCheck": False, "SimulateDPU": False, "AddQDQPairToWeight": False},
        [*DPU_PASSES, SATURATE, REFINE], [],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "options", "gone", "new"), SWITCHED, ids=[f"{row[0]} {row[1]}" for row in SWITCHED])
def test_passes_go_and_come(preset: str, options: dict[str, Any], gone: list[str], new: list[str]) -> None:
    assert difference(preset, options) == (gone, new)


def test_every_switch_is_tried() -> None:
    """An option without a row does nothing that is looked at."""
    tried = {name for _, options, _, _ in SWITCHED for name in options} | {"AlignSlice"}  # below
    switches = ("before.", "activations.", "dpu.", "steps.")
    assert {name for name, option in OPTIONS.items() if option.fills.startswith(switches)} <= tried


def test_the_order_is_that_of_the_preset() -> None:
    """What is put in stands where xint8 has it; DPU operators before the refinement, steps in their order."""
    xint8 = load_preset("xint8")
    for passes, order in ((xint8.before, BEFORE), (xint8.after, AFTER)):
        names = [p.name() for p in passes if p.name() in order]
        last = {name: i for i, name in enumerate(names)}
        assert sorted(last, key=order.index) == sorted(last, key=lambda name: last[name])
    plan = Planned(
        preset="vint8", extra_options={"ConvertClipToDPUVersion": True, "ConvertLeakyReluToDPUVersion": True}
    ).plan()
    assert [p.name() for p in plan.materialise.passes][-5:] == [
        "insert-qdq",
        DPU[0],
        DPU[-1],
        "refine-positions",
        "narrow-weights",
    ]
    options = {"SplitLargeKernelPool": True, "ConvertBNToConv": True, "ReplaceClip6Relu": True}
    plan = Planned(preset="a8w8", extra_options=options, bound_masks=False).plan()
    found = [p.name() for p in plan.prepare.passes]
    assert found[-4:] == ["fuse-hard-swish", "clip-to-relu", "split-large-pool", "fuse-conv-activation"]
    assert found.count("batch-norm-to-conv") == 1  # the preset has it


def test_float_scales_leave_out_what_is_for_the_dpu() -> None:
    """What changes ranges stays; so do alignments that are asked for, as copies of scales."""
    assert str(Planned(preset="xint8", extra_options=FLOAT_SCALES, bound_masks=False).plan().materialise) == (
        "adjust-ranges{ranges=@ranges softmax=false},annotate-encodings{encodings=@ranges scales=any},insert-qdq"
    )
    said = {
        **FLOAT_SCALES,
        "AlignConcat": True,
        "AlignPool": False,
        "SimulateDPU": False,
        "AdjustShiftCut": False,
        "MaxLoopNum": 5,
    }
    assert str(Planned(preset="xint8-compat", extra_options=said).plan().materialise).endswith(
        ",align-concat{scales=any}"
    )
    compat = Planned(preset="xint8-compat", extra_options=FLOAT_SCALES).plan()
    assert (compat.annotate.rounding, compat.annotate.constants) == ("up", "range")
    assert (compat.method, dict(compat.method_options)) == ("minmax", {}), (
        "reference=true is for methods of powers of two"
    )


def test_powers_of_two_over_float_scales() -> None:
    """The preset's alignment moves positions then; weights are stored once nothing moves any more."""
    text = str(Planned(preset="a8w8", extra_options={"UsePowerOf2Scale": True}).plan().materialise)
    assert text.endswith(f",insert-qdq,{refined('align-concat')},fold-weight-qdq")
    everything = {"UsePowerOf2Scale": True, "NPULimitationCheck": True, "AddQDQPairToWeight": True}
    assert str(Planned(preset="a8w8", extra_options=everything).plan().materialise).endswith(f",insert-qdq,{REFINE}")


#: (options, preset, method, its options, scales)
METHODS: list[tuple[dict[str, Any], str, str, dict[str, Any], str]] = [
    ({"calibrate_method": "PowerOfTwoMethod.NonOverflow"}, "xint8", "pow2-nonoverflow", {}, "pow2"),
    ({"calibrate_method": "MinMSE"}, "a8w8", "pow2-minmse", {}, "pow2"),
    ({"calibrate_method": "CalibrationMethod.MinMSE"}, "a8w8", "mse", {}, "any"),
    ({"calibrate_method": "ExtendedCalibrationMethod.MinMSE", **FLOAT_SCALES}, "xint8", "mse", {}, "any"),
    ({"calibrate_method": CalibrationMethod.Entropy}, "xint8", "entropy", {}, "any"),
    ({"calibrate_method": CalibrationMethod.Distribution}, "a8w8", "distribution", {}, "any"),
    ({"calibrate_method": "Percentile", "Percentile": 99.9}, "xint8", "percentile", {"percentile": 99.9}, "any"),
    ({"calibrate_method": "Percentile", "CalibPercentile": "99.5", "UsePowerOf2Scale": True}, "xint8", "percentile", {"percentile": 99.5}, "pow2"),
    ({"CalibMovingAverage": True}, "xint8", "moving-average", {"constant": 0.01, "eps": 0.0}, "pow2"),
    ({"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.1}, "a8w8", "moving-average", {"constant": 0.1, "eps": 0.0}, "any"),
    ({"CalibMovingAverage": True, "calibrate_method": "MinMax"}, "xint8", "moving-average", {"constant": 0.01, "eps": 0.0}, "any"),
    ({"CalibMovingAverage": True, "calibrate_method": "NonOverflow"}, "xint8", "moving-average", {"constant": 0.01, "eps": 0.0}, "pow2"),
    ({"calibrate_method": "MovingAverage", "CalibMovingAverageConstant": 0.5}, "a8w8", "moving-average", {"constant": 0.5}, "any"),
    ({"CalibMovingAverage": True, "activation_type": "QInt16"}, "a8w8", "moving-average", {"bits": 16, "constant": 0.01, "eps": 0.0}, "any"),
    ({"CalibMovingAverageConstant": 0.01, "Percentile": 99.999}, "xint8", "pow2-minmse", {}, "pow2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "preset", "method", "its", "scales"), METHODS, ids=[str(row[0]) for row in METHODS]
)
def test_calibration_methods(
    options: dict[str, Any], preset: str, method: str, its: dict[str, Any], scales: str
) -> None:
    plan = Planned(preset=preset, extra_options=options).plan()
    assert (plan.method, dict(plan.method_options), plan.annotate.scales) == (method, its, scales)


def test_how_constants_are_chosen() -> None:
    def constants(**options: Any) -> str:
        return Planned(preset="xint8", extra_options=options).plan().annotate.constants

    assert constants(WeightCalibrateMethod="CalibrationMethod.MinMax") == "range"
    assert constants(calibrate_method="NonOverflow") == "range", "the weights follow the method"
    assert constants(calibrate_method="NonOverflow", WeightCalibrateMethod="PowerOfTwoMethod.MinMSE") == "minmse"
    assert constants(WeightCalibrateMethod="MinMSE", CalibMovingAverage=True) == "minmse"


def digits(tmp_path: Path, **options: Any) -> tuple[Quantization, onnx.ModelProto]:
    """The digits network by ``options`` over xint8, and what was written."""
    path = tmp_path / "q.onnx"
    done = qdqtool.quantize(DIGITS, path, data=CALIB, samples=8, overwrite=True, extra_options=options)
    onnx.checker.check_model(str(path), full_check=True)
    assert done.to_json()["sqnr_db"] > 0, "logits that are all 0 have 0 dB"
    return done.quantization, onnx.load(path)


def counted(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def test_digits_without_dpu_operators(tmp_path: Path) -> None:
    """The average pool keeps its own factor 1: the product behind it goes, with nothing else."""
    there, here = counted(digits(tmp_path)[1]), counted(digits(tmp_path, SimulateDPU=False)[1])
    assert there - here == {"Mul": 1}
    assert not here - there


def test_digits_without_a_step(tmp_path: Path) -> None:
    """No pool is moved, and the others are where they were."""
    moves = [
        [str(c) for c in digits(tmp_path, **options)[0].changes if c.kind == "move"]
        for options in ({}, {"AlignPool": False})
    ]
    assert any("align-pool" in move for move in moves[0])
    assert moves[1] == [move for move in moves[0] if "align-pool" not in move]


def test_digits_with_pairs_between_layer_and_activation(tmp_path: Path) -> None:
    """One pair more for each Relu that was one with the layer before it."""
    (fused, _), (done, model) = digits(tmp_path), digits(tmp_path, RemoveQDQConvRelu=False)
    written = {node.output[0]: node.op_type for node in model.graph.node}
    relus = [written[node.input[0]] for node in model.graph.node if node.op_type == "Relu"]
    assert set(relus) == {"DequantizeLinear"}
    groups = sum(1 for change in fused.changes if change.kind == "annotate" and "are one group" in change.because)
    assert groups > 0
    assert done.pairs == fused.pairs + groups


def test_digits_by_moving_average(tmp_path: Path) -> None:
    """The range of the input is the average of the samples' own, as numpy has it; its scale the power of two above."""
    done, _ = digits(tmp_path, CalibMovingAverage=True, CalibMovingAverageConstant=0.25)
    assert done.ranges.method == "moving-average"
    samples = np.load(CALIB)
    (name,) = samples.files
    high = 0.0
    for i, sample in enumerate(samples[name][:8]):
        high = float(sample.max()) if i == 0 else high + 0.25 * (float(sample.max()) - high)
    found = done.ranges.tensors["input"]
    assert found.high == high
    assert found.low == 0
    assert all("position" in t.to_json() and t.to_json()["position"] is not None for t in done.tensors)


def test_digits_by_percentile(tmp_path: Path) -> None:
    """Nothing is wider than by min-max, something narrower, and no scale is rounded to a power of two."""
    done, model = digits(tmp_path, **FLOAT_SCALES, calibrate_method="Percentile", Percentile=99.9)
    widest, _ = digits(tmp_path, **FLOAT_SCALES)
    narrower = [r.high < widest.ranges.tensors[name].high for name, r in done.ranges.tensors.items()]
    assert any(narrower)
    assert all(r.high <= widest.ranges.tensors[name].high for name, r in done.ranges.tensors.items())
    scales = [float(numpy_helper.to_array(t)) for t in model.graph.initializer if t.name.endswith("_scale")]
    assert any(np.frexp(scale)[0] != 0.5 for scale in scales)


def test_powers_of_two_keep_the_pairs_on_weights(tmp_path: Path) -> None:
    """As the Vitis quantizer answers: said, and taken for true; with float scales, and by --weights, integers are stored."""
    made: list[tuple[bytes, list[str]]] = []
    for options in ({}, {"AddQDQPairToWeight": False}):
        path, warnings = tmp_path / "q.onnx", list[str]()
        qdqtool.quantize(
            DIGITS, path, data=CALIB, samples=2, overwrite=True, no_provenance=True, extra_options=options,
            warn=warnings.append,
        )  # fmt: skip
        made.append((path.read_bytes(), [w for w in warnings if "AddQDQPairToWeight" in w]))
    assert made[0][0] == made[1][0]
    assert (made[0][1], len(made[1][1])) == ([], 1)
    assert "--weights dq" in made[1][1][0]
    stored = Planned(preset="xint8", weights="dq", extra_options={"AddQDQPairToWeight": False}).plan()
    assert str(stored.materialise).endswith(",fold-weight-qdq")
    assert not stored.warnings


def test_digits_with_int32_biases_over_powers_of_two(tmp_path: Path) -> None:
    """s_b = s_x·s_w holds after the refinement, too, and no bias is moved by itself."""
    done, model = digits(tmp_path, Int32Bias=True)
    assert not [c for c in done.changes if c.kind == "move" and "adjust-shift-bias" in c.because]
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    made = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    checked = 0
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm") and len(node.input) > 2:
            x, w, b = (constants[made[name].input[1]] for name in node.input)
            assert constants[made[node.input[2]].input[0]].dtype == np.int32
            assert b == x * w
            checked += 1
    assert checked > 0


def test_a_slice_that_is_not_aligned(tmp_path: Path) -> None:
    """AlignSlice=false: a scale of its own, where it shares that of its input by default."""
    model = write(
        tmp_path / "m.onnx",
        """g (float[1,4] x) => (float[1,2] y, float[1,4] z) <int64[1] s = {0}, int64[1] e = {2}, int64[1] a = {1}> {
          [relu] t = Relu(x)  [slice] y = Slice(t, s, e, a)  [sigmoid] z = Sigmoid(t) }""",
    )
    np.savez(tmp_path / "x.npz", x=np.array([[0.5, 0.25, 90, 0]], np.float32))
    scales = []
    for options in ({}, {"AlignSlice": False}, {"AlignSlice": True}):
        out = tmp_path / "q.onnx"
        qdqtool.quantize(model, out, data=str(tmp_path / "x.npz"), overwrite=True, extra_options=options)
        graph = onnx.load(out).graph
        constants = {t.name: float(numpy_helper.to_array(t)) for t in graph.initializer if not t.dims}
        made = {node.output[0]: node for node in graph.node}
        (node,) = [node for node in graph.node if node.op_type == "Slice"]
        scales.append((constants[made[node.input[0]].input[1]], constants[made["y"].input[1]]))
    assert scales[0] == scales[2] == (1.0, 1.0)
    assert scales[1][0] == 1.0
    assert scales[1][1] < 1.0
