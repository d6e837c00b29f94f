"""What `diff` finds: nothing that makes two models compute something else goes unseen."""

from __future__ import annotations

import pytest

from qdqtool.comparison.difference import Difference, described_difference, differences
from tests.cases.small_models import model

LONE_Q = "g (float[4] x) => (int8[4] y) <float s = {%s}, int8 z = {0}> { [q] y = QuantizeLinear(x, s, z) }"
LONE_DQ = "g (int8[4] x) => (float[4] y) <float s = {%s}, int8 z = {0}> { [d] y = DequantizeLinear(x, s, z) }"
SUFFIX = """g (float[2] x) => (float[2] y) <float[2] w = {%s, 1.0}, float[2] w_quantized = {3.0, 4.0}> {
    [a] t = Add(x, w)  [m] y = Mul(t, w_quantized) }"""
STORED = """g (float[2] x) => (float[2] y) <float[2] w = {%s, 1.0}, int8[2] w_quantized = {3, 4}, float s = {0.5}, int8 z = {0}> {
    [a] t = Add(x, w)  [d] wf = DequantizeLinear(w_quantized, s, z)  [m] y = Mul(t, wf) }"""
BODY = """g (bool c, float[2] x) => (float[2] y) { [i] y = If(c) <
    then_branch = t () => (float[2] a%s) { [r] a1 = Relu(x)  [n] a2 = Neg(x) },
    else_branch = e () => (float[2] b) { [d] b = Identity(x) }> }"""
HALVES = """g (float[4] x) => (float[4] y) <float s = {0.5}, float other = {%s}, int8 z = {0}> {
    [q] i = QuantizeLinear(x, other, z)  [d] y = DequantizeLinear(i, s, z) }"""
BRANCHES = """g (bool c, float[2] x) => (float[2] y) { [i] y = If(c) <
    then_branch = t () => (float[2] a) <float[2] k = {%s, 1.0}> { [a] a = Add(x, k) },
    else_branch = e () => (float[2] b) <float[2] k = {5.0, 6.0}> { [b] b = Add(x, k) }> }"""
FUNCTION = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]> g (bool c, float[2] x) => (float[2] y) { [f] y = local.f(c, x) }
<domain: "local", opset_import: ["" : 21]> f (c, a) => (b) { [i] b = If(c) <
    then_branch = t () => (u) <float[2] k = {%s, 1.0}> { [n] u = Add(a, k) },
    else_branch = e () => (v) { [o] v = Identity(a) }> }"""
OUTPUTS = "g (float[2] x) => (float[2] y) { [r] %s = Relu(x)  [n] %s = Neg(x) }"
BYPASS = """g (float[2] x) => (float[2] y, float[2] w) <float s = {0.5}, int8 z = {0}> {
    [q] i = QuantizeLinear(x, s, z)  [d] j = DequantizeLinear(i, s, z)  [r] y = Relu(j)  [n] w = Neg(%s) }"""


def found(text: str, a: object, b: object) -> list[Difference]:
    left, right = (model(text % side) for side in (a, b))
    assert differences(left, left) == differences(right, right) == []
    return differences(left, right)


@pytest.mark.parametrize(
    ("text", "a", "b", "kind", "where"),
    [
        (LONE_Q, "0.5", "0.25", "initializer", "s"),
        (LONE_DQ, "0.5", "0.25", "initializer", "s"),
        (SUFFIX, "0.5", "0.25", "initializer", "w"),
        (STORED, "0.5", "0.25", "initializer", "w"),
        (BODY, "1", "2", "output", "i.then_branch"),
        (HALVES, "0.5", "0.25", "encoding", "x"),
        (BRANCHES, "1.0", "2.0", "initializer", "k (in i.then_branch)"),
        (FUNCTION, "1.0", "2.0", "initializer", "k (in local::f/i.then_branch)"),
        (BYPASS, "j", "x", "wiring", "x (readers of the pair)"),
    ],
    ids=["lone Q", "lone DQ", "suffix", "stored", "body", "halves", "branches", "function", "bypass"],
)
def test_one_difference(text: str, a: str, b: str, kind: str, where: str) -> None:
    assert [(d.kind, d.where) for d in found(text, a, b)] == [(kind, where)]


def test_nodes_that_change_places() -> None:
    swapped = found(OUTPUTS, ("y", "z"), ("z", "y"))
    assert [(d.kind, d.where, d.a, d.b) for d in swapped] == [
        ("wiring", "r (outputs)", ["y"], ["z"]),
        ("wiring", "n (outputs)", ["z"], ["y"]),
    ]


def test_both_halves_of_a_pair_in_words() -> None:
    computed = model((HALVES % 0.5).replace("x) =>", "x, float t) =>").replace("other, z)", "t, z)"))
    words = [described_difference(d.kind, d.b) for d in differences(model(HALVES % 0.5), computed)]
    assert "int8 scale 2^-1, activation, pair, quantized with scale computed at run time (t)" in words
    (one,) = found(HALVES, "0.5", "0.25")
    assert described_difference("encoding", one.a) == "int8 scale 2^-1, activation, pair"
    assert (
        described_difference("encoding", one.b) == "int8 scale 2^-1, activation, pair, quantized with int8 scale 2^-2"
    )
