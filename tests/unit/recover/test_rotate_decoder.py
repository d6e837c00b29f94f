"""rotate-decoder: the same function within its bound, outliers gone, every way a norm is written; what quantize makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.core.base import Keeps
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.hadamard import block_size, random_signs, rotated
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.weighted_layers import weighted_layers
from qdq_passes.recover.rotate_decoder import BOUND, RotateDecoder

from qdqtool import api
from qdqtool.io.models.load import load
from qdqtool.presets.recovery import Recovery
from qdqtool.quantization.recovery import recovering
from qdqtool.runtime.session import open_session
from tests.cases.cli_helpers import SAMPLES
from tests.cases.random_decoders import VOCABULARY, random_decoder
from tests.cases.small_models import model

Array = npt.NDArray[Any]
LLAMA = SAMPLES / "tiny_llama.onnx"


def _feed(made: ir.Model) -> dict[str, Array]:
    """Twelve tokens and an empty cache."""
    ids = np.random.default_rng(0).integers(0, 1024, (1, 12))
    feed = {"input_ids": ids, "attention_mask": np.ones((1, 12), np.int64), "position_ids": np.arange(12)[None]}
    return feed | {
        v.name or "": np.zeros((1, 2, 0, 32), np.float32) for v in made.graph.inputs if "past" in (v.name or "")
    }


def _largest_weights(made: ir.Model) -> float:
    """The largest channel of what the layers read over the median one, by the weights that read it; the worst layer."""
    found = []
    for layer in weighted_layers(made):
        weight = constant_array(layer.stored)
        assert weight is not None
        size = np.abs(layer.form.rows(weight)[0]).max(axis=0)
        found.append(np.median(size) / max(size.min(), 1e-9))
    return float(max(found))


@pytest.mark.parametrize("before", ["infer-shapes", "inject-outliers", "fuse-rms-norm"])
def test_the_llama_computes_the_same(before: str) -> None:
    """Logits and cache, with norms spelt out and fused, within a 64th of the bound; weights made small for outliers are no more."""
    made = run_pipeline(load(LLAMA), before).model
    hard, expected = _largest_weights(made), open_session(made).run(_feed(made))
    report = run_pipeline(made, "rotate-decoder")
    assert [c.because for c in report.changes] == [
        "a stream of 128 channels rotated in blocks of 128: 21 layers that read it, 8 that add to it"
    ]
    found = open_session(made).run(_feed(made))
    assert list(found) == list(expected)
    for name, values in found.items():
        assert np.abs(values - expected[name]).max() <= BOUND / 64 * np.abs(expected[name]).max(), name
    assert before != "inject-outliers" or _largest_weights(made) < hard / 8


def test_the_bound_is_declared() -> None:
    """`opt --check-data` holds the pass to it."""
    assert isinstance(RotateDecoder.keeps, Keeps)
    assert (RotateDecoder.keeps.numerics, RotateDecoder.keeps.bound) == ("bounded", BOUND)


@given(width=st.integers(1, 96), seed=st.integers(0, 5), rows=st.integers(1, 3))
def test_rotations_are_orthogonal(width: int, seed: int, rows: int) -> None:
    """Q·Qᵀ = I to a rounding of float64 a step, of log2 steps; x·Q of rows is rows times that Q; blocks are powers of two."""
    signs = random_signs(width, seed)
    matrix = rotated(np.eye(width), signs)
    assert np.abs(matrix @ matrix.T - np.eye(width)).max() <= 8 * 2.0**-52
    x = np.random.default_rng(seed).standard_normal((rows, width))
    assert np.abs(rotated(x, signs) - x @ matrix).max() <= width * 2.0**-50
    size = block_size(width)
    assert width % size == 0
    assert size & (size - 1) == 0
    assert np.array_equal(np.abs(matrix) > 0, np.kron(np.eye(width // size), np.ones((size, size))) > 0)


def test_one_outlier_is_spread_evenly() -> None:
    """A row of one number a has ±a/√D everywhere."""
    row = np.zeros((1, 64))
    row[0, 5] = 8.0
    assert np.array_equal(np.abs(rotated(row, random_signs(64, 1))), np.ones((1, 64)))


def test_float64_weights_and_shared_ones() -> None:
    """In float64 equality is to 2^-44; a layer that is applied twice gets its weight once, rotated both ways, in copies."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (int64[3] ids) => (double[3,4] y)
    <double[4,4] table = {1,2,3,4, 5,6,7,8, -1,0,2,5, 3,3,1,0}, double[4,4] w = {1,0,2,0, 0,3,0,1, 1,1,0,0, 2,0,0,1}>
    { [lookup] x = Gather(table, ids) [one] v = MatMul(x, w) [sum] a = Add(x, v) [two] y = MatMul(a, w) }"""
    made = model(text)
    feed = {"ids": np.array([0, 3, 2])}
    expected = open_session(made).run(feed)["y"]
    run_pipeline(made, "rotate-decoder{seed=2}")
    assert np.abs(open_session(made).run(feed)["y"] - expected).max() <= 2.0**-44 * np.abs(expected).max()


def test_the_plan_rotates_first() -> None:
    assert str(recovering(Recovery(rotate=True, equalize="keep"))) == "rotate-decoder,equalize-layers"
    assert Recovery(rotate=True).explain() == [("accuracy recovery", "rotated decoder")]


def test_a_folder_is_rotated_alike(tmp_path: Path) -> None:
    """Prefill and decode share one file of weights again, and run."""
    decoder = random_decoder(tmp_path / "model.onnx", "grouped", layers=1)
    api.split(decoder, tmp_path / "float", prefill=(16,), decode=(1,), context=(32,))
    api.quantize(tmp_path / "float", tmp_path / "rotated", preset="w4-g32", rotate=True)
    assert len(list((tmp_path / "rotated").glob("*.data"))) == 1
    from qdqtool.llm import Session

    logits = Session(tmp_path / "rotated").prefill([40, 50, 60])
    assert logits.shape[-1] == VOCABULARY
