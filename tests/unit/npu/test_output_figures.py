"""Figures of outputs: steps between them, the share that is equal, and what cannot be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError

from qdqtool.npu.runs import Figures
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal


def output_of(text: str) -> ir.Value:
    return model(text).graph.outputs[0]


DEQUANTIZED = "g (int8[2,2] x) => (float[2,2] y) <float s = {0.5}, int8 z = {3}> { y = DequantizeLinear(x, s, z) }"
PER_AXIS = "g (int8[2,2] x) => (float[2,2] y) <float[2] s = {0.5, 2.0}> { y = DequantizeLinear<axis: int = 0>(x, s) }"


@pytest.mark.parametrize(
    ("text", "base", "npu", "lsb", "exact"),
    [
        (DEQUANTIZED, [[0, 1], [2, 3]], [[0, 1], [2, 3]], 0, 1.0),
        (DEQUANTIZED, [[0, 1], [2, 3]], [[0, 1.5], [2, 1]], 4, 0.5),
        (PER_AXIS, [[0, 1], [2, 4]], [[0, 1.5], [2, 8]], 2, 0.5),
        ("g (float[2,2] x) => (float[2,2] y) { y = Softplus(x) }", [[0, 1], [2, 3]], [[0, 1], [2, 3]], 0, 1.0),
        ("g (float[2,2] x) => (float[2,2] y) { y = Softplus(x) }", [[0, 1], [2, 3]], [[0, 1], [2, 4]], None, 0.75),
        (DEQUANTIZED, [[0, 1], [2, np.inf]], [[0, 1], [2, 4]], None, 0.75),
    ],
)
def test_lsb_counts_steps_of_the_output(text: str, base: Any, npu: Any, lsb: int | None, exact: float) -> None:
    figures = Figures(output_of(text))
    figures.add({"npu": np.array(npu, np.float32), "base": np.array(base, np.float32)})
    found = figures.result()
    assert found.max_lsb == lsb
    assert found.exact == exact


def test_integers_are_their_own_steps() -> None:
    figures = Figures(
        output_of("g (float[2] x) => (int8[2] y) <float s = {0.5}, int8 z = {0}> { y = QuantizeLinear(x, s, z) }")
    )
    figures.add(
        {"npu": np.array([-128, 3], np.int8), "base": np.array([127, 3], np.int8), "float": np.zeros(2, np.float32)}
    )
    found = figures.result()
    assert found.max_lsb == 255
    assert set(found.against) == {"npu/base"}


def test_shapes_that_differ_are_an_error_that_names_the_output() -> None:
    figures = Figures(output_of(DEQUANTIZED))
    with refusal(ModelError):
        figures.add({"npu": np.zeros((1, 2), np.float32), "base": np.zeros((2, 2), np.float32)})


def test_shapes_that_differ_from_those_of_the_float_model_are_left_out() -> None:
    """Its values differ, and may say how many there are."""
    figures = Figures(output_of(DEQUANTIZED))
    few, all_of_them = np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32)
    figures.add({"npu": few, "base": few, "float": all_of_them})
    figures.add({"npu": few, "base": few, "float": few})
    assert set(figures.result().against) == {"npu/base"}


def test_without_samples_that_agree_nothing_is_claimed() -> None:
    found = Figures(output_of(DEQUANTIZED)).result()
    assert (found.max_lsb, found.exact, found.to_json()["sqnr_db"]) == (None, None, {})
