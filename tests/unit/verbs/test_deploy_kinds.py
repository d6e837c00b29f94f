"""Kinds of models that a target does not take as they stand, and takes once they are written otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qdqtool
from tests.cases.small_models import model

HEADER, OLD = '<ir_version: 8, opset_import: ["" : 17]>', '<ir_version: 4, opset_import: ["" : 9]>'
#: Kind → (model; shapes of its weights; of its inputs; operators that are gone on vitis_xint8, and on qnn_htp).
KINDS = {
    "recurrent": (
        f"""{HEADER} g (float[1,6,8] x) => (float[1,4] y) <int64[1] zero = {{0}}> {{
          [turn] t = Transpose<perm = [1, 0, 2]>(x) [gru] , h = GRU<hidden_size: int = 8>(t, w, r)
          [squeeze] s = Squeeze(h, zero) [fc] y = Gemm<transB = 1>(s, v) }}""",
        {"w": (1, 24, 8), "r": (1, 24, 8), "v": (4, 8)}, {"x": (1, 6, 8)}, "GRU", "",
    ),
    "opset 9": (
        f"""{OLD} g (float[N,6,8] x) => (float[N,6,4] y) {{
          [product] p = MatMul(x, w) [sum] q = Add(p, b) [drop] d = Dropout(q) [soft] y = Softmax<axis = 2>(d) }}""",
        {"w": (8, 4), "b": (4,)}, {"x": (1, 6, 8)}, "Dropout", "Dropout",
    ),
    "gate": (
        f"""{HEADER} g (float[1,3,8,8] x) => (float[1,4,8,8] y) <int64[4] shape = {{1, 3, 8, 8}}> {{
          [one] a = Conv(x, w) [pool] p = GlobalAveragePool(a) [gate] g = Sigmoid(p) [expand] e = Expand(g, shape)
          [mul] b = Mul(a, e) [two] y = Conv(b, v) }}""",
        {"w": (3, 3, 1, 1), "v": (4, 3, 1, 1)}, {"x": (1, 3, 8, 8)}, "Expand", "Expand",
    ),
    "turned": (
        f"""{HEADER} g (float[1,3,8,8] x) => (float[1,8,8,4] y) {{
          [one] a = Conv(x, w) [turn] b = Einsum<equation = "nchw->nhwc">(a) [two] y = MatMul(b, v) }}""",
        {"w": (3, 3, 1, 1), "v": (3, 4)}, {"x": (1, 3, 8, 8)}, "Einsum", "Einsum",
    ),
    "subtracted mask": (
        f"""{HEADER} g (float[1,8,16] x, float[1,1,8] m) => (float[1,8,16] y) <float big = {{1e30}}> {{
          [q] q = MatMul(x, w) [k] k = MatMul(x, v) [t] t = Transpose<perm = [0, 2, 1]>(k) [s] s = MatMul(q, t)
          [mask] b = Mul(m, big) [sub] c = Sub(s, b) [soft] p = Softmax(c) [o] y = MatMul(p, x) }}""",
        {"w": (16, 16), "v": (16, 16)}, {"x": (1, 8, 16), "m": (1, 1, 8)}, "Sub", "Sub",
    ),
    "large pool": (
        f"""{HEADER} g (float[1,3,16,16] x) => (float[1,4,4,4] y) {{
          [one] a = Conv(x, w) [relu] b = Relu(a)
          [pool] c = AveragePool<kernel_shape = [4, 4], strides = [4, 4]>(b) [out] y = Relu(c) }}""",
        {"w": (4, 3, 1, 1)}, {"x": (1, 3, 16, 16)}, "", "AveragePool",
    ),
    "elements": (
        f"""{HEADER} g (float[1,3,2,2] x, float[1,1,2,2] u) => (float[1,4,2,2] y) <int64[1,1,2,2] places = {{2,2,2,1}}> {{
          [one] a = Conv(x, w) [scatter] b = ScatterElements<axis = 1>(a, places, u) [two] y = Conv(b, v) }}""",
        {"w": (3, 3, 1, 1), "v": (4, 3, 1, 1)}, {"x": (1, 3, 2, 2), "u": (1, 1, 2, 2)}, "ScatterElements", "",
    ),
    "computed places": (
        f"""{HEADER} g (float[1,4,8] x) => (float[1,4,8] y) <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}> {{
          [one] a = MatMul(x, w) [shape] s = Shape(a) [size] n = Gather(s, two) [range] r = Range(zero, n, one)
          [mod] i = Mod(r, two) [all] e = Expand(i, s) [elements] h = GatherElements<axis = 2>(a, e) [last] y = MatMul(h, v) }}""",
        {"w": (8, 8), "v": (8, 8)}, {"x": (1, 4, 8)}, "GatherElements", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["vitis_xint8", "qnn_htp"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_it_runs_on_the_npu(kind: str, target: str, tmp_path: Path) -> None:
    text, weights, inputs, *gone = KINDS[kind]
    random = np.random.default_rng(5)
    given = {name: random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32) for name, shape in weights.items()}
    data = {name: random.normal(size=(8, *shape[1:])).astype(np.float32) for name, shape in inputs.items()}
    if "m" in data:  # two keys are hidden
        data["m"] = np.broadcast_to(np.arange(8) > 5, data["m"].shape).astype(np.float32)
    np.savez(tmp_path / "data.npz", **data)
    found = qdqtool.deploy(
        model(text, given), data=str(tmp_path / "data.npz"), target=target, output=tmp_path / "out", require_npu=1.0
    )
    assert not found.missed
    assert [finding["rule"] for finding in found.checked.findings if finding["level"] != "note"] == []
    assert found.comparison.min_sqnr is not None
    assert found.comparison.min_sqnr > 20
    operator = gone[target == "qnn_htp"]
    assert operator not in {node.op_type for node in found.quantized.model.graph}
