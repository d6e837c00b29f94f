"""Arithmetic on symbolic sizes: the common forms computed without sympy equal those that sympy computes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.graph.evaluate import sizes
from qdq_passes.graph.evaluate.sizes import Size, divided, multiplied, simplified

from tests.dial import examples

NAMES = st.sampled_from(["N", "batch", "E", "pi", "max", "sequence_length", "_3", "a.b", "ß"])
TERMS = st.one_of(
    st.integers(-2, 70),
    NAMES,
    st.builds(lambda k, name: f"{k}*{name}", st.integers(0, 2**40), NAMES),
    st.builds(lambda a, b: f"{a}*{b}", NAMES, NAMES),
    st.builds(lambda a, b: f"{a} + {b}", NAMES, NAMES),
    st.builds(lambda k, name: f"0{k}*{name}", st.integers(0, 9), NAMES),
)


@given(TERMS, TERMS)
@settings(max_examples=examples(300), deadline=None)
def test_products_and_quotients_equal_those_of_sympy(a: Size, b: Size) -> None:
    if isinstance(a, int) and isinstance(b, int):
        assert multiplied(a, b) == a * b
        return
    assert multiplied(a, b) == simplified(f"({a})*({b})")
    if b != 0 and not (isinstance(a, int) and a < 0):
        assert divided(a, b) == simplified(f"({a})//({b})")


def test_the_common_forms() -> None:
    sizes.simplified.cache_clear()
    assert [multiplied(1, "N"), multiplied("N", 64), multiplied("64*N", 2), multiplied(0, "N")] == [
        "N",
        "64*N",
        "128*N",
        0,
    ]
    assert [divided("128*N", 64), divided("64*N", 64), divided("N", 1)] == ["2*N", "N", "N"]
    assert sizes.simplified.cache_info().currsize == 0
