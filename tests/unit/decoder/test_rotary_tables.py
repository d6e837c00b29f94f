"""Cosines and sines from tables: the decoders of exporters compute the same bits with and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import load
from qdqtool.llm.plan.specializations import Specialization
from qdqtool.llm.plan.splitting import SplitPlan, split_model
from qdqtool.runtime.session import RUNTIME, compute, open_session

ROOT = Path(__file__).parents[3]
DECODERS = {
    "dynamo": ROOT / "sample_models/tiny_llama.onnx",
    "dynamo_anon": ROOT / "tests/data/decoders/llama_dynamo_anon/model.onnx",
    "optimum": ROOT / "tests/data/decoders/gemma2_optimum/model.onnx",
}
CONTEXT = 24
SHAPES = (Specialization.of(1, 8, CONTEXT), Specialization.of(1, 1, CONTEXT))


def trigonometry(model: ir.Model) -> int:
    """How many cosines and sines are computed."""
    return sum(node.op_type in ("Cos", "Sin") for node in model.graph)


def feed_of(model: ir.Model, seed: int) -> dict[str, Any]:
    """Random ids and caches; positions anywhere in the context."""
    rng, session = np.random.default_rng(seed), open_session(model)
    feed: dict[str, Any] = {}
    for name in session.input_names:
        shape, dtype = session.input_shapes[name], session.input_dtypes[name]
        assert dtype is not None
        drawn = rng.integers(0, 40, shape) if dtype.kind in "iu" else rng.standard_normal(shape)
        if name in ("last_index", "past_seq_len"):
            drawn = np.full(shape, max(SHAPES[0].seq_len, 1) - 1 if name == "past_seq_len" else 0)
        if name == "position_ids":
            drawn = rng.permutation(CONTEXT)[: drawn.size].reshape(drawn.shape)
        if name == "cache_index":
            drawn = np.array([7])
        feed[name] = drawn.astype(dtype)
    return feed


@pytest.mark.product(extra=1)
@pytest.mark.parametrize("source", DECODERS)
def test_split_decoders_compute_the_same_bits(source: str) -> None:
    plain, tabulated = (
        split_model(load(DECODERS[source]), SplitPlan(specializations=SHAPES, tabulate_angles=tabulate)).graphs
        for tabulate in (False, True)
    )
    contents = set()
    for before, after in zip(plain, tabulated, strict=True):
        assert trigonometry(before.model) > 0
        assert trigonometry(after.model) == 0
        contents.add(tuple(sorted(_tables(after.model).items())))
        for seed in range(3):
            feed = feed_of(before.model, seed)
            wanted, found = open_session(before.model).run(feed), open_session(after.model).run(feed)
            for name, value in wanted.items():
                np.testing.assert_array_equal(found[name], value, err_msg=f"{name}, seed {seed}")
    assert len(contents) == 1, "prefill and decode have the same tables under the same names"


@pytest.mark.product(extra=1)
@pytest.mark.parametrize("source", ["index", "last-slot"])
def test_positions_of_one_number_a_row(source: str) -> None:
    graphs = split_model(load(DECODERS["dynamo"]), SplitPlan(specializations=SHAPES)).graphs
    for graph in graphs:
        counted = run_pipeline(graph.model, f"derive-positions{{source={source}}},infer-shapes", copy=True).model
        text = f"tabulate-rotary-angles{{context={CONTEXT} compute=@{RUNTIME}}}"
        after = run_pipeline(counted, text, inputs={RUNTIME: compute}, copy=True).model
        assert (trigonometry(counted), trigonometry(after)) == (2, 0)
        feed = feed_of(counted, 0)
        wanted, found = open_session(counted).run(feed), open_session(after).run(feed)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_numpy_differs_in_the_last_bits_at_most() -> None:
    graph = split_model(load(DECODERS["dynamo"]), SplitPlan(specializations=SHAPES)).graphs[0]
    exact, close = (
        run_pipeline(
            graph.model, f"tabulate-rotary-angles{{context={CONTEXT}{option}}}", inputs={RUNTIME: compute}, copy=True
        ).model
        for option in (f" compute=@{RUNTIME}", "")
    )
    for (name, one), (other_name, other) in zip(_tables(exact).items(), _tables(close).items(), strict=True):
        assert name == other_name
        # two cosines in float32, each off by at most 2^-23 of 1
        a, b = (np.frombuffer(data, np.float32) for data in (one, other))
        np.testing.assert_allclose(a, b, rtol=0, atol=2 * 2.0**-23)


def _tables(model: ir.Model) -> dict[str, bytes]:
    """Name → bytes of the tables."""
    return {
        name: value.const_value.numpy().tobytes()
        for name, value in model.graph.initializers.items()
        if name.endswith("_table") and value.const_value is not None
    }
