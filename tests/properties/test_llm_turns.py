"""For all turns of prompts and single tokens, in both layouts: the logits are those of the whole text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.llm import Session
from tests.cases.tiny_decoder import TOLERANCE, VOCABULARY, Form, folder, teacher_forced
from tests.dial import examples

#: Graphs with gaps: contexts that are no multiples of the lengths, one without a graph of one token.
SHAPES = [(1, 7, 11), (1, 3, 11), (1, 1, 26), (1, 7, 26), (1, 5, 40)]


@pytest.fixture(scope="module", params=["in-place", "slide"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    form = Form(layout=request.param, window=6)
    return Session(folder(tmp_path_factory.mktemp(request.param), SHAPES, form), threads=1)


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**16),
    turns=st.lists(st.tuples(st.integers(1, 14), st.integers(0, 5)), min_size=1, max_size=6),
)
def test_any_turns(session: Session, seed: int, turns: list[tuple[int, int]]) -> None:
    text = [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, 40)]
    wanted = teacher_forced(text, 6)
    session.reset()
    for prompt, steps in turns:
        end = min(session.length + prompt, len(text))
        if session.length < end:
            found = session.prefill(text[session.length : end])
            np.testing.assert_allclose(found, wanted[end - 1], rtol=0, atol=TOLERANCE)
        for _ in range(min(steps, len(text) - session.length)):
            found = session.decode(text[session.length])
            np.testing.assert_allclose(found, wanted[session.length - 1], rtol=0, atol=TOLERANCE)
    assert list(session.tokens[0]) == text[: session.length]
