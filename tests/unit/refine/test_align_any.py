"""Alignment of scales that are no powers of two: whole encodings are copied, and what belongs to a tensor comes along."""

from __future__ import annotations

import pytest
from qdq_passes import dump, run_pipeline
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.qdq.look.pairs import encoding_of, qdq_pairs

from tests.cases.small_models import model


def encodings(text: str, pipeline: str) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Tensor → (scale, zero point) after ``pipeline``, and what it reports."""
    graph = model(text)
    report = run_pipeline(graph, pipeline, hooks=[VerifyEach()])
    found = {}
    for pair in qdq_pairs(graph):
        encoding = pair.encoding
        assert encoding is not None
        assert pair.q is None or encoding_of(pair.q) == encoding
        found[pair.tensor] = (encoding.scale[0], float(encoding.zero_point[0]))
    before = dump(graph)
    assert not run_pipeline(graph, pipeline).modified
    assert dump(graph) == before
    return found, [str(change) for change in report.changes]


HEAD = """g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float s1 = {0.75}, uint8 z1 = {3}, float s2 = {1.5}, uint8 z2 = {9},
  float s3 = {3.5}, uint8 z3 = {20}, int64[4] shape = {1,1,2,8}, int64[4] back = {1,1,4,4}, int64[4] b = {0,0,0,0}, int64[4] e = {1,1,4,4}>"""
X = "[qx] xi = QuantizeLinear(x, s1, z1) [dx] xd = DequantizeLinear(xi, s1, z1)"
Y = "[qy] yi = QuantizeLinear(t, s3, z3) [dy] y = DequantizeLinear(yi, s3, z3)"


def test_what_shares_the_scale_comes_along() -> None:
    """A Reshape before the Pad shares the scale of x."""
    text = f"""{HEAD} {{ {X} [r] u = Reshape(xd, shape) [qu] ui = QuantizeLinear(u, s1, z1) [du] ud = DequantizeLinear(ui, s1, z1)
      [r2] v = Reshape(ud, back) [pad] t = Pad(v, p) {Y} }}""".replace(
        "int64[4] b =", "int64[8] p = {0,0,0,0,0,0,0,0}, int64[4] b ="
    )
    found, report = encodings(text, "align-pad{scales=any}")
    assert found == dict.fromkeys(("x", "u", "t"), (3.5, 20))
    assert len(report) == 2


def test_pools_and_slices_go_with_the_input() -> None:
    text = f"""{HEAD} {{ {X} [pool] u = MaxPool<kernel_shape: ints = [1,1]>(xd) [qu] ui = QuantizeLinear(u, s2, z2)
      [du] ud = DequantizeLinear(ui, s2, z2) [slice] t = Slice(ud, b, e) {Y} }}"""
    found, _ = encodings(text, "align-pool{scales=any},align-slice{scales=any}")
    assert found == dict.fromkeys(("x", "u", "t"), (0.75, 3))


def test_a_chain_of_pools_arrives_in_one_run() -> None:
    text = f"""{HEAD} {{ {X} [one] u = MaxPool<kernel_shape: ints = [1,1]>(xd) [qu] ui = QuantizeLinear(u, s2, z2)
      [du] ud = DequantizeLinear(ui, s2, z2) [two] t = MaxPool<kernel_shape: ints = [1,1]>(ud) {Y} }}"""
    assert encodings(text, "align-pool{scales=any}")[0] == dict.fromkeys(("x", "u", "t"), (0.75, 3))


def test_a_tensor_that_only_reads_an_equal_constant_stays() -> None:
    text = f"""{HEAD} {{ {X} [pool] u = MaxPool<kernel_shape: ints = [1,1]>(xd) [qu] ui = QuantizeLinear(u, s3, z3)
      [du] ud = DequantizeLinear(ui, s3, z3) [neg] t = Neg(ud) {Y} }}"""
    found, report = encodings(text, "align-pool{scales=any}")
    assert found == {"x": (0.75, 3), "u": (0.75, 3), "t": (3.5, 20)}
    assert report[0].endswith("its old scale stays with t")


def test_a_bias_in_the_accumulator_follows() -> None:
    """The input of the Conv takes the scale of the Concat beside it, 1.125: s_x·s_w becomes 1.125·0.5."""
    text = """g (float[1,1,1,1] x) => (float[1,2,1,1] y, float[1,1,1,1] v) <float s1 = {0.75}, float s2 = {1.125}, int8 z = {0},
      float sw = {0.5}, int8[1,1,1,1] w = {4}, float sb = {0.375}, int32[1] b = {100}>
    { [qx] xi = QuantizeLinear(x, s1, z) [dx] xd = DequantizeLinear(xi, s1, z) [cat] t = Concat<axis: int = 1>(xd, xd)
      [qy] yi = QuantizeLinear(t, s2, z) [dy] y = DequantizeLinear(yi, s2, z) [dw] wd = DequantizeLinear(w, sw)
      [db] bd = DequantizeLinear(b, sb) [conv] v = Conv(xd, wd, bd) }"""
    found, report = encodings(text, "align-concat{scales=any}")
    assert found == {"x": (1.125, 0), "t": (1.125, 0), "w": (0.5, 0), "b": (0.5625, 0)}
    assert report[-1].startswith("edit b: follows s_x·s_w of conv")


@pytest.mark.parametrize("option", ["", "{scales=any}"])
def test_aligned_scales_stay(option: str) -> None:
    text = f"{HEAD} {{ {X} [pool] t = MaxPool<kernel_shape: ints = [1,1]>(xd) {Y.replace('s3', 's1').replace('z3', 'z1')} }}"
    found, report = encodings(text, f"align-pool{option}")
    assert found == dict.fromkeys(("x", "t"), (0.75, 3))
    assert [line for line in report if not line.startswith("skip")] == []


def test_scales_per_axis_are_left_alone() -> None:
    text = """g (float[1,2,1,1] x) => (float[1,2,1,1] y) <float[2] s1 = {0.75, 0.5}, float s2 = {1.5}, int8[2] z1 = {0, 0}, int8 z = {0}>
    { [qx] xi = QuantizeLinear(x, s1, z1) [dx] xd = DequantizeLinear(xi, s1, z1) [pool] t = GlobalAveragePool(xd)
      [qy] yi = QuantizeLinear(t, s2, z) [dy] y = DequantizeLinear(yi, s2, z) }"""
    graph = model(text)
    assert [str(change) for change in run_pipeline(graph, "align-pool{scales=any}").changes] == [
        "skip pool: x has 2 scales"
    ]
