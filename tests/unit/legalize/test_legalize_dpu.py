"""What imitates the DPU of the Vitis line: which operators it finds, the numbers it writes, its prices, and the way back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.graph.annotate import DEMAND, write_metadata
from qdq_passes.graph.dump import dump
from qdq_passes.graph.uses import all_values, constant_array
from qdq_passes.numerics import dpu
from qdq_passes.numerics.agreement import agreement
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.histogram import Histogram
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import model_of
from tests.cases.small_models import checked, model, run
from tests.suites.steps import SameRange

PARITY = Path(__file__).parents[2] / "data" / "xint8_parity"
EDITS = "round-leaky-relu,sigmoid-to-hard-sigmoid,scale-hard-sigmoid,scale-average-pool,scale-reduce-mean"
REFERENCE = (
    "round-leaky-relu,sigmoid-to-hard-sigmoid,scale-hard-sigmoid{constant=node},scale-average-pool{constant=node reference=true},"
    "scale-reduce-mean{constant=node reference=true}"
)
QUANTIZE = "annotate-encodings{encodings=@ranges},insert-qdq{weights=dq}"
RANGES = {"ranges": SameRange()}

#: Every operator that is edited; a swish and a pool with an activation among them.
NET = """g (float[1,2,9,9] x) => (float[1,2,1,1] y, float[1,2] m) { [leaky] l = LeakyRelu<alpha: float = 0.1>(x) [sg] s = Sigmoid(l)
    [swish] w = Mul(l, s) [pool] p = AveragePool<kernel_shape: ints = [3,3]>(w) [act] r = Relu(p) [gap] y = GlobalAveragePool(r)
    [mean] m = ReduceMean<keepdims: int = 0>(y, axes) }"""
WITH_AXES = NET.replace("float[1,2] m)", "float[1,2] m) <int64[2] axes = {2, 3}>")


@dataclass(frozen=True)
class Seen:
    """An observed range that kept its histogram."""

    low: float
    high: float
    histogram: Histogram | None = None


def counts(graph: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in graph.graph)


def test_the_way_there_and_back() -> None:
    """Edited and undone, with pairs between them and with none, the graph is what it was; only the mark of the pool differs."""
    for pipeline in ("infer-shapes", f"infer-shapes,{QUANTIZE}"):
        before, after = model(WITH_AXES), model(WITH_AXES)
        for graph, edits in (
            (before, ""),
            (after, f",{EDITS.replace(',', '{operators=all},')}{{operators=all}},undo-dpu-edits"),
        ):
            run_pipeline(graph, pipeline + edits, inputs=RANGES, hooks=[VerifyEach()])
        assert wiring(after) == wiring(before)
        x = np.random.default_rng(0).normal(0, 2, (1, 2, 9, 9)).astype(np.float32)
        assert np.array_equal(run(checked(after), {"x": x})["y"], run(before, {"x": x})["y"])


def wiring(graph: ir.Model) -> list[str]:
    """The dump without annotations, and without the initializers, whose order may differ."""
    lines = [line.partition(" ; ")[0] for line in dump(graph).splitlines()]
    return [line for line in lines if " @" in line or line.startswith("graph")]


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21, 23])
def test_edits_compute_what_the_factors_say(opset: int) -> None:
    """Against the float operators times the factors in numpy, bit for bit: each Mul is one float32 product."""
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,2,7,7] x) => (float[1,2,5,5] a, float[1,2,1,1] b, float[1,2,7,7] c)
    {{ [pool] a = AveragePool<kernel_shape: ints = [3,3]>(x) [gap] b = GlobalAveragePool(x)
       [hs] c = HardSigmoid<alpha: float = 0.16666667>(x) }}"""
    x = np.random.default_rng(opset).normal(0, 2, (1, 2, 7, 7)).astype(np.float32)
    before, graph = run(model(text), {"x": x}), model(text)
    run_pipeline(graph, EDITS.replace(",", "{operators=all},") + "{operators=all}", hooks=[VerifyEach()])
    after = run(checked(graph), {"x": x})
    for name, factor in (("a", 63 / 64), ("b", 1029 / 1024), ("c", 1.0001220703125)):
        assert np.array_equal(after[name], before[name] * np.float32(factor))


@pytest.mark.parametrize("side", [*range(1, 17), 23, 255, 256, 300])
def test_the_factor_of_a_window(side: int) -> None:
    """Of an AveragePool and of a GlobalAveragePool over the same window, in an initializer of the pool's type."""
    for dtype, type_ in (("float", np.float32), ("float16", np.float16), ("double", np.float64)):
        graph = model(
            f"g ({dtype}[1,1,{side},{side}] x) => ({dtype}[1,1,1,1] p, {dtype}[1,1,1,1] q)"
            f"{{ p = AveragePool<kernel_shape: ints = [{side},{side}]>(x) q = GlobalAveragePool(x) }}"
        )
        report = run_pipeline(graph, "give-names,scale-average-pool{operators=all}", hooks=[VerifyEach()])
        factor = dpu.pool_factor([side, side])
        assert factor is not None
        for name in ("p_Scale", "q_Scale"):
            array = constant_array(graph.graph.initializers.get(name))
            if array is None:
                assert np.float16(factor) == 1 != factor
                assert "float16 rounds its factor" in str(report.changes)
            else:
                assert array.dtype == type_
                assert array.shape == ()
                assert array == type_(factor)


def test_slopes_round_as_python_does() -> None:
    for k in np.arange(-2.0, 40.0, 0.25):
        alpha = float(np.float32(k / 256))
        assert dpu.rounded_slope(alpha) == round(256 * alpha) / 256


@pytest.mark.parametrize("name", ["a", "c", "d", "f", "n", "o"])
def test_the_reference_makes_as_many_operators(name: str) -> None:
    """Pools, sigmoids, means, slices and the constants beside them, as the reference leaves them on its parity models."""
    graph = model_of(onnx.load(PARITY / f"{name}.onnx"))
    before = "give-names,infer-shapes,remove-unused,split-to-slice{constant=node},reduce-mean-to-global-pool{reference=true},infer-shapes"
    run_pipeline(graph, f"{before},{QUANTIZE},{REFERENCE}", inputs=RANGES, hooks=[VerifyEach()])
    expected = json.loads((PARITY / f"{name}.minmse.json").read_text())["ops"]
    found = counts(graph)
    wanted = (
        "AveragePool",
        "Constant",
        "GlobalAveragePool",
        "HardSigmoid",
        "LeakyRelu",
        "ReduceMean",
        "Sigmoid",
        "Slice",
        "Split",
    )
    assert {op: found[op] for op in wanted} == {op: expected.get(op, 0) for op in wanted}


def price_in(report: str) -> float:
    return float(report.rpartition(" dB")[0].rpartition(", ")[2].lstrip("~"))


@pytest.mark.parametrize(
    ("operator", "pipeline", "old", "new"),
    [
        ("Sigmoid", "sigmoid-to-hard-sigmoid", dpu.sigmoid, dpu.hard_sigmoid),
        ("LeakyRelu<alpha: float = 0.3>", "round-leaky-relu", lambda x: dpu.leaky_relu(x, 0.3), lambda x: dpu.leaky_relu(x, 77 / 256)),
    ],
)  # fmt: skip
def test_the_price_is_that_of_the_data(
    operator: str,
    pipeline: str,
    old: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
    new: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
) -> None:
    """From the histogram: what numpy measures on the data itself, up to the width of a bin, 2^-11 of values up to 4.

    Both functions are Lipschitz with 1/4 and 1, so that noise and signal move by less than 0.1 dB."""
    data = np.random.default_rng(1).normal(0.5, 1, 20000).clip(-4, 4).astype(np.float32)
    histogram = Histogram()
    histogram.add(data, float(data.min()), float(data.max()))
    values = data.astype(np.float64)
    expected = agreement(old(values), new(values)).sqnr_db
    assert expected is not None
    text = f"""g (float[4] x) => (float[4] y) <float s = {{0.03125}}, int8 z = {{0}}>
    {{ [q] i = QuantizeLinear(x, s, z) [dq] d = DequantizeLinear(i, s, z) [op] y = {operator}(d) }}"""
    found: dict[str, str] = {}
    ready = Encoding.per_tensor(ir.DataType.INT8, 1 / 32)
    for ranges in ({"x": Seen(-4, 4, histogram)}, {"x": Seen(-4, 4)}, {}, {"x": ready}):
        report = run_pipeline(model(text), f"{pipeline}{{ranges=@ranges}}", inputs={"ranges": ranges})
        found[str(ranges)] = str(report.changes[0])
    seen, ranged, encoded, encoded_ahead = found.values()
    assert price_in(seen) == pytest.approx(expected, abs=0.1)
    assert "~" not in seen
    assert "~" in ranged
    assert "~" in encoded
    assert encoded_ahead == encoded, "a ready encoding is no range"
    assert price_in(ranged) == pytest.approx(price_in(encoded), abs=0.2)  # ±4 and −4 to 127/32
    assert abs(price_in(ranged) - price_in(seen)) > 0.5  # the data are not spread evenly


def test_a_price_needs_something_known() -> None:
    report = run_pipeline(model(NET.replace(", axes", "")), "sigmoid-to-hard-sigmoid{operators=all}")
    assert "nothing is known of its input" in str(report.changes[0])


def test_excluded_operators_stay() -> None:
    """A pair that stands for its neighbours does not make an operator quantized."""
    graph = model(WITH_AXES)
    quantize = QUANTIZE.replace("@ranges}", '@ranges exclude=["op:Sigmoid","gap","leaky"]}', 1)
    report = run_pipeline(graph, f"infer-shapes,{quantize},{EDITS}", inputs=RANGES, hooks=[VerifyEach()])
    skipped = {change.where for change in report.changes if change.is_skip and "is not quantized" in change.because}
    assert {"sg", "gap", "leaky"} <= skipped
    assert counts(graph)["Sigmoid"] == 1
    assert {node.name for node in graph.graph if node.op_type == "Mul"} == {
        "swish",
        "p_Mul",
        "m_QuantizeLinear_Input_Mul",
    }


def test_annotations_in_a_file_count_too() -> None:
    """Saved with its annotations and read again, the graph tells the same of what is quantized; without them the pair counts."""
    graph = model(WITH_AXES)
    run_pipeline(graph, f"infer-shapes,{QUANTIZE.replace('@ranges}', '@ranges exclude=gap}', 1)}", inputs=RANGES)
    write_metadata(graph)
    for expected in ({"pool"}, {"pool", "gap"}):
        read = model_of(onnx.ModelProto.FromString(ir.to_proto(graph).SerializeToString()))
        if "gap" in expected:
            for value in all_values(read):
                DEMAND.clear(value)
        changes = run_pipeline(read, "scale-average-pool").changes
        assert {c.because.split(" of ")[1].split(",")[0] for c in changes if not c.is_skip} == expected
