"""The session against a decoder written in numpy: chunks, padding, masks, positions, buckets, rows, turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from qdq_passes.errors import ModelError, UsageError

from qdqtool.llm import Session
from tests.cases.tiny_decoder import TOLERANCE, VOCABULARY, Form, folder, last_logits, teacher_forced
from tests.golden_messages.refusal import refusal

#: Two contexts; the smaller ends within the texts below.
BUCKETS = ((1, 8, 16), (1, 1, 16), (1, 4, 40), (1, 8, 40), (1, 1, 40))
IDS = [int(token) for token in np.random.default_rng(0).integers(0, VOCABULARY, 40)]
FORMS = [
    Form(),
    Form(scatter="ScatterND", window=5),
    Form(window=5, all_logits=True, parts=2),
    Form(masks="graph", counted="last_slot", window=5),
    Form(layout="slide"),
    Form(layout="slide", window=5, parts=2),
    Form(layout="slide", window=5, masks="graph"),
    Form(layout="slide", counted="index", all_logits=True),
]
#: onnxruntime has TensorScatter since 1.24.
SCATTERED = pytest.param(Form(scatter="TensorScatter", masks="graph", counted="index"), marks=pytest.mark.newest)
BOTH = [Form(window=5), Form(layout="slide", window=5)]
each_form = pytest.mark.parametrize(
    "form", [*FORMS, SCATTERED], ids=lambda form: "-".join(map(str, vars(form).values()))
)
both = pytest.mark.parametrize("form", BOTH, ids=lambda form: form.layout)


def agree(found: np.ndarray, ids: Sequence[int], form: Form) -> None:
    """``found`` are the logits of the last of ``ids``."""
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, last_logits(tuple(ids), form.window), rtol=0, atol=TOLERANCE)


def run_through(session: Session, form: Form, first: int) -> None:
    """A prompt of ``first`` tokens, then the others one by one, from the small context into the large one, to its end."""
    wanted = teacher_forced(IDS, form.window)
    session.reset()
    found = [session.prefill(IDS[:first]), *(session.decode(token) for token in IDS[first:])]
    np.testing.assert_allclose(np.array(found), wanted[first - 1 :], rtol=0, atol=TOLERANCE)
    assert session.length == session.position == len(IDS)


@each_form
def test_prefill_and_decode_give_the_logits_of_the_whole_text(form: Form, tmp_path: Path) -> None:
    session = Session(folder(tmp_path, BUCKETS, form), threads=1)
    for first in (1, 7, 8, 9, 15, 16, 17, 40):
        run_through(session, form, first)


@pytest.mark.product(cover=("form", "chunks"))
@both
@pytest.mark.parametrize("chunks", [[8, 8], [8, 4], [4, 4, 4], [1] * 11, [4, 8], [1, 8, 4]])
def test_any_chunks_give_the_same(form: Form, chunks: list[int], tmp_path: Path) -> None:
    session = Session(folder(tmp_path, [(1, 8, 16), (1, 4, 16), (1, 1, 16)], form))
    agree(session.prefill(IDS[:11], chunks=chunks), IDS[:11], form)
    agree(session.decode(IDS[11]), IDS[:12], form)


@both
@pytest.mark.parametrize("context", [16, 19, 21])
def test_up_to_the_last_slot_without_graphs_that_fit(form: Form, context: int, tmp_path: Path) -> None:
    """Padded chunks would end behind the context: they begin earlier instead."""
    session = Session(folder(tmp_path, [(1, 8, context)], form))
    for count in range(1, context + 1):
        session.reset()
        agree(session.prefill(IDS[:count]), IDS[:count], form)
        for more in range(count, context):
            agree(session.decode(IDS[more]), IDS[: more + 1], form)


@both
def test_a_graph_as_long_as_the_context(form: Form, tmp_path: Path) -> None:
    session = Session(folder(tmp_path, [(1, 12, 12)], form))
    for count in (1, 5, 12):
        session.reset()
        agree(session.prefill(IDS[:count]), IDS[:count], form)
    session.reset()
    agree(session.prefill(IDS[:5]), IDS[:5], form)
    agree(session.prefill(IDS[5:7]), IDS[:7], form)


@pytest.mark.product(cover=("form", "turns"))
@both
@pytest.mark.parametrize("turns", [(3, 3, 3), (9, 2, 11), (8, 8, 8), (1, 1, 17), (16, 7, 1, 9)])
def test_turns_go_on_behind_the_cache(form: Form, turns: tuple[int, ...], tmp_path: Path) -> None:
    session = Session(folder(tmp_path, BUCKETS, form))
    end = 0
    for count in turns:
        agree(session.prefill(IDS[end : end + count]), IDS[: end + count], form)
        end += count
        agree(session.decode(IDS[end]), IDS[: end + 1], form)
        end += 1
    assert session.tokens == (tuple(IDS[:end]),)


@both
def test_a_prompt_of_the_same_length_after_a_reset(form: Form, tmp_path: Path) -> None:
    """What was in the cache at the same positions is another text's."""
    session = Session(folder(tmp_path, BUCKETS, form))
    for text in (IDS[:20], IDS[20:], IDS[::2]):
        session.reset()
        for end in (9, 11, 18):
            agree(session.prefill(text[session.length : end]), text[:end], form)
            agree(session.decode(text[end]), text[: end + 1], form)


@both
def test_a_run_after_reset_gives_the_same_bits(form: Form, tmp_path: Path) -> None:
    session = Session(folder(tmp_path, BUCKETS, form), threads=1)
    first = [session.prefill(IDS[:9]), session.decode(IDS[9])]
    session.prefill(IDS[10:30])
    session.reset()
    second = [session.prefill(IDS[:9]), session.decode(IDS[9])]
    np.testing.assert_array_equal(np.array(first), np.array(second))


@pytest.mark.product(cover=("form", "lengths"), extra=1)
@pytest.mark.parametrize("lengths", [(5, 5, 5), (1, 9, 4), (17, 3, 8), (12, 1, 12)])
@pytest.mark.parametrize(
    "form",
    [
        *BOTH,
        Form(masks="graph", window=5),
        Form(layout="slide", masks="graph"),
        Form(scatter="ScatterND", all_logits=True),
    ],
    ids=["in-place", "slide", "graph", "slide-graph", "all-logits"],
)
def test_rows_of_different_lengths(form: Form, lengths: tuple[int, ...], tmp_path: Path) -> None:
    session = Session(folder(tmp_path, [(3, 8, 12), (3, 1, 12), (3, 8, 40), (3, 1, 40)], form), batch_size=3)
    texts = [IDS[row : row + length] for row, length in enumerate(lengths)]
    found = session.prefill(texts)
    for row, text in enumerate(texts):
        agree(found[row], text, form)
    for step in range(8):
        more = [IDS[-step - 1], IDS[-step - 2], IDS[-step - 3]]
        found = session.decode(more)
        texts = [[*text, token] for text, token in zip(texts, more, strict=True)]
        for row, text in enumerate(texts):
            agree(found[row], text, form)
    second: list[list[int]] = [IDS[3:7], [], IDS[10:19]]  # another turn, in which a row waits
    found = session.prefill(second)
    texts = [[*text, *more] for text, more in zip(texts, second, strict=True)]
    for row in (0, 2):
        agree(found[row], texts[row], form)
    assert not found[1].any()
    found = session.decode([1, 2, 3])
    for row, text in enumerate(texts):
        agree(found[row], [*text, row + 1], form)
    assert session.lengths == tuple(len(text) + 1 for text in texts)


@both
def test_the_logits_are_the_callers_own(form: Form, tmp_path: Path) -> None:
    session = Session(folder(tmp_path, BUCKETS, form))
    first = session.prefill(IDS[:3])
    kept = first.copy()
    session.decode(IDS[3])
    session.prefill(IDS[4:9])
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("all_logits", [False, True])
@both
def test_logits_of_all_tokens(form: Form, all_logits: bool, tmp_path: Path) -> None:
    form = Form(**{**vars(form), "all_logits": all_logits})
    session = Session(folder(tmp_path, BUCKETS, form))
    wanted = teacher_forced(IDS, form.window)
    parts = [session.logits(IDS[:13]), session.logits(IDS[13:39]), session.logits(IDS[39:])]
    np.testing.assert_allclose(np.concatenate(parts), wanted, rtol=0, atol=TOLERANCE)
    assert session.gives_all_logits is all_logits


def test_in_place_past_and_present_are_one_memory(tmp_path: Path) -> None:
    session = Session(folder(tmp_path, BUCKETS))
    session.prefill(IDS[:3])
    (step,) = (step for step in session._graphs.steps.values() if step.model.seq_len in (1, 8))
    array, cache = step._array, session._graphs.cache(16)
    for layer in range(2):
        for part in ("key", "value"):
            assert array[f"past.{layer}.{part}"] is array[f"present.{layer}.{part}"]
            assert array[f"past.{layer}.{part}"] is cache.buffers[layer, part].array
    before = cache.buffers[1, "value"].array.copy()
    session.decode(IDS[3])
    rows = np.flatnonzero((cache.buffers[1, "value"].array != before).any(axis=(0, 1, 3)))
    assert list(rows) == [3]


def test_the_smallest_context_that_holds(tmp_path: Path) -> None:
    session = Session(folder(tmp_path, BUCKETS))
    assert session.contexts == (16, 40)
    assert session.context == 40
    assert session.ctx_len == 0
    session.prefill(IDS[:16])
    assert session.ctx_len == 16
    session.decode(IDS[16])
    assert session.ctx_len == 40
    session.reset()
    session.prefill(IDS[:17])
    assert set(session.runs) <= {"prefill_b1_s8_c16", "decode_b1_s1_c40", "prefill_b1_s8_c40", "prefill_b1_s4_c40"}
    assert session.ctx_len == 40


@both
def test_too_long_is_an_error_before_anything_runs(form: Form, tmp_path: Path) -> None:
    session = Session(folder(tmp_path, BUCKETS, form))
    with refusal(UsageError):
        session.prefill([*IDS, 1])
    assert not session.runs
    session.prefill(IDS[:39])
    runs = session.runs.total()
    with refusal(UsageError):
        session.prefill([1, 2])
    agree(session.decode(IDS[39]), IDS, form)
    with refusal(UsageError):
        session.decode(1)
    assert session.runs.total() == runs + 1
    assert session.tokens == (tuple(IDS),)


def test_what_is_no_prompt(tmp_path: Path) -> None:
    session = Session(folder(tmp_path, [(1, 4, 16), (2, 4, 16)]))
    assert session.batch_size == 1
    for ids in ([], [-1], [VOCABULARY]):
        with refusal(UsageError):
            session.prefill(ids)
    with refusal(UsageError):
        session.decode(VOCABULARY)
    with refusal(UsageError):
        session.prefill([[1], [2]])
    with refusal(UsageError):
        session.prefill([1], chunks=[5])
    with refusal(UsageError):
        session.prefill([1] * 5, chunks=[4])
    with refusal(UsageError):
        Session(tmp_path, batch_size=3)
    assert session.length == 0


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with refusal(ModelError):
        Session(tmp_path)
    with refusal(ModelError):
        Session(tmp_path / "missing")


@pytest.mark.parametrize("ids", [[1.5], [1, 2.0], np.array([1.0]), ["1"], [None]])
def test_what_is_no_whole_number_is_no_token(ids: list[int], tmp_path: Path) -> None:
    """1.5 would run as 1."""
    session = Session(folder(tmp_path, BUCKETS, Form()))
    with refusal(UsageError):
        session.prefill(ids)
    with refusal(UsageError):
        session.generate(ids, 2)
    agree(session.prefill(np.array(IDS[:3], np.int32)), IDS[:3], Form())  # type: ignore[arg-type]
