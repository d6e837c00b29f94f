"""The trained decoder on the simulated HTP: the arithmetic of the chip costs it nothing that perplexity shows, next to nothing of it
is left to the CPU, and what is has a reason."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from qdq_passes.npu.units.verdict import CPU

import qdqtool
from qdqtool.llm import Session
from qdqtool.verbs.perplexity import perplexity
from tests.cases.random_decoders import random_decoder
from tests.dial import sized

ROOT = Path(__file__).parents[3]
LLAMA = ROOT / "sample_models/tiny_llama.onnx"
TEXT = ROOT / "sample_models/text"
CHIP = "qnn_htp"
PRESETS = ("mobilequant", "qnn-a16w8")
#: For whom it is quantized: for the chip, all of it is computed on integers; for none, widths mix, and norms stay float. The part
#: takes one preset for one of the two, the same in all tests.
FOR = (CHIP, None)
#: Of the linear arrangement: the embedding; q, k and v, the output projection, the MLP of each of four layers; the head.
PARTITIONS = 1 + 3 * 4 + 1
PROMPT = 'The "if" statement is used for'
#: Of the text whose perplexity is looked at.
TOKENS = sized(512, 192)
WAYS: dict[str, dict[str, Any]] = {
    "sequential": {"schedule": "sequential"},
    "in-order": {"schedule": "in-order"},
    "out-of-order": {},
    "linear": {"arrange": "linear"},
    "linear-sequential": {"arrange": "linear", "schedule": "sequential"},
}


@cache
def split() -> Path:
    home = Path(mkdtemp())
    qdqtool.split(LLAMA, home / "float", prefill=(16,), context=(128,))
    return home


@cache
def quantized(preset: str, target: str | None) -> Path:
    path = split() / f"{preset}-{target}"
    qdqtool.quantize(split() / "float", path, preset=preset, target=target, data=str(TEXT / "train.txt"), samples=4)
    return path


@cache
def scored(preset: str, target: str | None) -> Path:
    """The graph of the prefill alone, which gives all logits: what a text is scored with."""
    home = Path(mkdtemp())
    qdqtool.split(LLAMA, home / "float", prefill=(16,), decode=(), context=(128,), all_logits=True)
    qdqtool.quantize(
        home / "float", home / "int8", preset=preset, target=target, data=str(TEXT / "train.txt"), samples=4
    )
    return home / "int8"


@cache
def placed(preset: str, target: str | None) -> Path:
    """A decoder of one layer with random weights: where its operators run does not hang on what it has learned."""
    home = Path(mkdtemp())
    decoder = random_decoder(home / "decoder.onnx", "grouped", layers=1)
    qdqtool.split(decoder, home / "float", prefill=(16,), context=(128,))
    qdqtool.quantize(home / "float", home / "int8", preset=preset, target=target, data="random:2")
    return home / "int8"


@cache
def logits(preset: str, target: str | None, way: str) -> tuple[np.ndarray[Any, np.dtype[np.float32]], Session]:
    """Logits behind 41 tokens in three chunks, the last of them padded, and behind three more."""
    session = Session(quantized(preset, target), device="npusim", target=CHIP, threads=1, **WAYS[way])
    ids = [int(n) for n in np.random.default_rng(1).integers(3, 300, 44)]
    return np.array([session.prefill(ids[:41]), *(session.decode(n) for n in ids[41:])]), session


@pytest.mark.product(days=12)
@pytest.mark.parametrize("target", FOR)
@pytest.mark.parametrize("preset", PRESETS)
def test_perplexity_is_that_of_the_qdq_model(preset: str, target: str | None) -> None:
    """The bound of the project is 1 %; a quantized folder runs on the CPU without optimization."""
    path, data = scored(preset, target), TEXT / "held_out.txt"
    wanted = perplexity(path, data, max_tokens=TOKENS)
    found = perplexity(path, data, max_tokens=TOKENS, device="npusim", target=CHIP, schedule="sequential")
    assert found.tokens == wanted.tokens
    assert abs(found.perplexity / wanted.perplexity - 1) < 0.01
    assert wanted.perplexity < 8, "4.7 was measured: the quantized model is still one"


@pytest.mark.product(days=12)
@pytest.mark.parametrize("target", FOR)
@pytest.mark.parametrize("preset", PRESETS)
def test_nearly_all_of_it_runs_on_the_npu_and_the_rest_has_reasons(preset: str, target: str | None) -> None:
    session = Session(placed(preset, target), device="npusim", target=CHIP)
    session.warm_up(16, 2)
    assert {placement.phase for placement in session.placements} == {"prefill", "decode"}
    for placement in session.placements:
        assert placement.npu_macs_share >= 0.95
        on_cpu = [unit for unit in placement.units if unit.engine == CPU]
        assert all(unit.rule and unit.reason and unit.suggestion for unit in on_cpu)
        assert target is None or not on_cpu
        assert not [
            note for note in placement.notes if not note.startswith("assumed: the KV cache stays on the device")
        ]


@pytest.mark.product(extra=0)
@pytest.mark.parametrize("target", FOR)
@pytest.mark.parametrize("preset", PRESETS)
def test_linear_arrangement_says_why_of_every_operator(preset: str, target: str | None) -> None:
    _, session = logits(preset, target, "linear")
    for placement in session.placements:
        on_cpu = [unit for unit in placement.units if unit.engine == CPU]
        assert {unit.rule for unit in on_cpu} == {"arrangement"}
        assert all(unit.reason and unit.suggestion for unit in on_cpu)
        assert placement.stages == 2 * PARTITIONS + 1, "the CPU before, between and behind them"


@pytest.mark.product(extra=0)
@pytest.mark.parametrize("target", FOR)
@pytest.mark.parametrize("preset", PRESETS)
def test_schedules_compute_the_same(preset: str, target: str | None) -> None:
    """Stages in floating point too: of what is not quantized for the chip, the chip computes in float16."""
    wanted, session = logits(preset, target, "sequential")
    for way in ("in-order", "out-of-order"):
        np.testing.assert_array_equal(logits(preset, target, way)[0], wanted)
    engines = {unit.engine for placement in session.placements for unit in placement.units}
    assert ("HVX float16" in engines) == (target is None)


@pytest.mark.product(extra=0)
@pytest.mark.parametrize("target", FOR)
@pytest.mark.parametrize("preset", PRESETS)
def test_schedules_of_the_linear_arrangement_compute_the_same(preset: str, target: str | None) -> None:
    wanted, _ = logits(preset, target, "linear-sequential")
    np.testing.assert_array_equal(logits(preset, target, "linear")[0], wanted)


@pytest.mark.product(extra=0)
@pytest.mark.parametrize("preset", PRESETS)
def test_it_writes_on_as_the_cpu_does(preset: str) -> None:
    """Greedy: the arithmetic of the chip differs from onnxruntime's by less than what parts the first tokens."""
    texts = [
        qdqtool.generate(quantized(preset, CHIP), prompt=PROMPT, max_new=6, **device)
        for device in (
            {},
            {"device": "npusim", "target": CHIP},
            {"device": "npusim", "target": CHIP, "arrange": "linear"},
        )
    ]
    assert len({text.texts[0] for text in texts}) == 1
