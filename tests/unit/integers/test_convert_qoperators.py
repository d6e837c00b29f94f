"""convert-qoperators: what it makes computes the same in onnxruntime, on every operator and on onnxruntime's own files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnxruntime.quantization import QuantFormat, QuantType
from qdq_passes.errors import UnsupportedError
from qdq_passes.integers.look.integer_ops import integer_tensors
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.io.models.load import model_of
from tests.cases.integer_models import MICROSOFT, SAFE, Operator, feed_of
from tests.cases.quantized_files import NET, net, quantized_dynamic, quantized_static
from tests.cases.small_models import checked, operators, parsed, run

IMAGE, KERNEL = (2, 3, 6, 6), (4, 3, 3, 3)


def conv(**options: Any) -> Operator:
    return Operator("QLinearConv", [IMAGE, KERNEL], **({"weight": "s8", "domain": "", "bias": (4,)} | options))


def pool(op_type: str, shape: tuple[int, ...] = (1, 3, 7, 7), **attributes: Any) -> Operator:
    return Operator(op_type, [shape], attributes=attributes)


def softmax(axis: int, opset: int) -> Operator:
    return Operator("QLinearSoftmax", [(4, 5, 6)], attributes={"axis": axis, "opset": opset})


OPERATORS = {
    "conv": conv(attributes={"pads": [1, 1, 1, 1]}),
    "conv per axis": conv(axis=0),
    "conv u8 weight": conv(weight="u8"),
    "conv in groups": Operator(
        "QLinearConv", [(2, 4, 6, 6), (4, 1, 3, 3)], weight="s8", domain="", attributes={"group": 4, "strides": [2, 2]}
    ),
    "conv 1d": Operator("QLinearConv", [(2, 3, 6), (4, 3, 3)], weight="s8", domain="", axis=0, bias=(4,)),
    "conv channels last": Operator(
        "QLinearConv", [(2, 6, 6, 3), KERNEL], weight="s8", axis=0, bias=(4,), attributes={"channels_last": 1}
    ),
    "matmul": Operator("QLinearMatMul", [(5, 8), (8, 4)], weight="s8", domain=""),
    "matmul per column": Operator("QLinearMatMul", [(2, 5, 8), (8, 4)], weight="s8", axis=1, domain=""),
    "matmul of activations": Operator("QLinearMatMul", [(2, 5, 8), (2, 8, 4)], domain=""),
    "gemm": Operator("QGemm", [(5, 8), (8, 4)], weight="s8", axis=1, bias=(4,)),
    "gemm with alpha": Operator(
        "QGemm", [(8, 5), (8, 4)], weight="s8", bias=(1, 4), attributes={"transA": 1, "alpha": 1.5}
    ),
    "gemm transposed": Operator("QGemm", [(5, 8), (4, 8)], weight="s8", axis=0, bias=(4,), attributes={"transB": 1}),
    "add": Operator("QLinearAdd", [(3, 50), (3, 50)]),
    "mul broadcast": Operator("QLinearMul", [(3, 50), (50,)]),
    "sigmoid": Operator("QLinearSigmoid", [(400,)]),
    "leaky relu": Operator("QLinearLeakyRelu", [(400,)], attributes={"alpha": 0.1}),
    "average pool": pool("QLinearAveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "average pool ceil": pool("QLinearAveragePool", kernel_shape=[3, 2], strides=[2, 1], ceil_mode=1),
    "average pool channels last": pool("QLinearAveragePool", (1, 7, 7, 3), kernel_shape=[3, 3], channels_last=1),
    "global pool": pool("QLinearGlobalAveragePool", (2, 8, 7, 7), channels_last=0),
    "global pool channels last": pool("QLinearGlobalAveragePool", (2, 7, 7, 8), channels_last=1),
    "softmax last": softmax(-1, 13),
    "softmax in the middle": softmax(1, 13),
    "old softmax": softmax(1, 12),
    "old softmax of all": softmax(0, 11),
    "concat": Operator("QLinearConcat", [(2, 5), (2, 3), (2, 4)], attributes={"axis": 1}),
    "where": Operator("QLinearWhere", [(5, 20), (5, 20)]),
}


#: onnxruntime has no kernel of int8 by uint8.
CASES = [(name, kind) for name, o in OPERATORS.items() for kind in ("u8", "s8") if (kind, o.weight) != ("s8", "u8")]


@pytest.mark.newest
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_operator(name: str, kind: str) -> None:
    """At most 1 LSB from onnxruntime's integer kernel, on few elements: see the derivation in the pass's ``keeps``.

    s_x·s_w·Σ differs by about 2^-24·√K relative between the two forms, so of the integers no share above √K·2^-24·256 ≈ 10^-4
    (K ≤ 72 here) lies close enough to a boundary to change; sizes here are below 10^3, so two per case are an error.
    """
    operator = dataclasses.replace(OPERATORS[name], kind=kind)
    source = operator.model()
    model = model_of(source)
    assert run_pipeline(model, "convert-qoperators", hooks=[VerifyEach()]).modified
    assert not any(op.startswith(("QLinear", f"{MICROSOFT}::")) for op in operators(model))
    for seed in range(3):
        feed = feed_of(source, seed)
        before, after = run(source, feed)["y_quantized"], run(model, feed)["y_quantized"]
        assert before.dtype == after.dtype
        difference = np.abs(before.astype(int) - after)
        assert difference.max() <= 1
        assert np.count_nonzero(difference) <= 1
        assert len(np.unique(before)) > 8, f"the case does not use its range: {np.unique(before)}"


MOVES = {
    "transpose": "Transpose<perm: ints = [0,2,3,1]>(i)", "reshape": "Reshape(i, flat)", "flatten": "Flatten(i)",
    "slice": "Slice(i, one, two, one)", "squeeze": "Squeeze(i, nought)", "unsqueeze": "Unsqueeze(i, nought)",
    "tile": "Tile(i, twice)", "expand": "Expand(i, wide)", "gather": "Gather<axis: int = 2>(i, two)",
    "gather elements": "GatherElements(i, zeros)", "gather nd": "GatherND(i, zeros2)", "identity": "Identity(i)",
    "max pool": "MaxPool<kernel_shape: ints = [2,2], pads: ints = [1,1,0,0]>(i)",
    "depth to space": "DepthToSpace<blocksize: int = 2>(i)", "resize": 'Resize<mode: string = "nearest">(i, "", doubled)',
    "pad": "Pad(i, pads)", "pad with": "Pad(i, pads, filler)", "pad edge": 'Pad<mode: string = "reflect">(i, pads)',
    "reduce max": "ReduceMax(i, two)", "max": "Max(i, i)", "concat": "Concat<axis: int = 1>(i, i)", "where": "Where(cond, i, i)",
    "reverse": "ReverseSequence<batch_axis: int = 0, time_axis: int = 1>(i, four)", "compress": "Compress<axis: int = 3>(i, keep)",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("name", MOVES)
def test_movement_keeps_integers(name: str, kind: str) -> None:
    """What only moves integers gives the same integers, bit for bit."""
    source = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1,4,3,3] x) => ({kind}[A] j, float[B] y)
        <float s = {{0.1}}, {kind} z = {{9}}, {kind} filler = {{3}}, int64[2] flat = {{-1, 2}}, int64[1] one = {{1}}, int64[1] two = {{2}},
         int64[1] nought = {{0}}, int64[4] twice = {{1, 2, 1, 2}}, int64[4] wide = {{2, 4, 3, 3}}, int64[1,1,1,2] zeros = {{0, 0}},
         int64[1,2] zeros2 = {{0, 1}}, float[4] doubled = {{1, 1, 2, 2}}, int64[8] pads = {{0,0,1,0,0,0,0,1}}, bool[1,4,1,3] cond =
         {{1,0,1,1,0,1,1,0,1,0,0,1}}, int64[1] four = {{4}}, bool[3] keep = {{1,0,1}}> {{
          [q] i = QuantizeLinear(x, s, z) [move] j = {MOVES[name]} [dq] y = DequantizeLinear(j, s, z) }}"""
    )
    for value in source.graph.output:
        value.type.tensor_type.ClearField("shape")
    feed = feed_of(source)
    try:
        before = run(source, feed)
    except UnsupportedError as refusal:  # what onnxruntime has no kernel for has no integers to keep
        pytest.skip(f"onnxruntime does not run it on integers: {refusal}")
    model = model_of(source)
    assert run_pipeline(model, "convert-qoperators", hooks=[VerifyEach()]).modified
    moved = next(node for node in model.graph if node.name == "move")
    data = moved.inputs[1 if name == "where" else 0]
    assert data is not None
    maker = data.producer()
    assert maker is not None
    assert maker.op_type == "DequantizeLinear"
    after = run(model, feed)
    for output, array in before.items():
        assert array.dtype == after[output].dtype
        assert np.array_equal(array, after[output]), output


#: Weights of 7 bits: by larger ones onnxruntime multiplies uint8 exactly on some processors alone.
SEVEN_BITS = {"reduce_range": True}
STATIC: dict[str, dict[str, Any]] = {
    "u8s8": SEVEN_BITS,
    "s8 per channel": {"activation_type": QuantType.QInt8, "per_channel": True},
    "u8u8": {"weight_type": QuantType.QUInt8},
    "symmetric": {"activation_type": QuantType.QInt8, "extra_options": {"ActivationSymmetric": True}},
    "per channel": {**SEVEN_BITS, "per_channel": True},
}


@pytest.mark.parametrize("case", STATIC)
def test_static_files(case: str, tmp_path: Path) -> None:
    """A whole net of onnxruntime's: no quantized operator but Q and DQ is left, and the outputs are those of the integer form.

    Every operator may be off by 1 LSB; with this seed none is, so the outputs are equal.
    """
    source = quantized_static(tmp_path / "q.onnx", **STATIC[case])
    listed = {t.tensor: t.encoding for t in integer_tensors(model_of(source))}
    model = model_of(source)
    report = run_pipeline(model, "convert-qoperators", hooks=[VerifyEach()])
    assert not [change for change in report.changes if change.is_skip]
    assert not any("QLinear" in op or "QGemm" in op for op in operators(checked(model)))
    assert integer_tensors(model) == []
    for value in model.graph.initializers.values():
        assert value.uses() or value.is_graph_output(), f"{value.name} is left over"
    floats = {node.name for node in net(NET % 17).graph.node}
    assert {node.name for node in model.graph if "uantize" not in node.op_type} <= floats | {"split_quant"}
    for seed in range(3):
        feed = feed_of(source, seed)
        before, after = run(source, feed), run(model, feed)
        for name, array in before.items():
            assert np.array_equal(array, after[name]), f"{name}: {np.abs(array - after[name]).max()}"
    pairs = {pair.tensor: pair.encoding for pair in qdq_pairs(model)}
    for tensor, encoding in listed.items():
        assert pairs[tensor] == encoding, tensor


@pytest.mark.parametrize("level", ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_files_that_onnxruntime_optimized(level: str, per_channel: bool, tmp_path: Path) -> None:
    """A QDQ model as onnxruntime saves it after its optimizer: QLinear operators, with channels last at the highest level. Each may
    round one element to the other side; with this seed one does, in the last of them: 1 LSB of the output."""
    narrow = SEVEN_BITS if per_channel else {}  # weights by tensor are small enough here
    source = quantized_static(tmp_path / "q.onnx", quant_format=QuantFormat.QDQ, per_channel=per_channel, **narrow)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx")
    model = model_of(optimized)
    assert any("QLinear" in op for op in operators(model))
    report = run_pipeline(model, "convert-qoperators", hooks=[VerifyEach()])
    assert not [change for change in report.changes if change.is_skip]
    assert not any(word in op for op in operators(model) for word in ("QLinear", "QGemm", "Nhwc"))
    (last,) = [pair.encoding for pair in qdq_pairs(model) if pair.tensor == "y1"]
    assert last is not None
    feed = feed_of(optimized)
    before, after = run(optimized, feed), run(model, feed)
    assert np.array_equal(before["best"], after["best"])
    # the output is (q − z)·s with one rounding, so two of them one step apart differ by s·(1 + 2^-15) at most for |q − z| ≤ 255
    assert np.abs(before["y"] - after["y"]).max() <= last.scale[0] * (1 + 2.0**-15)


def test_resize_between_pixels() -> None:
    """onnxruntime truncates where it interpolates between integers: at most 1 LSB, and the float form is nearer to the truth."""
    source = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[1,2,5,5] x) => (float[1,2,8,11] y)
        <float s = {0.02}, uint8 z = {7}, float[4] by = {1, 1, 1.7, 2.3}> { [q] i = QuantizeLinear(x, s, z)
        [resize] j = Resize<mode: string = "linear">(i, "", by) [dq] y = DequantizeLinear(j, s, z) }"""
    )
    model = model_of(source)
    run_pipeline(model, "convert-qoperators", hooks=[VerifyEach()])
    feed = feed_of(source)
    steps = np.rint((run(source, feed)["y"] - run(model, feed)["y"]) / np.float32(0.02))
    assert set(np.unique(steps)) == {-1.0, 0.0}


@pytest.mark.parametrize("opset", [11, 13, 21])
def test_static_files_of_other_opsets(opset: int, tmp_path: Path) -> None:
    text = """<ir_version: 7, opset_import: ["" : %d]> g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
      [conv] c = Conv<pads: ints = [1,1,1,1]>(x, w, b) [leaky] y = LeakyRelu(c) }"""
    source = quantized_static(tmp_path / "q.onnx", text % opset, per_channel=True, **SEVEN_BITS)
    assert source.opset_import[0].version == opset
    model = model_of(source)
    run_pipeline(model, "convert-qoperators", hooks=[VerifyEach()])
    dequantizers = [node for node in model.graph if node.op_type == "DequantizeLinear" and "axis" in node.attributes]
    assert {node.domain for node in dequantizers} == {MICROSOFT if opset < 13 else ""}
    feed = feed_of(source)
    assert np.array_equal(run(source, feed)["y"], run(checked(model), feed)["y"])


DYNAMIC: dict[str, dict[str, Any]] = {
    "int8": SEVEN_BITS,
    "uint8 per channel": {**SEVEN_BITS, "per_channel": True, "weight_type": QuantType.QUInt8},
    "activations too": {**SEVEN_BITS, "extra_options": {"MatMulConstBOnly": False, "ForceQuantizeNoInputCheck": True}},
}


@pytest.mark.newest
@pytest.mark.parametrize("case", DYNAMIC)
def test_dynamic_files(case: str, tmp_path: Path) -> None:
    """Products of integers become products of floats: int32 sums of at most 18 products of 8 bits are exact, the floats round each
    product and sum, 20·2^-24 of the largest. An LSTM's activations are no longer rounded to 8 bits in every step: 2^-6 of 1."""
    source = quantized_dynamic(tmp_path / "q.onnx", **DYNAMIC[case])
    model = model_of(source)
    report = run_pipeline(model, "convert-qoperators", hooks=[VerifyEach()])
    assert not [change for change in report.changes if change.is_skip]
    assert not any("Integer" in op or MICROSOFT in op or op == "Cast" for op in operators(checked(model)))
    feed = feed_of(source)
    before, after = run(source, feed), run(model, feed)
    for name, array in before.items():
        bound = 2.0**-6 if name == "h" else 20 * 2.0**-24 * np.abs(array).max()
        assert np.abs(array - after[name]).max() <= bound, name


@pytest.mark.parametrize("make", ["static", "dynamic"])
def test_nothing_quantized_is_left(make: str, tmp_path: Path) -> None:
    """The pipeline of ``qdq remove --all``: the float net again, with the dequantized weights."""
    path = tmp_path / "q.onnx"
    options: dict[str, Any] = {"activation_type": QuantType.QInt8, "extra_options": {"ActivationSymmetric": True}}
    source = quantized_static(path, **options) if make == "static" else quantized_dynamic(path)
    model = model_of(source)
    text = "convert-qoperators,unpack-matmul-nbits{weights=float},remove-dynamic-quantization,remove-qdq"
    run_pipeline(model, text, hooks=[VerifyEach()])
    assert not any(
        word in op for op in operators(checked(model)) for word in ("uantize", "QLinear", "QGemm", "Integer")
    )
    assert not [
        v.name for v in model.graph.initializers.values() if v.dtype is not None and v.dtype.name.endswith("INT8")
    ]


def test_fused_attention_and_embedding() -> None:
    """QAttention and QEmbedLayerNormalization become their float twins; weights are read per column."""
    random = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (int32[1,4] ids) => (float[1,4,8] y) {
      [emb_quant] e, mask = com.microsoft.QEmbedLayerNormalization(ids, "", words_quantized, places_quantized, "", gamma_quantized,
        beta_quantized, "", ws, ps, "", gs, bs, wz, pz, "", gz, bz)
      [q] e_quantized, es, ez = DynamicQuantizeLinear(e)
      [att_quant] y = com.microsoft.QAttention<num_heads: int = 2>(e_quantized, w_quantized, bias, es, s, "", ez, z) }"""
    tensors: dict[str, Any] = {
        "words_quantized": random.integers(0, 256, (10, 8)), "places_quantized": random.integers(0, 256, (6, 8)),
        "gamma_quantized": random.integers(0, 256, 8), "beta_quantized": random.integers(0, 256, 8),
    }  # fmt: skip
    tensors = {name: array.astype(np.uint8) for name, array in tensors.items()}
    tensors |= {f"{k}s": np.float32(0.01 + 0.01 * i) for i, k in enumerate("wpgb")}
    tensors |= {f"{k}z": np.uint8(100 + i) for i, k in enumerate("wpgb")}
    tensors |= {"w_quantized": random.integers(-SAFE, SAFE + 1, (8, 24)).astype(np.int8), "z": np.zeros(24, np.int8)}
    tensors |= {
        "s": random.uniform(0.01, 0.02, 24).astype(np.float32),
        "bias": random.normal(0, 1, 24).astype(np.float32),
    }
    source = parsed(text, tensors)
    model = model_of(source)
    assert {t.tensor: t.kind for t in integer_tensors(model)} == {
        "words": "weight", "places": "weight", "gamma": "weight", "beta": "weight", "e": "activation", "w": "weight",
    }  # fmt: skip
    run_pipeline(model, "convert-qoperators", hooks=[VerifyEach()])
    assert f"{MICROSOFT}::EmbedLayerNormalization" in operators(model)
    assert f"{MICROSOFT}::Attention" in operators(model)
    feed = {"ids": np.array([[1, 5, 9, 2]], np.int32)}
    before, after = run(source, feed)["y"], run(model, feed)["y"]
    # sums of 8 products, a softmax of 4 and a normalization, each rounding to 2^-24 relative of values up to 10: 2^-16 leaves 2^4
    assert np.abs(before - after).max() <= 2.0**-16 * np.abs(before).max()
