"""The verifier: per rule the smallest model where it speaks, and models where it must not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.verification.rules import LEVELS, RULES, Finding, new_errors, verify

from tests.cases.small_models import model

PAIR = "{ q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z) }"


def found(m: ir.Model, minimum: str = "note") -> list[tuple[str, str, str]]:
    """(level, rule, where) of every finding."""
    assert minimum in LEVELS
    return [(f.level, f.rule, f.where) for f in verify(m, minimum=minimum)]


@pytest.mark.parametrize(
    ("text", "level", "rule", "where", "message"),
    [
        (
            "g (float[2] x) => (float[2] y) { [n] a = Neg (x)  [n] y = Relu (a) }",
            "error", "unique-node-names", "n", "2 nodes of graph g have this name",
        ),
        (
            """g (bool c, float[2] x) => (float[2] y) { [i] y = If (c) <
                then_branch = t () => (float[2] a) { [n] a = Neg (x) },
                else_branch = e () => (float[2] b) { [n] b = Relu (x) }> }""",
            "warning", "unique-node-names", "n", "of then_branch of i and of else_branch of i",
        ),
        (
            "g (float[2] x) => (float[2] y) { [r] y = Relu (a)  [n] a = Neg (x) }",
            "error", "topological-order", "r", "reads 'a' before it is computed",
        ),
        (
            """g (bool c, float[2] x) => (float[2] y) { [i] y = If (c) <
                then_branch = t () => (float[2] a) { [n] a = Neg (z) }, else_branch = e () => (float[2] b) { [m] b = Relu (x) }>
               [z] z = Abs (x) }""",
            "error", "topological-order", "n", "reads 'z'",
        ),
        (
            """g (bool c, float[2] x) => (float[2] y) { a = Neg (x)  [i] y = If (c) <
                then_branch = t () => (float[2] a) { [n] a = Neg (x) },
                else_branch = e () => (float[2] b) { [m] b = Relu (a) }> }""",
            "error", "single-assignment", "a", "hides a value of a graph around it",
        ),
        (
            "g (float[2] x) => (float[2] y) { [n] y = com.microsoft.Gelu (x) }",
            "error", "opset-imports", "n", "Gelu is of domain com.microsoft, which is not imported",
        ),
        (
            "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [n] y = SimplifiedLayerNormalization (x, w) }",
            "note", "known-operators", "n", "an operator of onnxruntime",
        ),
        (
            "g (float[2] x) => (float[2] y) { [n] y = Rellu (x) }",
            "warning", "known-operators", "n", "there is no Rellu in opset 21 of ai.onnx",
        ),
        (
            "g (x) => (float[2] y) { [n] y = Relu (x) }",
            "error", "graph-io", "x", "the input has no type",
        ),
        (
            "g (float[2] x) => (y) { [n] y = Relu (x) }",
            "warning", "graph-io", "y", "the output has no type",
        ),
        (
            '<ir_version: 3, opset_import: ["" : 9]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }',
            "error", "initializer-inputs", "w", "an initializer but no input, as IR version 3 demands",
        ),
        (
            f"g (float[2] x) => (float[2] y) <float s = {{-0.5}}, int8 z = {{0}}> {PAIR}",
            "error", "qdq-scale", "QuantizeLinear_0", "has the scale -0.5",
        ),
        (
            "g (float[2] x) => (float[2] y) <float s = {0.0}> { [q] q = QuantizeLinear (x, s)  y = DequantizeLinear (q, s) }",
            "error", "qdq-scale", "q", "has the scale 0",
        ),
        (
            """g (float[2] x) => (float[2] y) <float s = {1}, float t = {2}, int8 z = {0}> {
                [q] q = QuantizeLinear (x, s, z)  [d] y = DequantizeLinear (q, t, z) }""",
            "error", "qdq-pair", "d", "has scale 2, q before it 1",
        ),
        (
            """g (float[2] x) => (float[2] y) <float s = {1}, int8 z = {0}, int8 w = {3}> {
                [q] q = QuantizeLinear (x, s, z)  [d] y = DequantizeLinear (q, s, w) }""",
            "error", "qdq-pair", "d", "has zero point 3, q before it 0",
        ),
        (
            """g (float[2] x) => (float[2] y) <float s = {1}, int4 z = {0}, int8 w = {0}> {
                [q] q = QuantizeLinear (x, s, z)  [d] y = DequantizeLinear (q, s, w) }""",
            "error", "qdq-types", "d", "has a zero point of int8 on int4",
        ),
        (
            """g (float[2, 2] x) => (float[2, 2] y) <float[2] s = {1, 2}, int8[2] z = {0, 0}> {
                [q] q = QuantizeLinear <axis = 0> (x, s, z)  [d] y = DequantizeLinear <axis = 1> (q, s, z) }""",
            "error", "qdq-pair", "d", "has axis 1, q before it 0",
        ),
        (
            """g (float[2] x) => (float[2] y) <float s = {1}, int8 z = {0}, uint8 w = {0}> {
                [q] q = QuantizeLinear (x, s, z)  [d] y = DequantizeLinear (q, s, w) }""",
            "error", "qdq-types", "d", "has a zero point of uint8 on int8",
        ),
        (
            """g (float[2] x) => (float[2] y) <float s = {1}, int8 z = {0}> {
                [q] q = QuantizeLinear <output_dtype = 2> (x, s, z)  y = DequantizeLinear (q, s, z) }""",
            "error", "qdq-types", "q", "has output_dtype uint8, a zero point of int8",
        ),
        (
            "g (float[2] x) => (float[2] y) <int32[2] b = {1, 2}, float s = {1}, int32 z = {1}> {"
            " [d] d = DequantizeLinear (b, s, z)  y = Add (x, d) }",
            "error", "qdq-types", "d", "has a zero point on int32",
        ),
        (
            f"g (float16[2] x) => (float16[2] y) <float s = {{1}}, int8 z = {{0}}> {PAIR}",
            "error", "qdq-types", "QuantizeLinear_0", "has a scale of float on a tensor of float16",
        ),
        (
            f"g (float[2, 3] x) => (float[2, 3] y) <float[2] s = {{1, 2}}, int8[2] z = {{0, 0}}> {PAIR}",
            "error", "qdq-shape", "QuantizeLinear_0", "has 2 scales on axis 1, which has 3",
        ),
        (
            "g (float[2, 3] x) => (float[2, 3] y) <float[3] s = {1, 2, 3}> {"
            " [q] q = QuantizeLinear <axis = 2> (x, s)  y = DequantizeLinear <axis = 2> (q, s) }",
            "error", "qdq-shape", "q", "has axis 2 on a tensor of 2 dimensions",
        ),
        (
            "g (float[4] x) => (float[4] y) <float[1] s = {1}> {"
            " [q] q = QuantizeLinear <axis = 0, block_size = -4> (x, s)  y = DequantizeLinear <axis = 0, block_size = -4> (q, s) }",
            "error", "qdq-shape", "q", "has a block_size of -4",
        ),
        (
            f"g (float[2, 3] x) => (float[2, 3] y) <float[3] s = {{1, 2, 3}}, int8[2] z = {{0, 0}}> {PAIR}",
            "error", "qdq-shape", "QuantizeLinear_0", "has 3 scales and 2 zero points",
        ),
        (
            "g (float[4, 2] x) => (float[4, 2] y) <float[3, 2] s = {1, 1, 1, 1, 1, 1}> {"
            " [q] q = QuantizeLinear <axis = 0, block_size = 2> (x, s)  y = DequantizeLinear <axis = 0, block_size = 2> (q, s) }",
            "error", "qdq-shape", "q", "scales of shape [3, 2] where blocks of 2 on axis 0 need [2, 2]",
        ),
        (
            "g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] s = {1, 1, 1, 1}> {"
            " [q] q = QuantizeLinear (x, s)  y = DequantizeLinear (q, s) }",
            "error", "qdq-shape", "q", "has scales of shape [2, 2] but no block_size",
        ),
        (
            '<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) <int16[2] b = {1, 2}, float s = {1}> {'
            " [d] d = DequantizeLinear (b, s)  y = Add (x, d) }",
            "error", "qdq-opset", "d", "uses int16, which opset 20 does not have",
        ),
    ],
)  # fmt: skip
def test_rules_speak(text: str, level: str, rule: str, where: str, message: str) -> None:
    findings = [f for f in verify(model(text)) if f.rule == rule]
    assert findings
    assert (findings[0].level, findings[0].where) == (level, where)
    assert message in findings[0].message
    assert "\n" not in findings[0].message
    assert findings[0].hint


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[2] y) { y = Relu (x) }",
        # empty node names, one value as input and output, an initializer as output
        "g (float[2] x) => (float[2] x, float[2] w) <float[2] w = {1, 2}> { y = Relu (x) }",
        # one element in a list of one is per-tensor, whatever the axis
        f"g (float[3] x) => (float[3] y) <float[1] s = {{0.1}}, int8 z = {{3}}> {PAIR}",
        # the same in both branches, and values of the graph around
        """g (bool c, float[2] x) => (float[2] y) { w = Neg (x)  y = If (c) <
            then_branch = t () => (float[2] a) { a = Neg (w) }, else_branch = e () => (float[2] a) { a = Relu (w) }> }""",
        # equal scales of two initializers, a zero point left out
        """g (float[2] x) => (float[2] y) <float s = {1}, float t = {1}, uint8 z = {0}> {
            q = QuantizeLinear (x, s)  y = DequantizeLinear (q, t, z) }""",
        # negative axis, blocks that do not divide the axis
        """g (float[2, 3] x) => (float[2, 3] y) <float[2, 2] s = {1, 1, 1, 1}> {
            q = QuantizeLinear <axis = -1, block_size = 2> (x, s)  y = DequantizeLinear <axis = 1, block_size = 2> (q, s) }""",
        # a scale computed at run time
        "g (float[2] x, float s) => (float[2] y) { q = QuantizeLinear (x, s)  y = DequantizeLinear (q, s) }",
        # dynamic shapes; a function; an operator of a domain that ONNX does not list
        """<ir_version: 10, opset_import: ["" : 21, "f" : 1, "com.acme" : 2]>
           g (float[N] x) => (float[N] y) { a = f.F (x)  y = com.acme.Magic (a) }
           <domain: "f", opset_import: ["" : 21]> F (a) => (b) { b = Relu (a) }""",
    ],
)  # fmt: skip
def test_rules_stay_silent(text: str) -> None:
    assert verify(model(text)) == []


def test_undefined_value_in_memory() -> None:
    m = model("g (float[2] x) => (float[2] y) { [n] y = Relu (x) }")
    m.graph[0].replace_input_with(0, ir.Value(name="ghost"))
    assert found(m) == [("fatal", "defined-values", "n")]


def test_value_out_of_sight() -> None:
    m = model(
        """g (bool c, float[2] x) => (float[2] y) { [i] a = If (c) <then_branch = t () => (float[2] u) { [n] u = Neg (x) },
            else_branch = e () => (float[2] v) { [m] v = Relu (x) }>  [r] y = Relu (a) }"""
    )
    inner = m.graph[0].attributes["then_branch"].as_graph().outputs[0]
    m.graph[1].replace_input_with(0, inner)
    assert found(m, "error") == [("fatal", "defined-values", "r")]


def test_cycle_in_memory() -> None:
    m = model("g (float[2] x) => (float[2] y) { [a] a = Neg (x)  [b] b = Relu (a)  [c] y = Abs (b) }")
    m.graph[0].replace_input_with(0, m.graph[1].outputs[0])
    assert found(m) == [("fatal", "acyclic", "a")]


def test_two_values_of_one_name() -> None:
    m = model("g (float[2] x) => (float[2] y) { [a] a = Neg (x)  [c] y = Abs (a) }")
    m.graph[0].outputs[0].name = "x"
    assert found(m) == [("fatal", "single-assignment", "x")]


def test_value_without_a_name() -> None:
    m = model("g (float[2] x) => (float[2] y) { [a] a = Neg (x)  [c] y = Abs (a) }")
    m.graph[0].outputs[0].name = ""
    assert found(m) == [("error", "named-values", "c")]


def test_initializer_without_data_and_of_another_type() -> None:
    m = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [a] y = Add (x, w) }")
    weight = m.graph.initializers["w"]
    weight.const_value = ir.tensor(np.ones((3,), np.float16))
    assert {f.message for f in verify(m)} == {"is declared FLOAT but holds FLOAT16", "is declared [2] but holds [3]"}
    weight.const_value = None
    assert found(m) == [("fatal", "initializer-data", "w")]


def test_recursive_functions() -> None:
    m = model(
        """<ir_version: 10, opset_import: ["" : 21, "f" : 1]> g (float[2] x) => (float[2] y) { y = f.F (x) }
           <domain: "f", opset_import: ["" : 21, "f" : 1]> F (a) => (b) { b = Relu (a) }"""
    )
    function = m.functions["f", "F", ""]
    function[0].domain, function[0].op_type = "f", "F"
    assert found(m) == [("fatal", "acyclic-functions", "f::F")]


def test_reference_outside_of_a_function() -> None:
    m = model("g (float[2] x) => (float[2] y) { [n] y = LeakyRelu (x) }")
    m.graph[0].attributes["alpha"] = ir.RefAttr("alpha", "slope", ir.AttributeType.FLOAT)
    assert found(m) == [("error", "attribute-references", "n")]


def test_minimum_and_order() -> None:
    m = model("g (float[2] x) => (y) { [n] y = Relu (a)  [n] a = Neg (x) }")
    assert [f.level for f in verify(m)] == ["error", "error", "warning"]
    assert [f.level for f in verify(m, minimum="error")] == ["error", "error"]
    assert verify(m, minimum="fatal") == []


def test_new_errors_compares_rule_and_place() -> None:
    old = Finding("error", "unique-node-names", "n", "2 nodes", "h")
    new = Finding("error", "unique-node-names", "n", "3 nodes", "h")
    other = Finding("error", "acyclic", "n", "m", "h")
    assert new_errors([old], [new, other, Finding("note", "x", "n", "m", "h")]) == [other]


def test_a_domain_that_was_never_imported_is_no_new_error() -> None:
    before, after = (
        verify(model(f"g (float[2] x) => (float[2] y) {{ {nodes} }}"), minimum="error")
        for nodes in ("[a] t = com.own.Op(x) [b] y = com.own.Op(t)", "[a] t = Relu(x) [b] y = com.own.Op(t)")
    )
    assert [f.where for f in before + after] == ["a", "b"]
    assert new_errors(before, after) == []


def test_json_form() -> None:
    finding = Finding("note", "known-operators", "n", "m", "h")
    assert finding.to_json() == {"level": "note", "rule": "known-operators", "where": "n", "message": "m", "hint": "h"}


def test_every_rule_says_what_it_wants() -> None:
    assert all(rule.__doc__ for rule in RULES.values())
