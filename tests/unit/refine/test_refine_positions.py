"""What refinement makes of a model: rounds, what moves along, stored integers, prices; strict and as the reference does it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes import dump, run_pipeline
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.histogram import Histogram
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.qdq.look.pairs import qdq_pairs
from qdq_passes.refine.look.shifts import violations

from tests.cases.positioned import places_of, positioned
from tests.cases.small_models import model


def refined(graph: ir.Model, options: str = "", **inputs: object) -> tuple[dict[str, int], list[str]]:
    """Positions after refine-positions, and what it reports."""
    text = f"refine-positions{{{options}}}" if options else "refine-positions"
    report = run_pipeline(graph, text, inputs=inputs, hooks=[VerifyEach()])
    return places_of(graph), [str(change) for change in report.changes]


def integers(graph: ir.Model, name: str) -> list[int]:
    """The stored integers called ``name``."""
    array = constant_array(graph.graph.initializers[name])
    assert array is not None
    return [int(i) for i in array.ravel()]


def test_rounds_until_nothing_changes() -> None:
    """The Mul lowers an input of the Concat that was aligned before it: the second round finds it."""
    nodes = ["mul: t = Mul(x, k)", "n: n = Neg(x)", "cat: y = Concat<axis: int = 1>(t, n)"]
    graph = positioned(nodes, {"x": 4, "k": 4, "t": 10, "n": 9, "y": 9}, outputs=["y"])
    # round 1: the Concat brings t to 9, the product of 4 + 4 then to 8
    assert refined(graph)[0] == {"x": 4, "k": 4, "t": 8, "n": 8, "y": 8}
    assert violations(graph) == []
    assert refined(graph)[1] == []


def test_the_order_of_the_steps_matters() -> None:
    """Alignment first: the shift of the Conv is within limits only before the pool behind it lowers the output."""
    nodes = ["conv: t = Conv(x, w)", "pool: y = MaxPool<kernel_shape: ints = [2,2]>(t)"]
    graph = positioned(nodes, {"x": 4, "w": 12, "t": 2, "y": -2}, outputs=["y"])
    assert refined(graph)[0] == {"x": 4, "w": 10, "t": -2, "y": -2}


CONFLICT = ["mul: t = Mul(x, k)", "hs: y = HardSigmoid<alpha: float = 0.16666667>(t)"]


@pytest.mark.parametrize("options", ["", "reference=true stored=keep"])
def test_two_steps_that_contradict_each_other(options: str) -> None:
    """The product of −4 and −4 is at −8, a hard sigmoid reads from 0 on: the last to write wins, and the other is told.

    Values spread over ±16 have 10·log10(12·16²/3) = 30.1 dB at steps of 1, 18.1 more at 1/8, and 0 dB at 256, where all are 0.
    """
    graph = positioned(CONFLICT, {"x": -4, "k": -4, "t": 3, "y": 8}, outputs=["y"])
    places, report = refined(graph, options)
    assert places == {"x": -4, "k": -4, "t": 0, "y": 8}
    assert [line for line in report if line.startswith("move")] == [
        "move t: position 3 → -8 (adjust-shift-write of mul: sum of inputs − output is -11, limits [0, 32]); price ~48.1 dB",
        "move t: position -8 → 0 (adjust-hard-sigmoid of hs: input -8, output 8; limits: input in [0, 15], output from 7 to below "
        "input + 14); price ~-30.1 dB",
    ]
    left = "skip mul: adjust-shift-write: sum of inputs − output is -8, limits [0, 32]; left so after "
    assert [line for line in report if line.startswith(left)]
    before = dump(graph)
    assert not run_pipeline(graph, f"refine-positions{{{options}}}" if options else "refine-positions").modified
    assert dump(graph) == before


def test_the_reference_does_not_look_again_after_a_mul() -> None:
    nodes = ["mul: t = Mul(x, k)", "n: n = Neg(x)", "cat: y = Concat<axis: int = 1>(t, n)"]
    places = {"x": 1, "k": 1, "t": 5, "n": 5, "y": 5}
    aligned = {"x": 1, "k": 1, "t": 2, "n": 2, "y": 2}
    for options, wanted in (
        ("", aligned),
        ("reference=true", {**aligned, "n": 5, "y": 5}),
        ("loops=1", {**aligned, "n": 5, "y": 5}),
    ):
        assert refined(positioned(nodes, places, outputs=["y"]), options)[0] == wanted


def test_a_bias_of_two_layers_moves_for_both() -> None:
    nodes = ["one: t = Conv(x, w1, b)", "two: y = Conv(t, w2, b)"]
    places = {"x": 4, "w1": 6, "b": -9, "t": 4, "w2": 6, "y": 4}
    for options in ("", "reference=true"):
        graph = positioned(nodes, places, outputs=["y"])
        assert refined(graph, options)[0] == {**places, "b": -5}
        assert [pair.tensor for pair in qdq_pairs(graph)].count("b") == 1


def test_a_chain_that_shares_a_scale_moves_whole() -> None:
    nodes = ["r: u = Reshape(x, shape)", "t: v = Transpose(u)", "slice: y = Slice(v, starts, ends)"]
    constants = ["int64[4] shape = {1,1,2,8}", "int64[4] starts = {0,0,0,0}", "int64[4] ends = {1,1,2,2}"]
    for options in ("", "reference=true"):
        graph = positioned(
            nodes, {"x": 6, "u": 6, "v": 6, "y": 2}, outputs=["y"], scales={"u": "x", "v": "x"}, constants=constants
        )
        places, report = refined(graph, options)
        assert places == {"x": 2, "u": 2, "v": 2, "y": 2}
        assert [line.rpartition("; ")[2] for line in report] == ["with it x, u"]
        assert "x_scale" in graph.graph.initializers
        assert "u_scale" not in graph.graph.initializers


def test_a_constant_that_unrelated_tensors_share() -> None:
    """A file with deduplicated constants: only what the pool ties moves, and the others keep the initializer."""
    nodes = ["pool: t = MaxPool<kernel_shape: ints = [2,2]>(x)", "neg: y = Neg(t)"]
    places = {"x": 5, "t": 3, "y": 5}
    graph = positioned(nodes, places, outputs=["y"], scales={"y": "x"})
    assert refined(graph)[0] == {"x": 3, "t": 3, "y": 5}
    graph = positioned(nodes, places, outputs=["y"], scales={"y": "x"})
    assert refined(graph, "reference=true")[0] == {"x": 3, "t": 3, "y": 3}


@pytest.mark.parametrize("reference", ["true", "false"])
def test_a_scale_that_something_computes_with_is_copied(reference: str) -> None:
    graph = model(
        """g (float[1,1,2,2] x) => (float[1,1,2,2] y, float[1,1,2,2] v) <float s = {0.125}, float r = {0.5}, int8 z = {0}>
        { [q] i = QuantizeLinear(x, s, z) [d] a = DequantizeLinear(i, s, z) [p] o = MaxPool<kernel_shape: ints = [1,1]>(a)
          [q2] j = QuantizeLinear(o, r, z) [d2] y = DequantizeLinear(j, r, z) [m] v = Mul(x, s) }"""
    )
    assert refined(graph, f"reference={reference}")[0] == {"x": 1, "o": 1}
    factor = next(node for node in graph.graph if node.op_type == "Mul").inputs[1]
    assert constant_array(factor) == np.float32(0.125)


@pytest.mark.parametrize("reference", ["true", "false"])
def test_scales_in_constant_nodes(reference: str) -> None:
    graph = model(
        """g (float[1,1,2,2] x) => (float[1,1,2,2] y) {
          [c] s = Constant<value: tensor = float {0.125}>() [c2] r = Constant<value: tensor = float {0.5}>()
          [c3] z = Constant<value: tensor = int8 {0}>()
          [q] i = QuantizeLinear(x, s, z) [d] a = DequantizeLinear(i, s, z) [p] o = MaxPool<kernel_shape: ints = [1,1]>(a)
          [q2] j = QuantizeLinear(o, r, z) [d2] y = DequantizeLinear(j, r, z) }"""
    )
    assert refined(graph, f"reference={reference}")[0] == {"x": 1, "o": 1}


CONV = ["conv: y = Conv(x, w, b)"]
COARSER = {"x": 4, "w": 14, "b": 30, "y": 0}


def test_stored_integers_are_requantized() -> None:
    """w: 64·2^-14 = 16·2^-12; b: at least −min(0, 16 − 16) below 16, 32·2^-30 is 0 at 2^-16."""
    graph = positioned(CONV, COARSER, outputs=["y"])
    places, report = refined(graph)
    assert places == {"x": 4, "w": 12, "b": 16, "y": 0}
    assert (integers(graph, "w_quantized"), integers(graph, "b_quantized")) == ([16], [0])
    assert [line.rpartition("; ")[2] for line in report] == ["price 0.0 dB", "exact before, 0.0 dB now"]


def test_stored_integers_are_kept() -> None:
    """Then they stand for other values: w for 4 times as much, an error of 3 times the signal."""
    graph = positioned(CONV, COARSER, outputs=["y"])
    places, report = refined(graph, "stored=keep")
    assert places == {"x": 4, "w": 12, "b": 16, "y": 0}
    assert (integers(graph, "w_quantized"), integers(graph, "b_quantized")) == ([64], [32])
    now = -20 * math.log10(3)
    assert report[0].endswith(f"; exact before, {now:.1f} dB now")


def test_float_weights_stay_float() -> None:
    graph = positioned(CONV, COARSER, outputs=["y"], floats={"w", "b"})
    assert refined(graph)[0] == {"x": 4, "w": 12, "b": 16, "y": 0}
    assert constant_array(graph.graph.initializers["w"]) == np.float32(64 * 2.0**-14)


def test_finer_integers_saturate() -> None:
    """96·2^-1 is 6144 at 2^-7: the largest integer is 127, which the price tells."""
    nodes = ["r: f = Reshape(x, one)", "gemm: y = Gemm(f, m)"]
    graph = positioned(nodes, {"x": 0, "f": 0, "m": 1, "y": 7}, outputs=["y"], constants=["int64[2] one = {16,1}"])
    _, report = refined(graph)
    assert integers(graph, "m_quantized") == [127]
    assert report == [
        "move m: position 1 → 7 (adjust-shift-cut of gemm: weight + input − output is -6, limits [0, 16]); "
        f"exact before, {-20 * math.log10(1 - 127 / 6144):.1f} dB now"
    ]


def test_integers_with_two_scales_are_told_apart() -> None:
    """Two layers store one weight; only one of them needs another scale, and gets integers of its own."""
    graph = model(
        """g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float sx = {0.0625}, float sy = {1}, int8 z = {0},
          int8[1,1,1,1] w = {64}, float s = {0.00006103515625}, float r = {0.00006103515625}>
        { [q] i = QuantizeLinear(x, sx, z) [d] a = DequantizeLinear(i, sx, z) [w1] u = DequantizeLinear(w, s, z)
          [w2] v = DequantizeLinear(w, r, z) [c] t = Conv(a, u) [q2] j = QuantizeLinear(t, sy, z)
          [d2] b = DequantizeLinear(j, sy, z) [e] y = Conv(b, v) }"""
    )
    refined(graph)
    stored = {pair.dq.name: pair.stored for pair in qdq_pairs(graph) if pair.stored is not None}
    found = {name: constant_array(value) for name, value in stored.items()}
    assert {name: array.item() for name, array in found.items() if array is not None} == {"w1": 16, "w2": 64}


BIAS_32 = """g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float sx = {0.0625}, float sy = {1}, int8 z = {0}, int32 zb = {0},
  int8[1,1,1,1] w = {64}, float sw = {0.00006103515625}, int32[1] b = {4096}, float sb = {0.000003814697265625}>
{ [q] i = QuantizeLinear(x, sx, z) [d] a = DequantizeLinear(i, sx, z) [dw] u = DequantizeLinear(w, sw, z)
  [db] v = DequantizeLinear(b, sb, zb) [c] t = Conv(a, u, v) [q2] j = QuantizeLinear(t, sy, z) [d2] y = DequantizeLinear(j, sy, z) }"""


@pytest.mark.parametrize("options", ["", "stored=keep", "reference=true stored=keep"])
def test_a_bias_in_the_accumulator_follows(options: str) -> None:
    """s_x·s_w goes from 2^-18 to 2^-16: 4096 becomes 1024."""
    graph = model(BIAS_32)
    places, report = refined(graph, options)
    assert (places["w"], places["b"]) == (12, 16)
    assert integers(graph, "b") == [1024]
    assert report[-1].startswith("edit b: follows s_x·s_w of c")


def test_weights_start_from_the_file_in_every_round() -> None:
    """Round 1 makes w of c finer, which clips it, as its output is at 9; then the Concat behind lowers that to 0."""
    nodes = [
        "c: t = Conv(x, w)",
        "n: v = Neg(x)",
        "slice: s = Slice(v, starts, ends)",
        "cat: y = Concat<axis: int = 1>(t, s)",
    ]
    constants = ["int64[4] starts = {0,0,0,0}", "int64[4] ends = {1,1,4,4}"]
    places = {"x": 0, "w": 5, "t": 9, "v": 0, "s": 9, "y": 9}
    graph = positioned(nodes, places, outputs=["y"], constants=constants)
    # round 1: Concat 9, Slice 0 and 0, w 9; round 2: Concat 0
    assert refined(graph)[0] == {"x": 0, "w": 5, "t": 0, "v": 0, "s": 0, "y": 0}
    graph = positioned(nodes, places, outputs=["y"], constants=constants)
    assert refined(graph, "reference=true")[0] == {"x": 0, "w": 9, "t": 0, "v": 0, "s": 0, "y": 0}


def test_a_reader_that_wants_what_the_tensor_is_made_of_runs_away_in_the_reference_alone() -> None:
    """t = x·x is twice as far below 0 as x, and the Concat wants x at t: in strict mode through a pair of its own."""
    nodes = ["mul: t = Mul(x, x)", "cat: y = Concat<axis: int = 1>(x, t)"]
    places = {"x": -3, "t": -3, "y": -3}
    graph = positioned(nodes, places, outputs=["y"])
    assert refined(graph, "reference=true loops=5")[0]["t"] == -6, "a Mul alone asks for no other round"
    found, report = refined(positioned(nodes, places, outputs=["y"]))
    assert found == {"x": -3, "t": -6, "y": -6, "x_converted": -6}
    assert "insert x: int8, scale 2^6, zero point 0 for cat alone, as mul reads it too" in report


@dataclass(frozen=True)
class Observed:
    low: float
    high: float
    histogram: Histogram | None = None


POOL = ["pool: y = MaxPool<kernel_shape: ints = [2,2]>(x)"]


def price(places: dict[str, int], ranges: dict[str, Observed]) -> str:
    """What the one move of a pool costs."""
    graph = positioned(POOL, places, outputs=["y"])
    _, report = refined(graph, "ranges=@ranges", ranges=ranges)
    return report[0].rpartition("; ")[2]


def test_prices_from_histograms() -> None:
    """What the histogram says of the two encodings, and no estimate."""
    histogram = Histogram()
    histogram.add(np.array([1, 2, 3, 40], np.float32) / 64, 1 / 64, 40 / 64)
    before, after = (histogram.sqnr(Encoding.per_tensor(ir.DataType.INT8, 2.0**-p)) for p in (6, 4))
    assert price({"x": 6, "y": 4}, {"x": Observed(-9, 9, histogram)}) == f"price {before - after:.1f} dB"


def test_prices_from_ranges_are_estimates() -> None:
    """Uniform in ±1: noise s²/12, so one bit is 6.0 dB; in ±100 at position 0 one bit less is 6.0 too, at position 4 it clips."""
    assert price({"x": 6, "y": 5}, {"x": Observed(-1, 1)}) == "price ~6.0 dB"
    assert price({"x": 6, "y": 4}, {"x": Observed(-1, 1)}) == "price ~12.0 dB"
    gained = price({"x": 6, "y": 4}, {"x": Observed(-100, 100)})
    assert gained.startswith("price ~-"), "what was clipped is clipped less"


def test_prices_without_anything() -> None:
    """The range of the encoding in the file."""
    assert price({"x": 6, "y": 5}, {}) == "price ~6.0 dB"


@pytest.mark.parametrize("bad", [Observed(math.nan, 1), Observed(-math.inf, math.inf), Observed(2, 1)])
def test_prices_of_ranges_that_are_none(bad: Observed) -> None:
    assert price({"x": 6, "y": 5}, {"x": bad}) == "price ~6.0 dB"


def test_a_constant_tensor_has_a_price() -> None:
    assert price({"x": 6, "y": 5}, {"x": Observed(0, 0)}) == "price 0.0 dB"
    assert price({"x": 6, "y": 5}, {"x": Observed(1 / 64, 1 / 64)}) == "exact before, 0.0 dB now"


def values_of(graph: ir.Model) -> dict[str, float]:
    """What the stored integers stand for."""
    found = {}
    for pair in qdq_pairs(graph):
        array, encoding = constant_array(pair.stored), pair.encoding
        if pair.q is None and array is not None and encoding is not None:
            found[pair.tensor] = float(dequantize(array, encoding).item())
    return found


def test_requantized_integers_stand_for_the_same_values() -> None:
    """64·2^-14 is exact at 2^-12; the bias is half a step of its new scale away at most."""
    graph = positioned(CONV, COARSER, outputs=["y"])
    before = values_of(graph)
    refined(graph)
    after = values_of(graph)
    assert before["w"] == after["w"] == 2.0**-8
    assert abs(before["b"] - after["b"]) <= 2.0**-17


@pytest.mark.parametrize("loops", [0, 1])
def test_no_rounds_no_moves(loops: int) -> None:
    graph = positioned(POOL, {"x": 6, "y": 5}, outputs=["y"])
    assert refined(graph, f"loops={loops}")[0] == {"x": 6 - loops, "y": 5}
