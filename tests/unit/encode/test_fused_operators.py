"""Operators recognised in their pieces: every order and grouping there is, and the numbers before and after."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.encode.edit.whole_groups import whole_groups
from qdq_passes.pipeline.pipeline import Report, run_pipeline

from qdqtool.runtime.session import open_session
from tests.architecture.places import ROOT
from tests.cases.small_models import model

#: Ours in float32: roundings of 2^-24 on values up to 4 times max|y|, a handful of them.
CLOSE = 2.0**-20
X = np.random.default_rng(7).uniform(-4, 4, (6, 16)).astype(np.float32)


def header(opset: int, x: str = "float[6,16] x", y: str = "float[6,16] y") -> str:
    return f'<ir_version: {8 if opset < 19 else 11}, opset_import: ["" : {opset}]> g ({x}) => ({y})'


def run(graph: ir.Model, x: npt.NDArray[np.float32] = X) -> npt.NDArray[np.float32]:
    y: npt.NDArray[np.float32] = open_session(graph).run({"x": x})["y"]
    return y


def fused(text: str, pipeline: str, operator: str) -> None:
    """The graph becomes the one operator, which computes the same; with ``into=group`` one group of all its nodes."""
    graph = model(text)
    before, count = run(graph), len(graph.graph)
    report = run_pipeline(graph, pipeline)
    assert [node.op_type for node in graph.graph] == [operator], said(report)
    after = run(graph)
    assert np.abs(after - before).max() <= CLOSE * np.abs(before).max()
    again = model(text)
    run_pipeline(again, f"{pipeline}{{into=group}}")
    (group,) = whole_groups(again)
    assert len(group.nodes) == count
    assert group.operator == operator
    assert run(again).tobytes() == before.tobytes()


def said(report: Report) -> str:
    return "\n".join(str(change) for change in report.changes)


# Gelu: x, 1 + erf and the half in every order and grouping, each product either way round.
ARGUMENTS = ("Div(x, root)", "Mul(x, inverse)", "Mul(inverse, x)")
SUMS = ("Add(e, one)", "Add(one, e)")
ORDERS = [
    (a, b, c, grouping) for a, b, c in itertools.permutations(("x", "p", "half")) for grouping in ("left", "right")
]


@pytest.mark.parametrize("order", ORDERS, ids=["-".join(order) for order in ORDERS])
def test_gelu_in_every_order(order: tuple[str, str, str, str]) -> None:
    a, b, c, grouping = order
    result = f"m = Mul({a}, {b}) y = Mul(m, {c})" if grouping == "left" else f"m = Mul({b}, {c}) y = Mul({a}, m)"
    for argument, total in itertools.product(ARGUMENTS, SUMS):
        constants = "float root = {1.4142135}, float inverse = {0.70710677}, float one = {1}, float half = {0.5}"
        fused(f"{header(20)} <{constants}> {{ q = {argument} e = Erf(q) p = {total} {result} }}", "fuse-gelu", "Gelu")


# LayerNormalization: each step in each of its ways.
SQUARES = ("s = Pow(d, two)", "s = Mul(d, d)")
ROOTS = {
    "div": "r = Sqrt(e) n = Div(d, r)",
    "reciprocal": "r = Sqrt(e) i = Reciprocal(r) n = Mul(d, i)",
    "one over": "r = Sqrt(e) i = Div(one, r) n = Mul(i, d)",
    "power": "i = Pow(e, minus) n = Mul(d, i)",
    "power and div": "r = Pow(e, half) n = Div(d, r)",
}
AFFINE = {
    "both": "t = Mul(n, gamma) y = Add(t, beta)",
    "turned": "t = Mul(gamma, n) y = Add(beta, t)",
    "scale": "y = Mul(n, gamma)",
    "shift": "y = Add(n, beta)",
    "none": "y = Identity(n)",
}
NORM_CONSTANTS = (
    "float two = {2}, float one = {1}, float half = {0.5}, float minus = {-0.5}, float eps = {0.00001}, int64[1] last = {-1}, "
    f"float[16] gamma = {{{', '.join(str(1 + i / 8) for i in range(16))}}}, float[16] beta = {{{', '.join(str(i / 4 - 2) for i in range(16))}}}"
)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_layer_norm_in_every_way(root: str, affine: str, opset: int) -> None:
    mean = "ReduceMean<axes: ints = [-1]>({})" if opset < 18 else "ReduceMean({}, last)"
    for square in SQUARES:
        body = f"m = {mean.format('x')} d = Sub(x, m) {square} v = {mean.format('s')} e = Add(v, eps) {ROOTS[root]} {AFFINE[affine]}"
        fused(f"{header(opset)} <{NORM_CONSTANTS}> {{ {body} }}", "fuse-layer-norm", "LayerNormalization")


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("scale", ["y = Mul(n, gamma)", "y = Mul(gamma, n)", "y = Identity(n)"])
def test_rms_norm_in_every_way(root: str, scale: str) -> None:
    body = f"d = Identity(x) s = Mul(d, x) v = ReduceMean(s, last) e = Add(eps, v) {ROOTS[root]} {scale}"
    graph = model(f"{header(23)} <{NORM_CONSTANTS}> {{ {body} }}")
    before = run(graph)
    report = run_pipeline(graph, "fuse-rms-norm")
    assert [node.op_type for node in graph.graph] == ["RMSNormalization"], said(report)
    assert np.abs(run(graph) - before).max() <= CLOSE * np.abs(before).max()


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
def test_groups_at_every_opset(opset: int) -> None:
    """Where ONNX has no operator yet the nodes stay, bit for bit, and are one group each."""
    mean = "ReduceMean<axes: ints = [-1]>({})" if opset < 18 else "ReduceMean({}, last)"
    total = "ReduceSum<axes: ints = [-1]>({})" if opset < 13 else "ReduceSum({}, last)"
    constants = NORM_CONSTANTS + ", float root = {1.4142135}, float three = {3}, float zero = {0}, float six = {6}"
    body = f"""m = {mean.format("x")} d = Sub(x, m) s = Pow(d, two) v = {mean.format("s")} e = Add(v, eps) r = Sqrt(e)
      n = Div(d, r) t = Mul(n, gamma) a = Add(t, beta) q = Div(a, root) f = Erf(q) p = Add(f, one) g = Mul(a, p) b = Mul(g, half)
      b2 = Mul(b, b) bm = {mean.format("b2")} be = Add(bm, eps) br = Sqrt(be) bi = Reciprocal(br) bn = Mul(b, bi) c = Mul(bn, gamma)
      cs = Sigmoid(c) h = Mul(c, cs) hp = Add(h, three) hc = Clip(hp, zero, six) hm = Mul(h, hc) k = Div(hm, six)
      k2 = Mul(k, k) kt = {total.format("k2")} km = Max(kt, eps) kr = Sqrt(km) y = Div(k, kr)"""
    graph = model(f"{header(opset)} <{constants}> {{ {body} }}")
    before = run(graph)
    passes = ("layer-norm", "rms-norm", "instance-norm", "l2-norm", "gelu", "silu", "hard-swish")
    run_pipeline(graph, "give-names," + ",".join(f"fuse-{name}{{into=group}}" for name in passes))
    assert [group.operator for group in whole_groups(graph)] == [
        "LayerNormalization", "Gelu", "RMSNormalization", "Swish", "HardSwish", "LpNormalization",
    ]  # fmt: skip
    assert sum(len(group.nodes) for group in whole_groups(graph)) == len(graph.graph)
    assert run(graph).tobytes() == before.tobytes()
    run_pipeline(graph, ",".join(f"fuse-{name}" for name in passes))
    assert len(whole_groups(graph)) == 6  # what is a group stays one, whatever the opset has


def test_a_row_of_zeros_stays_zero() -> None:
    """With an ε zeros are divided by it; LpNormalization says 0 for them."""
    graph = model(
        f"{header(18)} <float eps = {{1e-12}}, int64[1] last = {{-1}}> {{ l = ReduceL2(x, last) c = Clip(l, eps) y = Div(x, c) }}"
    )
    x = X.copy()
    x[2] = 0
    before = run(graph, x)
    run_pipeline(graph, "fuse-l2-norm")
    assert [node.op_type for node in graph.graph] == ["LpNormalization"]
    after = run(graph, x)
    assert not after[2].any()
    assert np.abs(after - before).max() <= CLOSE


def test_float16_is_as_close_as_its_roundings() -> None:
    """Three roundings to float16 (n, n·γ, + β), 2^-11 of values up to twice max|y| each, before; one behind."""
    half = [np.float16(v).view(np.uint16) for v in np.linspace(-2, 2, 16)]
    numbers = f"{{{', '.join(str(v) for v in half)}}}"
    constants = (
        f"float16[16] gamma = {numbers}, float16[16] beta = {numbers}, float two = {{2}}, float eps = {{0.00001}}"
    )
    body = """w = Cast<to: int = 1>(x) m = ReduceMean<axes: ints = [-1]>(w) d = Sub(w, m) s = Pow(d, two)
      v = ReduceMean<axes: ints = [-1]>(s) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) h = Cast<to: int = 10>(n) t = Mul(h, gamma)
      y = Add(t, beta)"""
    graph = model(f"{header(17, 'float16[6,16] x', 'float16[6,16] y')} <{constants}> {{ {body} }}")
    x = X.astype(np.float16)
    before = run(graph, x).astype(np.float64)  # type: ignore[arg-type]
    run_pipeline(graph, "fuse-layer-norm")
    assert [node.op_type for node in graph.graph] == ["LayerNormalization"]
    after = run(graph, x).astype(np.float64)  # type: ignore[arg-type]
    assert np.abs(after - before).max() <= 2 * 4 * 2.0**-11 * np.abs(before).max()


def test_without_a_root_nothing_is_done() -> None:
    graph = model("g (float[2] x) => (float[2] y) <float[2] w = {2, 3}> { t = Mul(x, w) r = Relu(t) y = Add(r, x) }")
    for name in ("layer-norm", "rms-norm", "instance-norm", "l2-norm", "gelu", "silu", "hard-swish"):
        assert not run_pipeline(graph, f"fuse-{name}").changes


def test_the_rewriter_is_not_imported() -> None:
    """Recognising takes no pattern language: onnxscript costs more than the passes do."""
    code = (
        f"import sys; sys.path[:0] = {[str(ROOT / 'passes'), str(ROOT)]!r}\n"
        "from qdq_passes.pipeline.pipeline import run_pipeline\n"
        "from tests.cases.small_models import model\n"
        "graph = model('g (float[2] x) => (float[2] y) { s = Sigmoid(x) y = Mul(x, s) }')\n"
        "print(len(run_pipeline(graph, 'give-names,fuse-silu,fuse-gelu,fuse-layer-norm').changes), 'onnxscript' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False", done.stdout
