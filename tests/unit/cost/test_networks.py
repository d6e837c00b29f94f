"""What nodes do, the form of networks, and its fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.numerics.missing import MissingTensor

from qdqtool.cost.counting import Count, counted
from qdqtool.cost.network_fit import NetworkFit, Seen, leave_out
from qdqtool.cost.networks import NAMES, amounts_of, log_ms, node_ms
from qdqtool.cost.rows import Row

THETA = np.log(np.linspace(0.01, 0.2, len(NAMES)))


def _graph(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\ng {text}'))


CASES = {
    "a bias, an activation and a batch norm are their layer's": (
        "(float[1,8,4,4] x, float[8,8,1,1] w, float[8] b) => (float[1,8,4,4] y)"
        "{ c = Conv(x, w)  n = BatchNormalization(c, b, b, b, b)  y = Relu(n) }",
        {"Conv": "dense"},
    ),
    "shape arithmetic is computed": (
        "(float[1,8,4,4] x) => (float[1,8,16] y) <int64[1] last = {-1}, int64[1] two = {2}, int64 z = {0}>"
        "{ s = Shape(x)  h = Slice(s, z1, two)  t = Concat <axis = 0> (h, last)  y = Reshape(x, t) }".replace(
            "int64 z = {0}", "int64[1] z1 = {0}"
        ),
        {},
    ),
    "a GELU in its pieces is one function": (
        "(float[1,8] x) => (float[1,8] y) <float r = {1.4142135}, float one = {1.0}, float half = {0.5}>"
        "{ a = Div(x, r)  e = Erf(a)  p = Add(e, one)  m = Mul(x, p)  y = Mul(m, half) }",
        {"Gelu": "function"},
    ),
    "depthwise, and a product of activations": (
        "(float[1,8,4,4] x, float[8,1,3,3] w) => (float[1,8,4,4] y)"
        "{ d = Conv <group = 8, pads = [1, 1, 1, 1]> (x, w)  y = MatMul(d, x) }",
        {"Conv": "depthwise", "MatMul": "product"},
    ),
    "a product on a map is a 1x1 convolution, and channels last are no work": (
        "(float[1,8,4,4] x, float[8,8,1,1] w, float[8,8] m) => (float[1,8,4,4] y)"
        "{ c = Conv(x, w)  l = Transpose <perm = [0, 2, 3, 1]> (c)  p = MatMul(l, m)"
        " y = Transpose <perm = [0, 3, 1, 2]> (p) }",
        {"Conv": "dense"},
    ),
    "the turned keys of heads are moved": (
        "(float[1,16,32] x) => (float[1,4,8,16] y) <int64[4] heads = {1, 16, 4, 8}>"
        "{ h = Reshape(x, heads)  y = Transpose <perm = [0, 2, 3, 1]> (h) }",
        {"Transpose": "move"},
    ),
    "QDQ pairs cost nothing": (
        "(float[1,8] x) => (float[1,8] y) <float s = {0.5}, int8 z = {0}>"
        "{ q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Softmax(d) }",
        {"Softmax": "function"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_are_counted_after_the_folding(case: str) -> None:
    text, wanted = CASES[case]
    model = _graph(text)
    for name in ("w", "b", "m"):  # as exporters have them: weights are constants
        value = next((v for v in model.graph.inputs if v.name == name), None)
        if value is not None:
            value.const_value = ir.tensor(np.ones([int(d) for d in value.shape or ()], np.float32), name=name)
            model.graph.inputs.remove(value)
            model.graph.register_initializer(value)
    counts, uncounted = counted(model)
    assert {count.op: count.kind for count in counts} == wanted
    assert not uncounted


def test_an_order_of_axes_that_there_are_not_moves_all() -> None:
    model = _graph("(float[2,3] x) => (float[3,2] y) { y = Transpose <perm = [0, 2, 1, 3]> (x) }")
    assert [(count.kind, count.writes) for count in counted(model)[0]] == [("move", 6)]


def test_weights_are_counted_by_their_shapes_without_a_file(tmp_path: Path) -> None:
    model = _graph("(float[1,64] x, float[64,512] w) => (float[1,512] y) { y = MatMul(x, w) }")
    value = model.graph.inputs.pop()
    outside = ir.ExternalTensor(
        "left_out.data", 0, 4 * 64 * 512, ir.DataType.FLOAT, shape=ir.Shape([64, 512]), name="w", base_dir=tmp_path
    )
    value.const_value = MissingTensor.of(outside)
    model.graph.register_initializer(value)
    (count,), _ = counted(model)
    assert (count.kind, count.macs, count.weights) == ("dense", 64 * 512, 64 * 512)


COUNTS = st.builds(
    Count,
    name=st.just("n"),
    op=st.sampled_from(["Conv", "MatMul", "Add", "Swish"]),
    kind=st.sampled_from(["dense", "grouped", "depthwise", "product", "move", "elementwise", "function", "pool"]),
    macs=st.integers(0, 10**9),
    weights=st.integers(0, 10**7),
    reads=st.integers(0, 10**7),
    writes=st.integers(0, 10**7),
    width=st.integers(1, 64),
)


@given(st.lists(COUNTS, min_size=1, max_size=5), COUNTS, st.integers(1, 8))
def test_more_work_never_takes_less_time(counts: list[Count], more: Count, batch: int) -> None:
    now, _ = log_ms(THETA, amounts_of(counts, batch))
    assert log_ms(THETA, amounts_of([*counts, more], batch))[0] >= now - 1e-12
    assert log_ms(THETA, amounts_of(counts, batch + 1))[0] >= now - 1e-12


@given(st.lists(COUNTS, min_size=1, max_size=5))
def test_slopes_are_shares_of_the_time(counts: list[Count]) -> None:
    amounts = amounts_of(counts)
    log, slopes = log_ms(THETA, amounts)
    assert slopes.min() >= 0
    assert slopes.sum() == pytest.approx(1)
    assert node_ms(THETA, amounts).sum() == pytest.approx(np.exp(log))
    for at in range(len(THETA)):
        step = np.zeros(len(THETA))
        step[at] = 1e-5
        rise = (log_ms(THETA + step, amounts)[0] - log_ms(THETA - step, amounts)[0]) / 2e-5
        assert slopes[at] == pytest.approx(rise, abs=1e-6)


def _seen(networks: int) -> list[Seen]:
    """Rows of networks on two chips of which the second takes twice as long, w8a8 a third of float."""
    rng = np.random.default_rng(0)
    found = []
    for network in range(networks):
        counts = [
            Count(name=str(k), op="Conv", kind="dense", macs=int(m), weights=int(w), reads=10**5, writes=10**5)
            for k, (m, w) in enumerate(10 ** rng.uniform(5, 8, (20, 2)))
        ]
        amounts = amounts_of(counts)
        ms = float(np.exp(log_ms(THETA, amounts)[0]))
        for chip, slower in (("a", 1), ("b", 2)):
            for precision, factor in (("float", 1), ("w8a8", 1 / 3)):
                row = Row(
                    id="r",
                    model=str(network),
                    stack="qnn_dlc",
                    precision=precision,
                    value=ms * slower * factor,
                    chip=chip,
                )
                found.append(Seen(row, (chip, "qnn_dlc", precision), amounts))
    return found


def test_the_fit_finds_the_speed_of_chips_and_precisions() -> None:
    rows = _seen(6)
    found = NetworkFit(rows)
    for row in rows:
        log, sd = found.log_ms(row.place, row.row.model, row.amounts)
        assert log == pytest.approx(row.log_ms, abs=0.05)
        assert 0.05 < sd < 0.5
    for left in leave_out(rows, precision=False):
        assert abs(left.log_ms - left.seen.log_ms) < 3 * left.sd
