"""learn-rounding: samples from the quantized prefix, never worse than rounding to the nearest, the same bytes again; what it wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import ENCODING
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.weighted_layers import weighted_layers
from qdq_passes.recover.look.learning import LayerSamples, Learned, Start, learn
from qdq_passes.recover.look.rounding import Grid

import qdqtool
from qdqtool.calibrate.statistics import Statistics
from qdqtool.io.models.save import serialize
from qdqtool.quantization.learning import LayersAt
from qdqtool.runtime.session import open_session
from qdqtool.verbs.planned import Planned
from tests.cases.cli_helpers import cli
from tests.cases.small_models import model
from tests.cases.small_nets import small_net
from tests.golden_messages.refusal import refusal
from tests.unit.recover.test_layer_statistics import LAYERS, layer_model
from tests.unit.recover.test_round_weights import grid_of

Array = npt.NDArray[Any]
ROOT = Path(__file__).parents[3]
DIGITS, DATA = str(ROOT / "qdqtool/_demo/digits.onnx"), str(ROOT / "qdqtool/_demo/calib.npz")
TRAINED = ROOT / "sample_models/trained"


def grid(high: int, scale: float) -> Grid:
    return Grid(scale=np.float32(scale), zero=np.zeros(()), low=-high, high=high, dtype=np.dtype(np.float32))


def learned(rows: Array, samples: LayerSamples, steps: Grid, *, is_free: bool = True) -> tuple[Start, Learned]:
    nearest = np.clip(np.rint(rows / steps.scale), steps.low, steps.high)
    start = Start(
        rows=rows, nearest=nearest, bias=np.zeros(rows.shape[:2]), grid=steps,
        stored=(lambda b: np.clip(np.rint(b * 8) / 8, -4, 4)) if is_free else None,
    )  # fmt: skip
    return start, learn(start, samples)


def error(samples: LayerSamples, values: Array, bias: Array) -> float:
    z = samples.inputs @ np.swapaxes(values, 1, 2) + bias[:, None]
    z = z if samples.added is None else z + samples.added
    off = np.clip(z, samples.low, samples.high) - np.clip(samples.wanted, samples.low, samples.high)
    return float((off**2).mean())


FLOATS = st.floats(-4, 4, width=32)


@given(
    x=arrays.arrays(np.float64, (2, 24, 3), elements=FLOATS),
    wanted=arrays.arrays(np.float64, (2, 24, 2), elements=FLOATS),
    rows=arrays.arrays(np.float64, (2, 2, 3), elements=FLOATS),
    high=st.sampled_from([1, 7, 127]),
    ends=st.sampled_from([(-np.inf, np.inf), (0.0, np.inf), (0.0, 1.0), (-1.0, 2.0)]),
    held=st.sampled_from([0, 6, 24]),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_never_worse_than_the_nearest(
    x: Array, wanted: Array, rows: Array, high: int, ends: tuple[float, float], held: int, flags: tuple[bool, bool]
) -> None:
    """Whatever is read and wanted: the errors told are those of the integers, of which none is off the grid."""
    added = wanted[:, ::-1] if flags[0] else None
    samples = LayerSamples(inputs=x, wanted=wanted, added=added, low=ends[0], high=ends[1], held=held)
    steps = grid(high, 4 / high)
    start, found = learned(rows, samples, steps, is_free=flags[1])
    assert found.after <= found.before
    assert np.array_equal(found.integers, np.clip(np.rint(found.integers), -high, high))
    assert flags[1] or not found.bias.any()
    assert np.array_equal(found.bias, np.rint(found.bias * 8) / 8)
    assert found.before == pytest.approx(error(samples, steps.values(start.nearest), start.bias), abs=1e-9, rel=1e-9)
    assert found.after == pytest.approx(error(samples, steps.values(found.integers), found.bias), abs=1e-9, rel=1e-9)


def test_a_cut_off_output_asks_for_nothing() -> None:
    """Of relu(x·w) with deep values below 0 the regression without the cut is far off, with it the weight is found."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 400, 6))
    true = np.rint(random.standard_normal((1, 4, 6)) * 40) / 64
    z = x @ np.swapaxes(true, 1, 2)
    wanted = np.where(z < 0, 20 * z, z)
    samples = LayerSamples(inputs=x, wanted=wanted, low=0.0, held=100)
    found = learned(true / 2, samples, grid(127, 1 / 64))[1]
    without = learned(true / 2, replace(samples, low=-np.inf), grid(127, 1 / 64))[1]
    assert found.after < found.before / 10
    assert found.after < error(samples, without.integers / 64, without.bias) / 10


@pytest.mark.product(cover=("name",))
@pytest.mark.parametrize("kind", ["int8 pow2", "int4 axis"])
@pytest.mark.parametrize("name", [n for n, (_, w, _) in LAYERS.items() if len(w) > 1 and "batched" not in n])
def test_every_form_of_layer(name: str, kind: str) -> None:
    """What onnxruntime computes with the result is off by no more than with rounding to the nearest."""
    made, data = layer_model(*LAYERS[name])
    made.opset_imports[""], made.ir_version = 21, 10
    weight, feed = constant_array(made.graph.initializers["w"]), {"x": data}
    assert weight is not None
    ENCODING.set(made.graph.initializers["w"], grid_of(kind, weight))
    reference = copy_model(made)
    run_pipeline(made, "insert-qdq")
    wanted, plain = open_session(reference).run(feed)["y"], open_session(made).run(feed)["y"]
    report = run_pipeline(
        made, "learn-rounding{statistics=@statistics made=none}",
        inputs={"statistics": LayersAt(made, reference, [feed, feed])},
    )  # fmt: skip
    found = open_session(made).run(feed)["y"]
    assert ((found - wanted) ** 2).sum() <= ((plain - wanted) ** 2).sum() * (1 + 1e-5)  # sums of float32
    assert report.modified or weight.size < 20


TWO = """g (float[N,2] x) => (float[N,2] y) <float[2,2] v = {1.4, 0, 0, 1.4}, float[2,2] w = {0.7, 0, 0, 0.7}, float s = {1}, int8 z = {0}> {
  [qv] a = QuantizeLinear(v, s, z) [dv] b = DequantizeLinear(a, s, z) [qw] c = QuantizeLinear(w, s, z) [dw] d = DequantizeLinear(c, s, z)
  [one] t = MatMul(x, b) [two] u = MatMul(t, d) [add] y = Add(u, x) }"""
FLOAT = "g (float[N,2] x) => (float[N,2] y) <float[2,2] v = {1.4, 0, 0, 1.4}, float[2,2] w = {0.7, 0, 0, 0.7}> { [one] t = MatMul(x, v) [two] u = MatMul(t, w) [add] y = Add(u, x) }"
OPSET = '<ir_version: 10, opset_import: ["" : 21]>\n'


def test_layers_see_what_the_layers_before_give() -> None:
    """Each is asked for once what is before it is chosen; the block's end is the sum, what is added that of the quantized model."""
    quantized, reference = model(OPSET + TWO), model(OPSET + FLOAT)
    x = np.array([[1, 2], [3, -1]], np.float32)
    source = LayersAt(quantized, reference, [{"x": x}])
    one = source.get("one")
    assert one is not None
    assert np.array_equal(one.inputs[0], x)
    assert one.added is None
    np.testing.assert_allclose(one.wanted[0], 1.4 * x, rtol=1e-6)
    quantized.graph.initializers["v"].const_value = ir.tensor(np.float32([[3, 0], [0, 3]]), name="v")
    two = source.get("two")
    assert two is not None
    assert np.array_equal(two.inputs[0], 3 * x)
    assert two.added is not None
    assert np.array_equal(two.added[0], x)
    np.testing.assert_allclose(two.wanted[0], 1.98 * x, rtol=1e-6)
    assert source.get("three") is None


def test_memory_bounds_the_samples() -> None:
    """With less memory than one sample takes, one sample."""
    quantized, reference = model(OPSET + TWO), model(OPSET + FLOAT)
    feeds = [{"x": np.full((2, 2), i, np.float32)} for i in range(8)]
    for memory, samples in ((1, 1), (1 << 20, 8)):
        source = LayersAt(quantized, reference, feeds, memory=memory)
        one = source.get("one")
        assert one is not None
        assert (source.samples, one.inputs.shape) == (samples, (1, 2 * samples, 2))
        assert one.held == 2 * (samples // 4)


def test_it_learns_the_same_again(tmp_path: Path) -> None:
    """Twice the same bytes; and from the statistics, without data, by `quantize` and by `opt`."""
    ranges, statistics = tmp_path / "r.json", tmp_path / "s.npz"
    options: dict[str, Any] = {"preset": "xint8", "learn_rounding": True, "no_provenance": True}
    stages: list[str] = []
    net, data = small_net("gated", tmp_path)
    first = qdqtool.quantize(
        net, tmp_path / "1.onnx", data=data, save_statistics=statistics,
        progress=lambda stage, done, total: stages.append(stage), **options,
    )  # fmt: skip
    first.quantization.ranges.write(ranges)
    assert stages.count("learning rounding") == len(weighted_layers(first.model))
    again = qdqtool.quantize(net, data=data, **options)
    assert serialize(again.model).SerializeToString() == serialize(first.model).SerializeToString()
    qdqtool.quantize(net, tmp_path / "2.onnx", ranges=ranges, statistics=statistics, **options)
    assert (tmp_path / "2.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()
    text = tmp_path / "pipeline.txt"
    text.write_text(str(first.quantization.plan.pipeline), encoding="utf-8")
    bound = ["--ranges", str(ranges), "--statistics", str(statistics), "--no-provenance"]
    cli("opt", net, "-p", f"@{text}", *bound, "-o", str(tmp_path / "3.onnx"))
    assert (tmp_path / "3.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()
    assert first.quantization.statistics is not None
    assert Statistics.read(statistics).sha256 == first.quantization.statistics.sha256


def test_the_plan() -> None:
    """It takes the place of the two others; stored weights are folded behind it."""
    plan = Planned(preset="xint8", learn_rounding=True, round_weights=True, correct_bias=True).plan()
    assert str(plan.materialise).endswith(",learn-rounding{statistics=@statistics made=int8}")
    text = str(Planned(preset="w4-g32", learn_rounding=True).plan().materialise)
    assert text.endswith("learn-rounding{statistics=@statistics narrow=false},fold-weight-qdq")
    text = str(Planned(preset="xint8", learn_rounding=True, integer_io=True).plan().materialise)
    assert text.endswith(",learn-rounding{statistics=@statistics made=int8},integer-io")  # the samples are floats


def test_without_data() -> None:
    with refusal(UsageError):
        qdqtool.quantize(DIGITS, preset="w8", learn_rounding=True)
    with refusal(UsageError):
        qdqtool.quantize(DIGITS, preset="w8", learn_rounding=True, data=iter([]))
    with refusal(UsageError):
        LayersAt(model(OPSET + TWO), model(OPSET + FLOAT), [{"x": np.zeros((1, 2), np.int8)}]).get("one")


def test_a_depthwise_net_wins_back_what_one_scale_costs() -> None:
    """Plain XINT8 loses more than three points (9 of 97.7 %); of what it loses at least 80 % come back, without another option."""
    with np.load(TRAINED / "mobilenet_test.npz") as test:
        feed, labels = {"input": test["input"]}, test["labels"]

    def accuracy(made: ir.Model) -> float:
        (y,) = open_session(made).run(feed).values()
        return float((y.argmax(1) == labels).mean())

    net, data = TRAINED / "mobilenet.onnx", str(TRAINED / "mobilenet_calib.npz")
    whole = accuracy(qdqtool.load(net))
    plain, found = (
        accuracy(qdqtool.quantize(net, preset="xint8", data=data, learn_rounding=learns).model)
        for learns in (None, True)
    )
    assert whole - plain > 0.03
    assert found - plain >= 0.8 * (whole - plain)


def test_a_bias_that_cannot_change_stays() -> None:
    """Two layers share it: the weight is learned for the bias as it is."""
    text = """g (float[N,2] x) => (float[N,1] y, float[N,1] u) <float[1,2] v = {0.4, 0.4}, float[1] b = {1}, float s = {1}, int8 z = {0}> {
      [q] i = QuantizeLinear(v, s, z) [d] w = DequantizeLinear(i, s, z)
      [qb] j = QuantizeLinear(b, s, z) [db] c = DequantizeLinear(j, s, z)
      [one] y = Gemm<transB: int = 1>(x, w, c) [two] t = Relu(x) [three] u = Gemm<transB: int = 1>(t, b2, c) }"""
    made = model(OPSET + text.replace("float s = {1}", "float[1,2] b2 = {1, 1}, float s = {1}"))
    x = np.array([[1, 1], [2, 2], [-3, -3]], np.float32)
    samples = LayerSamples(inputs=x[None], wanted=(0.9 * x[None, :, :1] + 2).astype(np.float32))
    run_pipeline(made, "learn-rounding{statistics=@statistics}", inputs={"statistics": {"one": samples}})
    bias, weight = (constant_array(made.graph.initializers[name]) for name in "bv")
    assert bias is not None
    assert weight is not None
    assert (bias.tolist(), weight.sum()) == ([1.0], 1.0)
    assert Encoding.per_tensor(ir.DataType.INT8, 1.0).scale == (1.0,)
