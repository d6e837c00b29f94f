"""Conditions of target files: what they mean, what is unknown in them, and one line for what is none of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from qdq_passes.errors import ModelError, UsageError

from qdqtool.targets.expression import FUNCTIONS, Expression, Template, Vocabulary
from tests.dial import examples
from tests.golden_messages.refusal import refusal


@dataclass
class Tensor:
    """As facts have them."""

    dtype: str | None = "int8"
    shape: list[int | None] | None = None


@dataclass
class Facts:
    """Some names."""

    op: str = "Conv"
    opset: int = 13
    unknown: Any = None
    x: Tensor = field(default_factory=lambda: Tensor(shape=[1, 3, None]))
    inputs: list[Tensor] = field(default_factory=lambda: [Tensor(), Tensor("uint8", [4])])


WORDS = Vocabulary(
    names={"op": (), "opset": (), "unknown": (), "x": ("dtype", "shape"), "inputs": ()}, elements=("dtype", "shape")
)


def value(text: str) -> Any:
    return Expression.parse(text, WORDS)(Facts())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('op == "Conv" and opset >= 13', True),
        ('op in ["Gemm", "MatMul"] or opset < 11', False),
        ("not (op != 'Conv')", True),
        ("1 < opset < 20", True),
        ("opset // 2 * 2 - 1 + 0.5", 11.5),
        ("-opset % 4", 3),
        ("x.shape[1] == 3 and x.shape[-3] == 1", True),
        ("x.shape[:2] == [1, 3]", True),
        ("x.shape[5]", None),
        ("len(x.shape)", 3),
        ("[t.dtype for t in inputs]", ["int8", "uint8"]),
        ("any(t.dtype == 'uint8' for t in inputs[1:])", True),
        ("all(i < 2 for i, t in enumerate(inputs) if t.dtype == 'int8')", True),
        ("len(set([t.dtype for t in inputs]))", 2),
        ("max(1, opset)", 13),
        ("min([])", None),
        ("prod([2, 3])", 6),
        ("'small' if opset < 7 else 'large'", "large"),
        ("inputs[0].shape is None", True),
        ("inputs[1].shape is not None", True),
        ("opset == 13 and\n  op == 'Conv'", True),
        ("(1, 2) == [1, 2]", True),
        ("'on' in op", True),
    ],
)
def test_values(text: str, wanted: Any) -> None:
    assert value(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("unknown > 1", False),
        ("unknown <= 1", False),
        ("not unknown > 1", True),
        ("unknown == 1", False),
        ("unknown != 1", True),
        ("unknown + 1", None),
        ("-unknown", None),
        ("unknown[0]", None),
        ("1 in unknown", False),
        ("1 not in unknown", True),
        ("any(d > 1 for d in inputs[0].shape)", False),
        ("all(d > 1 for d in inputs[0].shape)", False),
        ("len(inputs[0].shape)", None),
        ("x.shape[2] > 8", False),
        ("max(x.shape)", 3),
        ("inputs[7].dtype", None),
        ("opset / 0", None),
    ],
)
def test_what_is_unknown_is_none(text: str, wanted: Any) -> None:
    found = value(text)
    assert found is wanted or found == wanted


@pytest.mark.parametrize("text", [
    "opp == 'Conv'", "x.dtpye == 'int8'", "op.dtype", "any(t.dype == 1 for t in inputs)", "inputs[0].rnk", "t.dtype == 'int8'",
    "eval('1')", "op.upper()", "len(x.shape, key=1)", "lambda: 1", "2 ** 9", "f'{op}'", "[a for a in inputs for b in inputs]",
    "{1: 2}", "b'x' == op", "op is 'Conv'", "(y := 3)", "__import__", "[t for t.dtype in inputs]", "[1 for t[0] in inputs]",
    "op is None is 3", "x.shape[0:1, 2]", "sum([1], 2)", "len()", "0x1" + "0" * 300, "not " * 100 + "op", "op" + " == op" * 3000,
])  # fmt: skip
def test_refused_when_read(text: str) -> None:
    with refusal(UsageError):
        Expression.parse(text, WORDS)


@pytest.mark.parametrize("text", ["op ==", "(" * 3000, "op = 1", ")\n("], ids=["half", "deep", "assignment", "lines"])
def test_no_expression(text: str) -> None:
    """What follows are Python's words."""
    with pytest.raises(UsageError) as caught:
        Expression.parse(text, WORDS)
    assert "is no expression: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["op > 3", "op + 1", "inputs * 9", "[i for i, j in x.shape]", "[t.dtype for t in [1]]"])  # fmt: skip
def test_values_that_do_not_go_together(text: str) -> None:
    """Some of the words are Python's."""
    expression = Expression.parse(text, WORDS)
    with pytest.raises(ModelError) as caught:
        expression(Facts())
    assert text in str(caught.value)


@pytest.mark.parametrize(("element", "loop", "first"), [
    ("1", "[1, 2, 3, 4, 5, 6, 7, 8, 9]", "[1]"), ("t == t", "[[t, t]]", "[x]"), ("t", "zip(t, t)", "[x.shape]"),
    ("t", "[t * t]", "[opset]"), ("prod(t)", "[[prod(t), prod(t)]]", "[[opset]]"),
])  # fmt: skip
def test_work_that_never_ends(element: str, loop: str, first: str) -> None:
    """Steps or bits run out; the error names the rule."""
    text = "[" * 30 + element + f" for t in {loop}]" * 29 + f" for t in {first}]"
    expression = Expression.parse(text, WORDS, "acme.toml [[op]] 1")
    with pytest.raises(ModelError, match=r"^acme.toml \[\[op\]\] 1: .*(more than 50,000 steps|an integer of more)"):
        expression(Facts())


def test_a_look_through_many_zero_points_is_no_attack() -> None:
    many = Facts(x=Tensor(shape=[0] * 10_000))
    assert Expression.parse("all(d == 0 and d != 1 for d in x.shape)", WORDS)(many) is True


def test_templates() -> None:
    template = Template.parse("{op} of {x.shape} on {'a' if opset > 3 else 'b'}: {opset / 7}", WORDS)
    assert template(Facts()) == "Conv of 1×3×? on a: 1.85714"
    assert Template.parse("", WORDS)(Facts()) == ""
    with refusal(UsageError):
        Template.parse("{nope}", WORDS)


@settings(max_examples=examples(200))
@given(st.recursive(
    st.sampled_from(["op", "opset", "unknown", "x.shape", "x.shape[0]", "inputs", "'a'", "2", "None", "True", "[1, 2]"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" == ", " != ", " in ", " and ", " or "]), inner).map("".join).map("({})".format),
        inner.map("(not {})".format),
        st.tuples(st.sampled_from(["any", "all", "len"]), st.just("([]"), inner.map(lambda t: ")")).map("".join),
    ),
    max_leaves=8,
))  # fmt: skip
def test_python_agrees_where_all_is_known(text: str) -> None:
    """Whatever Python can compute, and does not refuse, has the same truth."""
    facts, names = Facts(), vars(Facts())
    try:
        wanted = eval(text, {**FUNCTIONS, "__builtins__": {}}, names)
    except TypeError:
        return
    assert bool(Expression.parse(text, WORDS)(facts)) == bool(wanted)
