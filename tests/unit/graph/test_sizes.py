"""Arithmetic on symbolic sizes is exact, and bounded whatever the names are."""

from __future__ import annotations

import math
import re
import sys
from fractions import Fraction

import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from qdq_passes.clean.fold_constants import FoldConstants
from qdq_passes.core.dimensions import DEPTH, END, LENGTH, combined, substitute_dim, sum_of
from qdq_passes.graph.evaluate.sizes import divided, multiplied
from qdq_passes.graph.shapes.inference import infer_shapes

from tests.dial import examples

NAMES = ("N", "batch", "E", "pi", "max", "sequence_length", "_3", "a.b", "ß")
TERMS = st.one_of(st.sampled_from(NAMES), st.integers(0, 2**10).map(str))
EXPRESSIONS = st.recursive(
    TERMS,
    lambda part: st.builds(
        lambda a, op, b: f"({a}) {op} ({b})", part, st.sampled_from(["+", "-", "*", "//", "%"]), part
    ),
    max_leaves=5,
)
SUMS = st.recursive(
    TERMS,
    lambda part: st.builds(lambda a, op, b: f"({a}) {op} ({b})", part, st.sampled_from("+-*"), part),
    max_leaves=5,
)
#: Names that are none of the grammar, or beyond its bounds.
OPAQUE = [
    "9**9**9**9", "2**3", "N**9", "(" * 200 + "N" + ")" * 200, "(" * (DEPTH + 1) + "N" + ")" * (DEPTH + 1), "a b", "a) + (b", "N//0", "N % 0", "9" * 5000, f"{END}*N", f"{2**40}*{2**40}", "+".join("ab" * 99),
    "N/2", "sqrt(N)", "__import__('os')", "N" * LENGTH + "*2", "*".join(f"(a{i} + b{i})" for i in range(9)), "1e9", "N//(M - M)", "",
]  # fmt: skip


def value_of(text: str, sizes: dict[str, int]) -> Fraction:
    """The number that ``text`` is where names have the ``sizes``."""
    known = {"floor": lambda x: Fraction(math.floor(x)), "Mod": lambda a, b: a % b, "Fraction": Fraction}
    python = re.sub(
        r"[^\W\d][\w.]*|\d+", lambda m: m[0] if m[0] in known else f"Fraction({sizes.get(m[0], m[0])})", text
    )
    return Fraction(eval(python.replace("**Fraction", "**int"), known))


@given(EXPRESSIONS, st.lists(st.integers(1, 50), min_size=len(NAMES), max_size=len(NAMES)))
@settings(max_examples=examples(200), deadline=None)
def test_the_shortest_form_has_the_value_of_the_text(text: str, numbers: list[int]) -> None:
    sizes = dict(zip(NAMES, numbers, strict=True))
    found = sum_of(text)
    assert sum_of(str(found)) == found
    try:
        assert value_of(str(found), sizes) == value_of(text, sizes)
    except ZeroDivisionError:
        assume(False)


@given(SUMS, SUMS)
@settings(max_examples=examples(100), deadline=None)
def test_a_product_divides_by_its_factors(a: str, b: str) -> None:
    assert combined(a, "*", b) == combined(b, "*", a) == sum_of(f"({a})*({b})")
    assert combined(f"({a})*({b})", "//", b) == (None if sum_of(b) == 0 else sum_of(a))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2*N + N", "3*N"), ("batch*(past + new)", "batch*(new + past)"), ("N - M", "-M + N"), ("N*N", "N**2"), ("N // 2", "floor(N/2)"),
        ("floor(h/2 - 1/2) + 1", "floor(h/2 - 1/2) + 1"), ("(N + 3)//2 + N//2", "floor(N/2 + 3/2) + floor(N/2)"), ("7//2", 3),
        ("N % 8", "Mod(N, 8)"), ("16*N % 8", 0), ("a*b//(2*c)", "floor(a*b/(2*c))"), ("(4*N + 3)//4", "N"), ("N - N", 0),
        ("2*batch-size*N-1//batch-size", "2*N-1"), ("h/2-1/2", "h/2-1/2"), ("floor(h/2-1/2)", "floor(h/2 - 1/2)"),
    ],
)  # fmt: skip
def test_the_common_forms(text: str, form: str | int) -> None:
    assert sum_of(text) == form
    assert sum_of(str(form)) == form


@pytest.mark.parametrize("name", OPAQUE)
def test_other_names_are_not_computed(name: str) -> None:
    assert sum_of(name) == name
    assert substitute_dim(name, {"N": 4}) == name
    assert (combined(name, "*", 1), combined(name, "*", 0), combined(name, "//", 1)) == (name, 0, name)
    assert [combined(name, "*", 2), combined("M", "*", name), combined(name, "+", 1)] == [None] * 3


def test_products_are_bounded() -> None:
    assert [multiplied(END - 1, 2), multiplied(f"{2**40}*N", 2**40), divided("N", 0), divided(-6, 4)] == [None] * 4
    assert [divided("128*N", 64), divided("N", 1), divided(6, 4)] == ["2*N", "N", 1]


@pytest.mark.parametrize("name", OPAQUE[:-1])
def test_no_name_reaches_sympy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reshape to [0, -1] multiplies and divides sizes; Shape, Gather, Mul and Expand compute with them."""

    def refuse(dim: ir.SymbolicDim) -> None:
        raise AssertionError(dim.value)

    monkeypatch.setattr(ir.SymbolicDim, "_expr", property(refuse))
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float["D","M",4] x) => (r, e)
        <int64[2] s = {0, -1}, int64[1] one = {1}, int64[1] zero = {0}> {
          r = Reshape(x, s) t = Shape(x) d = Gather(t, zero) m = Mul(d, d) a = Add(m, d) q = Div(a, d) e = Expand(one, q) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    model = ir.from_proto(proto)
    infer_shapes(model)
    assert str(model.graph.outputs[0].shape).startswith(f"[{name},")
    assert sys.getsizeof(str(model.graph.outputs[1].shape)) < 10 * LENGTH


def test_sums_of_names_do_not_double_where_sequences_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxscript writes a sum as the texts of both terms."""
    lengths: list[int] = []
    init = ir.SymbolicDim.__init__
    monkeypatch.setattr(
        ir.SymbolicDim, "__init__", lambda dim, value: (lengths.append(len(value or "")), init(dim, value))[1]
    )
    adds = " ".join(f"s{i + 1} = Add(s{i}, s{i})" for i in range(12))
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => (y) {{
          s0 = Shape(x) {adds} q = SequenceConstruct(s12) i = Constant<value_int = 0>() y = SequenceAt(q, i) }}"""
    model = ir.from_onnx_text(text)
    FoldConstants()(model)
    assert 0 < max(lengths) < LENGTH
