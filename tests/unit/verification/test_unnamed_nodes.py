"""The name that a node gets at load because its file gives it none is no property of the model."""

from __future__ import annotations

from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.comparison.difference import differences
from tests.cases.small_models import model

PLAIN = "g (float[2] x) => (float[2] y) { h = Relu(x)  y = Sigmoid(h) }"
PAIR = """g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}> {
    i = QuantizeLinear(x, s, z)  d = DequantizeLinear(i, s, z)  h = Relu(d)  y = Sigmoid(h) }"""
TWICE = "g (float[2] x) => (float[2] y) { g = Relu(x)  h = Relu(g)  y = Sigmoid(h) }"
HARD = """g (float[2] x) => (float[2] y) <float f = {1.0001220703125}> {
    t = HardSigmoid<alpha: float = 0.16666667>(x)  y = Mul(t, f) }"""


def test_a_pair_is_the_only_difference() -> None:
    assert [(d.kind, d.where) for d in differences(model(PLAIN), model(PAIR))] == [("encoding", "x")]


def test_a_node_more_is_one_node_and_its_wiring() -> None:
    assert [(d.kind, d.where) for d in differences(model(PLAIN), model(TWICE))] == [
        ("wiring", "Relu → h"),
        ("node", "Relu → g"),
    ]


def test_names_that_were_given_are_no_difference_of_nodes() -> None:
    named = run_pipeline(model(PAIR), "give-names").model
    for a, b in ((model(PLAIN), named), (named, model(PLAIN))):
        assert [(d.kind, d.where) for d in differences(a, b)] == [("encoding", "x")]


def test_two_names_are_a_difference() -> None:
    a, b = (model(PLAIN.replace("h =", f"[{name}] h =")) for name in ("one", "two"))
    assert [(d.kind, d.where) for d in differences(a, b)] == [("node", "one"), ("node", "two")]


def test_what_the_loader_calls_a_hard_sigmoid_is_no_reason_to_keep_it() -> None:
    report = run_pipeline(model(HARD), "undo-dpu-edits")
    assert [node.op_type for node in report.model.graph] == ["Sigmoid"]
