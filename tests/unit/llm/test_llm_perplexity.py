"""Perplexity of split and dynamic decoders by its definition, and the dynamic decoder itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from qdq_passes.errors import UnsupportedError, UsageError

from qdqtool.io.models.load import load
from qdqtool.llm import Session
from qdqtool.llm.run.dynamic import DynamicDecoder
from qdqtool.llm.run.perplexity import measured, spans
from tests.cases.cli_helpers import cli, write
from tests.cases.tiny_decoder import (
    TOLERANCE,
    VOCABULARY,
    Form,
    characters,
    dynamic,
    folder,
    last_logits,
    teacher_forced,
    words,
)
from tests.golden_messages.refusal import refusal, told

SHAPES = [(1, 8, 16), (1, 1, 16), (1, 8, 40), (1, 1, 40)]
PROMPT = [3, 14, 15, 9, 26]


def test_windows_score_each_token_once() -> None:
    assert spans(10, 4, 4) == [(0, 4, 1), (4, 8, 5), (8, 10, 9)]
    assert spans(9, 4, 4) == [(0, 4, 1), (4, 8, 5)]
    assert spans(10, 4, 2) == [(0, 4, 1), (2, 6, 4), (4, 8, 6), (6, 10, 8)]
    assert spans(3, 8, 8) == [(0, 3, 1)]
    for window, stride in ((5, 1), (7, 3), (8, 7)):
        scored = [i for begin, end, first in spans(40, window, stride) for i in range(first, end)]
        assert scored == list(range(1, 40))


def by_hand(ids: Sequence[int], window: int, stride: int) -> float:
    """Perplexity by its definition, with the decoder in numpy."""
    losses = []
    for begin, end, first in spans(len(ids), window, stride):
        logits = teacher_forced(ids[begin:end])
        for place in range(first, end):
            row = logits[place - begin - 1]
            losses.append(math.log(np.exp(row).sum()) - row[ids[place]])
    return math.exp(sum(losses) / len(losses))


@pytest.mark.parametrize(("window", "stride"), [(40, None), (16, 16), (13, 5), (2, 1)])
def test_perplexity_by_its_definition(window: int, stride: int | None, tmp_path: Path) -> None:
    ids = [int(token) for token in np.random.default_rng(2).integers(0, VOCABULARY, 90)]
    wanted = by_hand(ids, window, stride or window)
    decoders = [
        Session(folder(tmp_path / "in-place", SHAPES)),
        Session(folder(tmp_path / "slide", SHAPES, Form(layout="slide", all_logits=True))),
        DynamicDecoder(dynamic(tmp_path / "m.onnx")),
    ]
    for decoder in decoders:
        found = measured(decoder, ids, window, stride)
        assert found.perplexity == pytest.approx(wanted, rel=1e-5)
        assert found.tokens == sum(end - first for _, end, first in spans(90, window, stride or window))


def test_the_perplexity_command(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", SHAPES)
    words(model)
    ids = [int(token) for token in np.random.default_rng(4).integers(1, VOCABULARY, 100)]
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{token}" for token in ids), encoding="utf-8")
    static = cli("llm", "perplexity", model, "--data", text, "--json").json
    assert set(static) == {"perplexity", "tokens", "windows", "window", "stride", "seconds", "warnings"}
    assert (static["tokens"], static["windows"], static["window"], static["stride"]) == (97, 3, 40, 40)
    assert static["perplexity"] == pytest.approx(by_hand(ids, 40, 40), rel=1e-5)
    words(tmp_path)
    source = dynamic(tmp_path / "m.onnx")
    same = cli("llm", "perplexity", source, "--data", text, "--window", 40, "--json").json
    assert same["perplexity"] == pytest.approx(static["perplexity"], rel=1e-5)
    shown = cli("llm", "perplexity", source, "--data", text, "--window", 20, "--stride", 10, "--max-tokens", 50).out
    assert shown.startswith("perplexity ")
    assert "over 49 tokens in 4 windows of 20" in shown
    for arguments in (("--window", 41), ("--window", 10, "--stride", 11), ("--tokenizer", tmp_path / "none.json")):
        told(cli("llm", "perplexity", model, "--data", text, *arguments, code=2).error)
    text.write_text("w3", encoding="utf-8")
    told(cli("llm", "perplexity", model, "--data", text, code=2).error)
    told(cli("llm", "perplexities", code=2).error)


def test_a_text_of_another_tokenizer_is_told(tmp_path: Path) -> None:
    characters(tmp_path)
    folder(tmp_path, SHAPES)
    (tmp_path / "text.txt").write_text("zebra ÿ", encoding="utf-8")
    told(cli("llm", "perplexity", tmp_path, "--data", tmp_path / "text.txt", code=2).error)


@pytest.mark.parametrize("inputs", [{}, {"positions": False}, {"mask": False}])
def test_the_dynamic_decoder(inputs: dict[str, bool], tmp_path: Path) -> None:
    decoder = DynamicDecoder(dynamic(tmp_path / "m.onnx", **inputs), threads=1)
    ids = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY, 40)]
    for _ in range(2):
        found = [*decoder.logits(ids[:9]), decoder.prefill(ids[9:17]), *(decoder.decode(t) for t in ids[17:])]
        wanted = teacher_forced(ids)
        np.testing.assert_allclose(np.array(found), wanted[[*range(9), *range(16, 40)]], rtol=0, atol=TOLERANCE)
        assert decoder.length == 40
        decoder.reset()
    with refusal(UsageError):
        decoder.logits([])


def test_sizes_of_the_cache_that_only_inference_knows(tmp_path: Path) -> None:
    path = dynamic(tmp_path / "m.onnx")
    model = load(path)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if "past" in (value.name or "") or "present" in (value.name or ""):
            shape = list(value.shape or ())
            value.shape = type(value.shape)([shape[0], shape[1], shape[2], "size"])  # type: ignore[call-arg,misc]
    decoder = DynamicDecoder(model)
    np.testing.assert_allclose(decoder.prefill(PROMPT), last_logits(tuple(PROMPT)), rtol=0, atol=TOLERANCE)
    present = model.graph.outputs[1]
    present.shape = type(present.shape)([2])  # type: ignore[call-arg,misc]
    with pytest.raises(UnsupportedError, match="axis 3"):
        DynamicDecoder(model)


def test_inputs_of_unknown_meaning_are_refused(tmp_path: Path) -> None:
    text = """g (int64[b,s] input_ids, float[b,s] weather, float[b,1,p,4] past_key_values_0_key, float[b,1,p,4] past_key_values_0_value)
        => (float[b,s,4] logits, float[b,1,t,4] present_0_key, float[b,1,t,4] present_0_value)
        <float[9,4] table = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35},
         int64[1] one = {1}, float[4,4] head = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}, int64[1] two = {2}>
        { x = Gather(table, input_ids)
          w = Unsqueeze(weather, two)
          y = Add(x, w)
          q = Unsqueeze(y, one)
          present_0_key = Concat<axis=2>(past_key_values_0_key, q)
          present_0_value = Concat<axis=2>(past_key_values_0_value, q)
          k = Transpose<perm=[0,1,3,2]>(present_0_key)
          scores = MatMul(q, k)
          shares = Softmax<axis=-1>(scores)
          mixed = MatMul(shares, present_0_value)
          z = Squeeze(mixed, one)
          logits = MatMul(z, head) }"""
    with refusal(UnsupportedError):
        DynamicDecoder(write(tmp_path / "m.onnx", text))
