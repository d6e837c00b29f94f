"""Recurrent operators that are written out compute what onnxruntime computes of the operator."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.legalize.unroll_recurrent import GATES, Recurrent
from qdq_passes.numerics.arrays import Array
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.runtime.session import open_session
from tests.cases.small_models import model

STEPS, BATCH, WIDTH, HIDDEN = 7, 2, 5, 6
#: Operator, inputs beside its weights (bias, initial states, peepholes), attributes.
FORMS: list[tuple[Recurrent, str, str]] = [
    ("GRU", "", ""),
    ("GRU", "b h", ""),
    ("GRU", "b", ", linear_before_reset: int = 1"),
    ("GRU", "b h", ", linear_before_reset: int = 1"),
    ("GRU", "b", ", activations: strings = [FUNCTIONS]"),
    ("LSTM", "", ""),
    ("LSTM", "b h c", ""),
    ("LSTM", "b c", ""),
    ("LSTM", "b h c p", ""),
    ("RNN", "b h", ""),
]
#: Place of each among the inputs.
PLACES = {"b": 3, "h": 5, "c": 6, "p": 7}


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(0, 0.7, shape).astype(np.float32)


def recurrent(op: Recurrent, beside: str, said: str, direction: str, *, layout: int = 0) -> ir.Model:
    """A model of one operator on seven steps of two samples."""
    count, gates = 2 if direction == "bidirectional" else 1, len(GATES[op])
    inputs = ["x", "w", "r", *[""] * 5]
    for name in beside.split():
        inputs[PLACES[name]] = name
    state = (BATCH, count, HIDDEN) if layout else (count, BATCH, HIDDEN)
    shapes = {
        "w": (count, gates * HIDDEN, WIDTH), "r": (count, gates * HIDDEN, HIDDEN), "b": (count, 2 * gates * HIDDEN),
        "h": state, "c": state, "p": (count, 3 * HIDDEN),
    }  # fmt: skip
    weights = {name: numbers(seed, *shapes[name]) for seed, name in enumerate(["w", "r", *beside.split()])}
    if layout:  # the same states
        weights |= {
            name: numbers(seed, count, BATCH, HIDDEN).swapaxes(0, 1)
            for seed, name in enumerate(weights)
            if name in "hc"
        }
    functions = ", ".join(['"HardSigmoid", "Softsign"'] * count)
    ends = ["y", "last", *(["cell"] if op == "LSTM" else [])]
    sizes = [(BATCH, STEPS, count, HIDDEN) if layout else (STEPS, count, BATCH, HIDDEN), state, state]
    outputs = ", ".join(f"float[{','.join(map(str, size))}] {end}" for end, size in zip(ends, sizes, strict=False))
    x = f"{BATCH},{STEPS}" if layout else f"{STEPS},{BATCH}"
    attributes = f'hidden_size: int = {HIDDEN}, direction: string = "{direction}", layout: int = {layout}'
    text = f"""g (float[{x},{WIDTH}] x) => ({outputs}) {{
      [layer] {", ".join(ends)} = {op}<{attributes}{said.replace("FUNCTIONS", functions)}>({", ".join(inputs).rstrip(", ")})
    }}"""
    declared = ", ".join(f"float[{','.join(map(str, array.shape))}] {name}" for name, array in weights.items())
    return model(text.replace(" {\n", f" <{declared}> {{\n", 1), weights)


def written(graph: ir.Model, op: Recurrent) -> ir.Model:
    """``graph`` with its operator written out."""
    made = run_pipeline(graph, "infer-shapes,unroll-recurrent", copy=True).model
    assert op not in {node.op_type for node in made.graph}
    return made


def assert_close(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    """Within seven steps of sums of 11 products: 7·12·2⁻²⁴ of their size, about 4, for each."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=4 * STEPS * 12 * 2.0**-24)


@pytest.mark.parametrize(
    ("op", "beside", "said", "direction"),
    [(*form, direction) for form, direction in itertools.product(FORMS, ["forward", "reverse", "bidirectional"])],
)
def test_numbers_are_those_of_the_operator(op: Recurrent, beside: str, said: str, direction: str) -> None:
    graph, feed = recurrent(op, beside, said, direction), {"x": numbers(9, STEPS, BATCH, WIDTH)}
    wanted = open_session(graph).run(feed)
    assert_close(open_session(written(graph, op)).run(feed), wanted)


@pytest.mark.parametrize(("op", "beside"), [("GRU", "b h"), ("LSTM", "b h c"), ("RNN", "")])
def test_a_batch_that_comes_first_is_turned(op: Recurrent, beside: str) -> None:
    """onnxruntime does not run these: what comes out is that of the same layer with the batch second, turned."""
    x = numbers(9, STEPS, BATCH, WIDTH)
    wanted = open_session(recurrent(op, beside, "", "bidirectional")).run({"x": x})
    turned = {
        name: array.transpose(2, 0, 1, 3) if name == "y" else array.swapaxes(0, 1) for name, array in wanted.items()
    }
    first = written(recurrent(op, beside, "", "bidirectional", layout=1), op)
    assert_close(open_session(first).run({"x": x.swapaxes(0, 1)}), turned)


def test_a_symbolic_batch_stays() -> None:
    graph = model(
        """g (float[7,N,2] x) => (float[7,1,N,3] y) <float[1,3,2] w = {1,2,3,4,5,6}, float[1,3,3] r = {1,2,3,4,5,6,7,8,9}>
        { [layer] y = RNN<hidden_size: int = 3>(x, w, r) }"""
    )
    made = written(graph, "RNN")
    for batch in (1, 3):
        feed = {"x": numbers(batch, 7, batch, 2) / 16}
        assert_close(open_session(made).run(feed), open_session(graph).run(feed))
