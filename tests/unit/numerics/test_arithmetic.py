"""Elementwise arithmetic read as a sum of products: whatever the grouping, the sum computes what the nodes compute."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.graph.operators.arithmetic import (
    ONE,
    Product,
    Sum,
    agree,
    behind,
    expand,
    outcomes,
    product,
    scalar_of,
    without_casts,
)

from tests.cases.small_models import model

LEAVES = {"x": 1.5, "g": -0.75}
NUMBERS = {"two": 2.0, "third": 1 / 3, "minus": -1.25}


@dataclass(frozen=True)
class Term:
    """An expression: the text of its last node's right side, the nodes before it, and its value."""

    nodes: tuple[str, ...]
    name: str
    value: float


def leaf(name: str) -> Term:
    return Term((), name, (LEAVES | NUMBERS)[name])


@st.composite
def terms(draw: st.DrawFn, depth: int = 4) -> Term:
    """A random expression over the leaves and numbers."""
    if depth == 0 or draw(st.booleans()):
        return leaf(draw(st.sampled_from([*LEAVES, *NUMBERS])))
    op = draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Neg", "Identity", "Pow"]))
    a = draw(terms(depth - 1))
    if op in ("Neg", "Identity"):
        return made(op, [a], -a.value if op == "Neg" else a.value)
    if op == "Pow":
        return made(op, [a, leaf("two")], a.value**2)
    b = leaf(draw(st.sampled_from([*NUMBERS]))) if op == "Div" else draw(terms(depth - 1))
    computed = {"Add": a.value + b.value, "Sub": a.value - b.value, "Mul": a.value * b.value}
    return made(op, [a, b], a.value / b.value if op == "Div" else computed[op])


def made(op: str, inputs: list[Term], value: float) -> Term:
    nodes = dict.fromkeys(node for term in inputs for node in term.nodes)
    name = f"t{zlib.crc32(f'{op}{[term.name for term in inputs]}'.encode())}"
    return Term((*nodes, f"{name} = {op}({', '.join(term.name for term in inputs)})"), name, value)


def graph_of(body: str, outputs: str = "float[2] y") -> ir.Model:
    numbers = ", ".join(f"double {name} = {{{number!r}}}" for name, number in NUMBERS.items())
    return model(f"g (double[2] x, double[2] g) => ({outputs}) <{numbers}> {{ {body} }}")


def value_of(graph: ir.Model, name: str) -> ir.Value:
    for node in graph.graph:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.name == name:
                return value
    raise KeyError(name)


def names(value: ir.Value) -> Product | None:
    return product(**{value.name: 1}) if value.name in LEAVES else None


def computed(total: Sum) -> float:
    return sum(c * float(np.prod([LEAVES[name] ** exponent for name, exponent in term])) for term, c in total.items())


@given(terms())
def test_a_sum_computes_what_the_nodes_compute(term: Term) -> None:
    if not term.nodes:
        return
    graph = graph_of(" ".join(term.nodes), f"double[2] {term.name}")
    total = expand(value_of(graph, term.name), names)
    if total is None:  # more products than are looked at
        assert len(term.nodes) > 3
        return
    size = max(1.0, sum(abs(computed({t: c})) for t, c in total.items()))
    assert abs(computed(total) - term.value) <= 2.0**-40 * size  # float64 sums of a dozen products


def test_groupings_are_one_sum() -> None:
    bodies = [
        "p = Mul(x, g) q = Add(x, p) y = Div(q, two)",
        "h = Div(x, two) p = Mul(h, g) y = Add(h, p)",
        "d = Div(g, two) n = Neg(d) p = Mul(x, n) h = Div(x, two) y = Sub(h, p)",
        "i = Reciprocal(two) p = Mul(x, g) q = Add(p, x) c = Cast<to: int = 11>(q) y = Mul(i, c)",
    ]
    for body in bodies:
        total = expand(value_of(graph_of(body, "double[2] y"), "y"), names)
        assert total == {product(x=1): 0.5, product(g=1, x=1): 0.5}


@pytest.mark.parametrize(
    "body",
    [
        "e = Exp(x) y = Mul(e, g)",
        "s = Add(x, g) y = Div(x, s)",
        "y = Pow(two, x)",
        "y = Pow(x, third)",
        "i = Cast<to: int = 7>(x) f = Cast<to: int = 11>(i) y = Mul(f, g)",
    ],
)
def test_what_is_no_sum(body: str) -> None:
    """Another function, a division by a sum, powers that are not whole, and a Cast that rounds to integers."""
    assert expand(value_of(graph_of(body, "double[2] y"), "y"), names) is None


def test_long_sums_end() -> None:
    """(x + g + 1)^12 has 91 products, (((x·x)·x)…) stands deeper than anyone writes: both are given up, soon."""
    square = "a0 = Add(x, g) b0 = Add(a0, two) " + " ".join(f"b{i + 1} = Mul(b{i}, b{i})" for i in range(12))
    assert expand(value_of(graph_of(square, "double[2] b12"), "b12"), names) is None
    chain = "c0 = Mul(x, x) " + " ".join(f"c{i + 1} = Mul(c{i}, x)" for i in range(30))
    assert expand(value_of(graph_of(chain, "double[2] c30"), "c30"), names) is None


def test_agreement() -> None:
    wanted = {product(x=1): 0.5, ONE: 1.0}
    assert agree({product(x=1): 0.5, ONE: 1.0, product(g=1): 0.0}, wanted)
    assert agree({product(x=1): 0.5004, ONE: 1.0}, wanted)
    assert not agree({product(x=1): 0.5004, ONE: 1.0}, wanted, 2.0**-16)
    assert not agree({product(x=1): 0.5}, wanted)
    assert not agree({product(x=1): 0.5, ONE: 1.0, product(g=1): 1e-9}, wanted)
    assert not agree(None, wanted)


def test_outcomes_are_what_leaves_alone_make() -> None:
    graph = graph_of("p = Mul(g, x) q = Add(p, two) e = Exp(x) r = Mul(q, e) s = Neg(q)", "double[2] r, double[2] s")
    found = outcomes(value_of(graph, "g"), names)
    assert [(value.name, total) for value, total in found] == [
        ("p", {product(g=1, x=1): 1.0}),
        ("q", {product(g=1, x=1): 1.0, ONE: 2.0}),
        ("s", {product(g=1, x=1): -1.0, ONE: -2.0}),
    ]


def test_what_stands_behind() -> None:
    graph = graph_of("e = Exp(x) p = Mul(e, two) q = Add(p, g) y = Neg(q)", "double[2] y")
    assert [value.name for value in behind(value_of(graph, "y"))] == ["y", "q", "p", "g", "e"]


def test_scalars_and_casts() -> None:
    graph = model(
        """g (float16[2] x, int64[2] i) => (float[2] a, float[2] b, float[2] c) <float[1,1] one = {2}, float[2] w = {1, 2}, float d = {3}>
        { k = Constant<value_int: int = 4>() p = Cast<to: int = 1>(x) q = Identity(p) a = Mul(q, one)
          f = Cast<to: int = 1>(i) b = Mul(f, w) t = Cast<to: int = 1>(k) c = Mul(t, d) }"""
    )
    values = {v.name: v for node in graph.graph for v in (*node.inputs, *node.outputs) if v is not None}
    assert [scalar_of(values[n]) for n in ("one", "w", "k", "x", "d")] == [2.0, None, 4.0, None, 3.0]
    assert without_casts(values["q"]).name == "x"
    assert without_casts(values["f"]).name == "f"  # it rounds nothing, but i is no float


def test_a_default_is_no_constant() -> None:
    """An initializer that is an input as well may be overridden."""
    graph = model("g (float[2] x, float h = {0.5}) => (float[2] y) { y = Mul(x, h) }")
    assert scalar_of(graph.graph.inputs[1]) is None
