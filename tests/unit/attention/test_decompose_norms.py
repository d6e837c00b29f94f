"""decompose-simplified-layer-norm, decompose-skip-layer-norm and decompose-rotary-embedding, against onnxruntime's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.pipeline.hooks import VerifyEach

from qdqtool.runtime.session import open_session
from tests.cases.small_models import model

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(0)
#: float32: sums of 64 terms in another order, 64·2^-24 of values up to 2^2; float16: three roundings.
BOUND = {np.float32: 2.0**-16, np.float16: 2.0**-9}


def array(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def check(
    text: str, passes: str, weights: dict[str, Array], feed: dict[str, Array], dtype: Any = np.float32
) -> ir.Model:
    """The passes leave no operator of theirs, and the numbers stay; the edited model."""
    weights = {name: value.astype(dtype) for name, value in weights.items()}
    values = {name: value.astype(dtype) if value.dtype == np.float32 else value for name, value in feed.items()}
    edited = model(text, weights)
    assert run_pipeline(edited, passes, hooks=[VerifyEach()]).modified
    assert not {node.op_type for node in edited.graph} & {
        "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "SkipLayerNormalization", "RotaryEmbedding"
    }  # fmt: skip
    expected, got = open_session(model(text, weights)).run(values), open_session(edited).run(values)
    for name, value in expected.items():
        assert got[name].shape == value.shape
        error = np.abs(got[name].astype(np.float32) - value.astype(np.float32)).max()
        assert error <= BOUND[dtype] * np.abs(value).max(), name
    return edited


NORMS = """<ir_version: 11, opset_import: ["" : %d, "com.microsoft" : 1]>
g (float[2,S,64] x, float[2,S,64] k) => (float[2,S,64] y, float[2,S,64] s, float[2,S,64] z, float[2,S,64] w, float[2,S,64] v)
{
  [a] y, "", "", s = com.microsoft.SkipSimplifiedLayerNormalization<epsilon: float = 0.00001>(x, k, g1, b1)
  [b] z = com.microsoft.SkipLayerNormalization<epsilon: float = 0.00001>(y, s, g1, b1, b2)
  [c] w = com.microsoft.SkipSimplifiedLayerNormalization(y, z, g1)
  [d] v = SimplifiedLayerNormalization<axis: int = -1, epsilon: float = 0.00001, stash_type: int = 1>(w, g1)
}"""


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("opset", [17, pytest.param(23, marks=pytest.mark.newest)])
@pytest.mark.parametrize("form", ["auto", "primitives"])
def test_norms(dtype: Any, opset: int, form: str) -> None:
    text = (NORMS % opset).replace("float[", "float16[" if dtype == np.float16 else "float[")
    passes = f"decompose-skip-layer-norm{{form={form}}},decompose-simplified-layer-norm{{form={form}}}"
    weights = {"g1": array(64), "b1": array(64), "b2": array(64)}
    edited = check(text, passes, weights, {"x": array(2, 3, 64), "k": array(2, 3, 64)}, dtype)
    operators = {node.op_type for node in edited.graph}
    assert ("LayerNormalization" in operators) == (form == "auto")
    assert ("RMSNormalization" in operators) == (form == "auto" and opset == 23)


ANGLES = np.arange(20)[:, None] / np.arange(1, 9)
ROTATIONS = {
    "3 axes": ("float[2,S,64] x, int64[2,S] p", "com.microsoft.RotaryEmbedding<interleaved: int = %d>(x, p, c, s)"),
    "4 axes": ("float[2,4,S,16] x, int64[2,S] p", "com.microsoft.RotaryEmbedding<interleaved: int = %d>(x, p, c, s)"),
    "a part": ("float[2,S,64] x, int64[2,S] p", "com.microsoft.RotaryEmbedding<num_heads: int = 2, rotary_embedding_dim: int = 16, interleaved: int = %d>(x, p, c, s)"),
    "first position": ("float[2,S,64] x, int64[1] p", "com.microsoft.RotaryEmbedding<interleaved: int = %d>(x, p, c, s)"),
    "first position, 4 axes": ("float[2,4,S,16] x, int64[1] p", "com.microsoft.RotaryEmbedding<interleaved: int = %d>(x, p, c, s)"),
    "onnx, 3 axes": ("float[2,S,64] x, int64[2,S] p", "RotaryEmbedding<num_heads: int = 4, interleaved: int = %d>(x, c, s, p)"),
    "onnx, 4 axes": ("float[2,4,S,16] x, int64[2,S] p", "RotaryEmbedding<interleaved: int = %d>(x, c, s, p)"),
    "onnx, a part": ("float[2,S,64] x, int64[2,S] p", "RotaryEmbedding<num_heads: int = 2, rotary_embedding_dim: int = 16, interleaved: int = %d>(x, c, s, p)"),
    "onnx, rows": ("float[2,4,S,16] x, float[2,S,8] u, float[2,S,8] w", "RotaryEmbedding<interleaved: int = %d>(x, u, w)"),
}  # fmt: skip


@pytest.mark.newest
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations(name: str, interleaved: int) -> None:
    inputs, call = ROTATIONS[name]
    shape = inputs.split()[0]
    text = f'<ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1]> g ({inputs}) => ({shape} y) {{ [rope] y = {call % interleaved} }}'
    feed = {"x": array(2, 3, 64) if ",64" in shape else array(2, 4, 3, 16)}
    if "[1] p" in inputs:
        feed["p"] = np.array([3])
    elif " p" in inputs:
        feed["p"] = RANDOM.integers(0, 20, (2, 3))
    else:
        feed |= {"u": array(2, 3, 8), "w": array(2, 3, 8)}
    tables = {"c": np.cos(ANGLES).astype(np.float32), "s": np.sin(ANGLES).astype(np.float32)}
    check(text, "decompose-rotary-embedding", tables if "c, s" in call else {}, feed)
