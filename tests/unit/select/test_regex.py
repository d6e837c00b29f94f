"""Regular expressions of strangers end, and find what `re` finds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.errors import UsageError
from qdq_passes.select.regex import _parser, _Search, searcher
from qdq_passes.select.selectors import Selector

from tests.golden_messages.refusal import refusal

_PIECES = st.sampled_from([*"ab.^$/", r"\d", r"\W", r"\b", r"\Z", "[^a]", "[a-c1/]", "(?i:B)", "é", ""])
_EXPRESSIONS = st.recursive(
    _PIECES,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?", "{2,}"])),
    ),
    max_leaves=8,
)


@given(_EXPRESSIONS, st.text("abAB1/é\n", max_size=8))
def test_it_finds_what_re_finds(pattern: str, text: str) -> None:
    wanted = re.search(pattern, text) is not None
    assert _Search(_parser.parse(pattern))(text) is searcher(pattern)(text) is wanted


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", ".*a.*a.*a.*b", "(x+x+)+y|(a*)*b", "a*b"])
def test_it_ends(pattern: str) -> None:
    assert not searcher(pattern)("a" * 5000 + "c")


@pytest.mark.parametrize("pattern", ["(", r"(?=a)(a+)+", r"(a*)\1b", "((a{1,50}){1,50}b)*", "(" * 500 + ")" * 500])
def test_what_might_not_end_is_refused(pattern: str) -> None:
    with refusal(UsageError):
        searcher(pattern)


def test_what_takes_too_long_is_refused() -> None:
    found = searcher("^(?!.*head).*conv")
    assert found("conv_1") > found("conv_head")
    with refusal(UsageError):
        found("c" * 20_000)


@pytest.mark.parametrize("text", ["in:" * 65 + "x", "x" * 10_001, "path:" * 70 + "a..b"], ids=["deep", "long", "paths"])
def test_selectors_have_an_end(text: str) -> None:
    with refusal(UsageError):
        Selector.of(text)
