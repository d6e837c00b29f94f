"""Which pairs stand where integers and floats meet: those that are there, or cost something, for that alone."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.comparison.prices.boundary import boundary_tensors
from qdqtool.comparison.prices.pricing import priced
from qdqtool.comparison.sides import Sides
from tests.cases.small_models import model

SCALES = "<float s = {0.125}, int8 z = {0}, int8[4,4] w_quantized>"
INTEGERS = {"w_quantized": np.arange(16, dtype=np.int8).reshape(4, 4)}
#: x behind its pair is multiplied by a weight behind its own, on integers where t has a pair; then what reads t.
LAYER = """xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)  w = DequantizeLinear(w_quantized, s, z)
           [layer] t = MatMul(xd, w) """
PAIR = "tq = QuantizeLinear(t, s, z)  td = DequantizeLinear(tq, s, z) "


def edges(body: str, *floats: str) -> set[str]:
    text = f"g (float[1,4] x) => (float[1,4] y) {SCALES} {{ {body} }}"
    return set(boundary_tensors(model(text, INTEGERS), floats))


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ("y = Softmax(td)", {"t"}),
        ("a = Softmax(td)  b = Sigmoid(td)  y = Add(a, b)", {"t"}),
        ("y = MatMul(td, w)", set()),
        ("a = Softmax(td)  b = MatMul(td, w)  y = Add(a, b)", set()),
        ("[relu] r = Relu(td)  rq = QuantizeLinear(r, s, z)  y = DequantizeLinear(rq, s, z)", set()),
        ("y = Identity(t)", set()),
    ],
)  # fmt: skip
def test_integers_that_floats_alone_read(behind: str, expected: set[str]) -> None:
    assert edges(LAYER + PAIR + behind) == expected


def test_an_output_is_read_from_outside() -> None:
    assert edges(LAYER + "tq = QuantizeLinear(t, s, z)  y = DequantizeLinear(tq, s, z)") == set()


def test_what_was_left_float_looks_like_integers() -> None:
    """A Relu between pairs is what it is told to be; of a layer in floats and a Relu on integers the pair between them is one too,
    and is none before what is no step with the layer."""
    behind = "[%s] r = %s(td)  rq = QuantizeLinear(r, s, z)  y = DequantizeLinear(rq, s, z)"
    relu = LAYER + PAIR + behind % ("next", "Relu")
    assert edges(relu, "next") == {"t"}
    assert edges(relu, "layer") == {"t"}
    assert edges(relu, "layer", "next") == set()
    assert edges(LAYER + PAIR + behind % ("next", "Sigmoid"), "layer") == set()


def test_its_noise_is_of_one_cause_and_adds_up() -> None:
    """The float model has 4·x; the pair on it ends at 15.875, so one of the values is clipped."""
    stored = {"w_quantized": np.eye(4, dtype=np.int8) * 32}
    text = f"g (float[1,4] x) => (float[1,4] y) {SCALES} {{ {LAYER}{PAIR} y = Abs(td) }}"
    given = {"w": np.eye(4, dtype=np.float32) * 4}
    a = model("g (float[1,4] x) => (float[1,4] y) <float[4,4] w> { [layer] t = MatMul(x, w)  y = Abs(t) }", given)
    found = priced(Sides.of(a, model(text, stored)), [{"x": np.array([[4.46875, 1, 2, 3]], np.float32)}])
    costs = {(price.cause, price.tensor) for price in found.prices}
    assert ("boundary", "t") in costs
    assert not {("rounding", "t"), ("clipping", "t")} & costs
    assert sum(price.power for price in found.prices) == pytest.approx(found.noise, rel=1e-9)
