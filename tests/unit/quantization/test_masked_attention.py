"""Masks of attentions as exporters write them, quantized with nothing said: hidden keys have no share, scores keep their steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qdqtool
from qdqtool.comparison.cumulative import activation_pairs, read_for
from qdqtool.runtime.session import open_session
from qdqtool.runtime.taps import Taps
from tests.cases.cli_helpers import write

#: What makes `masked` of `scores`, by the exporter's habit; `seen` is 1 where a key is seen, `bias` a table of relative positions.
IDIOMS = {
    "sum": "c = Cast<to: int = 9>(seen)  m = Where(c, zero, lowest)  masked = Add(scores, m)",
    "choice": "c = Cast<to: int = 9>(seen)  masked = Where(c, scores, lowest)",
    "factor": "f = Cast<to: int = 1>(seen)  n = Sub(one, f)  m = Mul(n, tenthousand)  masked = Add(scores, m)",
    "two masks": """c = Cast<to: int = 9>(seen)  m = Where(c, zero, lowest)  a = Where(causal, scores, lowest)
                    masked = Add(a, m)""",
    "bias": "c = Cast<to: int = 9>(seen)  m = Where(c, zero, lowest)  b = Add(bias, m)  masked = Add(scores, b)",
    "kept finite": """c = Cast<to: int = 9>(seen)  m = Where(c, zero, lowest)  a = Add(scores, m)  masked = Max(a, lowest)""",
    "moved": """c = Cast<to: int = 9>(seen)  m = Where(c, zero, lowest)  u = Unsqueeze(m, first)  e = Expand(u, wide)
                 q = Squeeze(e, first)  masked = Add(scores, q)""",
    "guarded": "c = Cast<to: int = 9>(seen)  m = Where(c, zero, lowest)  masked = Add(scores, m)",
}
#: Rows in which the last three keys are hidden, or none is.
HIDDEN = 3


def attention(idiom: str, lowest: str) -> str:
    guard = "n1 = IsNaN(p)  w = Where(n1, zero, p)" if idiom == "guarded" else "w = Identity(p)"
    return f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[8,16] x, int64[1,8] seen) => (float[8,16] y)
        <float zero = {{0}}, float one = {{1}}, float lowest = {{{lowest}}}, float tenthousand = {{-1e4}}, int64[1] first = {{0}},
         int64[3] wide = {{1, 8, 8}}, bool[8,8] causal = {{{", ".join(["1"] * 64)}}},
         float[8,8] bias = {{{", ".join(str(k % 5 / 4) for k in range(64))}}}> {{
          t = Transpose<perm = [1, 0]>(x)
          scores = MatMul(x, t)
          {IDIOMS[idiom]}
          p = Softmax<axis: int = -1>(masked)
          {guard}
          y = MatMul(w, x)
        }}"""


def feed(*, hidden: int) -> dict[str, np.ndarray]:
    """Eight tokens, the last of them padding."""
    x = np.random.default_rng(7).normal(0, 0.5, (8, 16)).astype(np.float32)
    return {"x": x, "seen": (np.arange(8) < 8 - hidden).astype(np.int64)[np.newaxis]}


@pytest.mark.parametrize(("preset", "lowest"), [("xint8", "-inf"), ("a8w8", "-3.4e38")])
@pytest.mark.parametrize("idiom", IDIOMS)
@pytest.mark.parametrize("hidden", [HIDDEN, 0])
def test_hidden_keys_have_no_share(tmp_path: Path, idiom: str, lowest: str, preset: str, hidden: int) -> None:
    """Calibrated without a hidden key, too: the constants of the graph tell what else may come."""
    path = write(tmp_path / "m.onnx", attention(idiom, lowest))
    given = feed(hidden=HIDDEN)
    reference = open_session(str(path)).run(given)["y"]
    warned: list[str] = []
    done = qdqtool.quantize(str(path), preset=preset, data=[feed(hidden=hidden)], warn=warned.append)
    assert not any("range reaches" in text for text in warned)
    shares = read_for("p", activation_pairs(done.model))
    found = Taps(done.model, [shares, "y"]).run(given)
    assert not found[shares][:, -HIDDEN:].any()
    assert found[shares][:, :-HIDDEN].any(axis=1).all()
    error = found["y"] - reference
    # masked scores lie in about [-12, 9]: steps of 1/8 at most, shares within e^(1/16), 6.4 % squared is 0.4 %; five times that for
    # what is quantized around them
    assert np.square(error).sum() < 0.02 * np.square(reference).sum()
