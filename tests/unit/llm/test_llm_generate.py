"""`generate`, `llm perplexity` and the talk: what they compute, print and refuse; the dynamic decoder they are compared with."""

from __future__ import annotations

import builtins
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from qdq_passes.errors import SetupError, UsageError

from qdqtool.llm import Session
from qdqtool.llm.folder.tokenizing import TextStream, Tokenizer
from qdqtool.llm.run.generating import generate
from qdqtool.verbs.generate import generate as run
from tests.cases.cli_helpers import cli
from tests.cases.tiny_decoder import Form, characters, folder, last_logits, words
from tests.golden_messages.refusal import refusal, told

SHAPES = [(1, 8, 16), (1, 1, 16), (1, 8, 40), (1, 1, 40)]
PROMPT = [3, 14, 15, 9, 26]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    words(path)
    return folder(path, SHAPES, tokenizer=("tokenizer.json",), eos_token_ids=(0,))


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """By the decoder in numpy."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(last_logits(tuple(text)).argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("form", [Form(), Form(layout="slide", masks="graph")], ids=["in-place", "slide"])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "no-cache"])
def test_greedy_tokens(form: Form, cached: bool, tmp_path: Path) -> None:
    session = Session(folder(tmp_path, SHAPES, form))
    came: list[tuple[int, int]] = []
    found = generate(session, PROMPT, 30, cached=cached, on_token=lambda row, token: came.append((row, token)))
    assert list(found.tokens[0]) == greedy(PROMPT, 30)
    assert came == [(0, token) for token in found.tokens[0]]
    assert found.stopped == ("length",)
    assert (found.prompt_tokens, found.new_tokens, found.context) == (5, 30, 40)
    text = list(session.tokens[0])
    assert text == [*PROMPT, *found.tokens[0][:-1]]
    runs = sum(session.computed({name: count}) for name, count in found.runs.items())
    assert found.padded_tokens == runs - len(text)
    assert runs > 20 * 15 if not cached else runs < 70


def test_a_token_that_ends_the_text_is_the_last(model: Path) -> None:
    wanted = greedy(PROMPT, 12)
    end = wanted[7]
    assert end not in wanted[:7]
    session = Session(model)
    assert session.generate(PROMPT, 12, eos=[end]) == wanted[:8]
    session.reset()
    assert session.generate(PROMPT, 12, eos=[]) == wanted


def test_a_listener_that_breaks_off_loses_no_token(model: Path) -> None:
    """What was shown is part of the text, whether it has run or not."""
    session, shown = Session(model), []

    def listen(row: int, token: int) -> None:
        shown.append(token)
        if len(shown) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.generate(PROMPT, 12, on_token=listen)
    assert session.tokens[0] == (*PROMPT, *shown[:3])
    assert session.pending == ((shown[3],),)
    assert session.generate([7], 3) == greedy([*PROMPT, *shown, 7], 3)


def test_turns_of_generate_lose_no_token(model: Path) -> None:
    """The last token of a turn has not run; the next turn begins with it."""
    session = Session(model)
    first = session.generate(PROMPT, 6)
    assert isinstance(first, list)
    assert session.pending == ((first[-1],),)
    second = session.generate([7, 8], 6)
    text = [*PROMPT, *greedy(PROMPT, 6), 7, 8]
    assert second == greedy(text, 6)
    session.prefill([1])
    assert session.pending == ((),)


@pytest.mark.parametrize("layout", ["in-place", "slide"])
def test_rows_that_end_at_different_places(layout: Any, tmp_path: Path) -> None:
    prompts = [[3, 14, 15], [9, 26, 5, 35, 8, 9, 7, 9, 3]]
    wanted = [greedy(prompt, 12) for prompt in prompts]
    end = next(t for n, t in enumerate(wanted[0]) if n > 2 and t not in wanted[0][:n] and t not in wanted[1])
    session = Session(folder(tmp_path, [(2, 8, 40), (2, 1, 40)], Form(layout=layout)), batch_size=2)
    found = generate(session, prompts, 12, eos=[end])
    assert list(found.tokens[0]) == wanted[0][: wanted[0].index(end) + 1]
    assert list(found.tokens[1]) == wanted[1]
    assert found.stopped == ("eos", "length")
    text = [*prompts[0], *found.tokens[0]]
    assert session.generate([[4], [5]], 3, eos=[]) == [
        greedy([*text, 4], 3), greedy([*prompts[1], *wanted[1], 5], 3)
    ]  # fmt: skip


def test_what_does_not_fit_is_told_before_anything_runs(model: Path) -> None:
    session = Session(model)
    with refusal(UsageError):
        session.generate(PROMPT, 37)
    assert not session.runs
    assert len(session.generate(PROMPT, 36)) == 36
    with refusal(UsageError):
        session.generate([1], 1)
    with refusal(UsageError):
        Session(model).generate([], 1)
    with refusal(UsageError):
        Session(model).generate(PROMPT, 0)


def test_warm_up_runs_each_graph_and_changes_nothing(model: Path) -> None:
    session = Session(model, threads=1)
    session.warm_up(5, 30)
    assert sorted(session._graphs.steps) == ["decode_b1_s1_c16", "decode_b1_s1_c40", "prefill_b1_s8_c16"]
    assert not session.runs
    assert session.length == 0
    assert session.generate(PROMPT, 30) == greedy(PROMPT, 30)


def test_equal_seeds_give_equal_texts(model: Path) -> None:
    def drawn(seed: int) -> Any:
        return run(model, prompt_ids=PROMPT, max_new=20, temperature=1.5, seed=seed, eos=[]).generation.tokens

    assert drawn(1) == drawn(1) != drawn(2)


def test_the_command_prints_the_text_as_it_comes(model: Path) -> None:
    wanted = greedy(PROMPT, 10)
    text = " ".join(f"w{token}" for token in wanted if token)
    done = cli("generate", model, "--prompt", "w3 w14 w15 w9 w26", "--max-new", 10, "--eos", "none")
    assert done.out == f"{text}\n"
    assert "5 prompt tokens in" in done.err
    assert "10 new in" in done.err
    assert "warm-up" in done.err
    assert cli("generate", model, "--prompt-ids", "3,14,15,9,26", "--max-new", 10, "--eos", "none", "-q").out == ""
    data = cli("generate", model, "--prompt-ids", "3 14 15 9 26", "--max-new", 10, "--eos", "none", "--json").json
    assert data["tokens"] == wanted
    assert data["text"] == text
    assert data["prompt_ids"] == PROMPT
    assert (data["prompt_tokens"], data["new_tokens"], data["stopped"]) == (5, 10, "length")
    assert (data["seed"], data["temperature"], data["cached"], data["context"]) == (0, 0.0, True, 16)
    for key in ("prefill_s", "decode_s", "prefill_tokens_per_s", "decode_tokens_per_s", "warm_up_s"):
        assert data[key] > 0
    slow = cli(
        "generate", model, "--prompt-ids", "3,14,15,9,26", "--max-new", 10, "--no-cache", "--no-warm-up", "--json"
    )
    assert slow.json["tokens"] == [t for n, t in enumerate(wanted) if 0 not in wanted[:n]]
    assert slow.json["cached"] is False
    assert slow.json["warm_up_s"] is None
    assert slow.json["padded_tokens"] > data["padded_tokens"]


def test_without_a_tokenizer_tokens_are_shown(tmp_path: Path) -> None:
    folder(tmp_path, SHAPES)
    wanted = greedy(PROMPT, 4)
    done = cli("generate", tmp_path, "--prompt-ids", "3,14,15,9,26", "--max-new", 4)
    assert done.out.split() == [str(token) for token in wanted]
    assert cli("generate", tmp_path, "--prompt-ids", "3", "--max-new", 4, "--json").json["text"] is None
    told(cli("generate", tmp_path, "--prompt", "w3", code=2).error)


def test_several_prompts_are_a_batch(tmp_path: Path) -> None:
    words(tmp_path)
    folder(tmp_path, [(2, 8, 40), (2, 1, 40), *SHAPES], tokenizer=("tokenizer.json",))
    prompts = [[3, 4], [5, 6, 7]]
    arguments = ("generate", tmp_path, "--prompt-ids", "3,4", "--prompt-ids", "5,6,7", "--max-new", 5)
    assert cli(*arguments, "--json").json["tokens"] == [greedy(prompt, 5) for prompt in prompts]
    lines = cli(*arguments).out.splitlines()
    assert [line.split() for line in lines] == [[f"w{t}" for t in greedy(prompt, 5) if t] for prompt in prompts]
    told(cli("generate", tmp_path, *(["--prompt", "w3"] * 3), code=2).error)


def test_lines_are_turns_of_one_talk(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [3, 14], [9, 26]
    one = greedy(first, 4)
    two = greedy([*first, *one, 2, *second], 4)

    def shown(tokens: list[int]) -> str:
        return " ".join(f"w{token}" for token in tokens if token)

    lines = "w3 w14\n\nw9 w26\n/reset\nw3 w14\n" + "w1 " * 41 + "\n/exit\nw3\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines.replace("w9", "w2 w9")))
    done = cli("generate", model, "--interactive", "--max-new", 4, "--eos", "none")
    assert done.out.splitlines() == [shown(one), shown(two), shown(one)]
    assert "do not fit" in done.err
    assert "12 of 40 tokens used" in done.err
    monkeypatch.setattr("sys.stdin", io.StringIO("w14\n"))
    formed = cli("generate", model, "--interactive", "--turn", "w3 {}\\nw5", "--max-new", 3, "--eos", "none", "-q")
    assert formed.out.split() == shown(greedy([3, 14, 5], 3)).split()
    told(cli("generate", model, "--interactive", "--json", code=2).error)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--prompt", "w1", "--prompt-ids", "1"],
        ["--prompt-ids", "1,x"],
        ["--prompt-ids", ","],
        ["--prompt-ids", "1", "--temperature", "-1"],
        ["--prompt-ids", "1", "--max-new", "50"],
        ["--prompt-ids", "77"],
    ],
    ids=" ".join,
)
def test_requests_that_cannot_be_met(arguments: list[str], model: Path) -> None:
    done = cli("generate", model, *arguments, code=2)
    told(done.error)
    assert done.out == ""


def test_a_damaged_folder_runs_nothing(tmp_path: Path) -> None:
    folder(tmp_path, SHAPES)
    path = tmp_path / "decode_b1_s1_c16.onnx"
    changed = onnx.load(path)
    changed.doc_string = "changed"
    onnx.save(changed, path)
    told(cli("generate", tmp_path, "--prompt-ids", "1", code=2).error)
    assert cli("generate", tmp_path, "--prompt-ids", "1", "--max-new", 1, "--no-verify").out


def test_text_without_the_package_is_a_matter_of_setup(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tokenizers":
            raise ImportError("No module named 'tokenizers'")
        return imported(name, *rest, **more)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    with refusal(SetupError):
        Tokenizer(model)


@pytest.mark.parametrize(
    "text",
    ["plain", "naïve café", "日本語 and 한국어", "👩‍👩‍👧 family 🎉🎉", "€", "a\u0301 b\ufffd c", " two  spaces\n"],
)
def test_characters_come_whole(text: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer(characters(tmp_path))
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    stream = TextStream(tokenizer)
    pieces = [*(stream.push(token) for token in ids), stream.end()]
    assert "".join(pieces) == text == tokenizer.decode(ids)
    assert len(ids) == len(pieces) - 1
    for piece, token_count in zip(pieces, range(len(ids)), strict=False):
        assert piece in ("", *text) or len(piece) > 1, token_count


def test_bytes_that_are_no_text_come_at_the_end(tmp_path: Path) -> None:
    tokenizer = Tokenizer(characters(tmp_path))
    euro = tokenizer.encode("€")
    for ids in ([*euro[:2]], [euro[0]] * 9 + tokenizer.encode("x€") + euro[:1]):
        stream = TextStream(tokenizer)
        assert "".join([*(stream.push(token) for token in ids), stream.end()]) == tokenizer.decode(ids)
