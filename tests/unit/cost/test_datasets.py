"""Times that are means over data sets, of whose lengths a range is told: in the fit, in own rows, in the chip's file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.chips.chip import Chip
from qdqtool.chips.loading import load_chip
from qdqtool.cost.calibrating import calibrated, own_rows, predicted
from qdqtool.cost.chip_file import chip_text
from qdqtool.cost.decoder_fit import EVEN, call_of, fit_decoders, leave_one_model_out
from qdqtool.cost.decoders import STREAMING, Call, log_ms
from qdqtool.cost.fitting import EIGHTY
from qdqtool.cost.rows import Row
from qdqtool.cost.shapes import read_shape

KNOWN = ["Llama3.2-1B", "Llama3.2-3B", "Llama3.1-8B", "Qwen3-0.6B"]
#: Under llm.npu nobody measured it in public.
NEW = read_shape("Mistral-7B")
THETA = np.log([each.ms for each in STREAMING.coefficients])
RANGE = (10.0, 30.0)
SD = EVEN * 20 / 20
CHIP = load_chip("8 Gen 3")
WIKI = "2wiki 2-4 decode"


def answers(model: str, tokens: float, dataset: str, name: str = "") -> Row:
    """The mean time of answers of so many tokens, of which the range alone is told: 20 in the middle."""
    a_token = log_ms(STREAMING, THETA, read_shape(model), Call(phase="decode", context=2048, precision="w4"))[0]
    return Row(
        id=f"{name} {model} {dataset}", model=model, stack="FastFlowLM", precision="w4", value=tokens * math.exp(a_token),
        metric="latency_total", chip="N", phase="decode", seq_len=2048, out_tokens=20, dataset=dataset, out_range=RANGE,
    )  # fmt: skip


def plain(model: str) -> list[Row]:
    """Of one token at three lengths of context."""
    calls = [Call(phase="decode", context=context, precision="w4") for context in (512, 2048, 8192)]
    return [
        Row(
            id=f"{model} {call.context}", model=model, stack="FastFlowLM", precision="w4", chip="N", phase="decode",
            value=math.exp(log_ms(STREAMING, THETA, read_shape(model), call)[0]), seq_len=call.context,
        )
        for call in calls
    ]  # fmt: skip


def llm_npu(model: str, ms: float, **more: Any) -> Row:
    """Of a whole decode on the chip, at 1561 tokens of context."""
    row = Row(
        id=f"{model} {ms}", model=model, stack="llm.npu", precision="engine default", value=ms, metric="latency_total",
        phase="decode", seq_len=1561, out_tokens=3,
    )  # fmt: skip
    return replace(row, **more)


WIKI_ROW = {"dataset": "2wiki", "out_range": (2.0, 4.0)}
MINE = {"dataset": "mine", "out_range": (1.0, 5.0)}


def told(chip: Chip, row: Row) -> tuple[float, float]:
    """Milliseconds of a token, and the standard deviation of their logarithm."""
    (own,) = own_rows([row], chip)[0]
    found = predicted([chip], chip, own, {})
    assert found is not None
    return math.exp(found[0]), found[1]


def moved(*rows: Row) -> Chip:
    return calibrated([CHIP], CHIP, CHIP, own_rows(rows, CHIP)[0], {})


def test_a_range_counts_where_the_time_hangs_on_it() -> None:
    row = answers("Llama3.2-1B", 26, "quiz")
    call = call_of(row)
    assert (call.lengths, call.length_sd) == ("quiz 10-30 decode", pytest.approx(SD))
    prompts = replace(row, phase="prefill", metric="latency", seq_len=150, seq_range=(100.0, 200.0))
    assert call_of(prompts).lengths == "quiz 100-200 prefill"
    for other in (
        replace(row, metric="latency"),  # of one token
        replace(row, out_tokens=12),  # the mean is known
        replace(row, out_range=(19.0, 21.0)),  # lost in the noise
        replace(prompts, metric="throughput"),
        replace(prompts, seq_len=120),
        replace(prompts, seq_range=None),
    ):
        assert (call_of(other).lengths, call_of(other).length_sd) == ("", 0.0)


def test_all_models_have_the_error_of_a_middle() -> None:
    """Rows of three models whose answers are 1.3 times as long as the middle of their range, and of others that are not."""
    sets = [answers(model, tokens, name) for name, tokens in (("long", 26), ("right", 20)) for model in KNOWN[:3]]
    rows = [*(row for model in KNOWN for row in plain(model)), *sets]
    fit = fit_decoders(rows)["N", "FastFlowLM"]
    assert list(fit.datasets) == ["long 10-30 decode", "right 10-30 decode"]
    found, sd = fit.datasets["long 10-30 decode"]
    assert found == pytest.approx(math.log(1.3), abs=2 * sd)
    assert sd < SD / 4
    assert abs(fit.datasets["right 10-30 decode"][0]) < 2 * sd
    assert fit_decoders(rows[::-1])["N", "FastFlowLM"].datasets.keys() == fit.datasets.keys()

    asked, shape = Call(phase="decode", context=2048, precision="w4"), read_shape("Qwen3-1.7B")
    alone, long, unknown = (
        fit.log_ms(shape, replace(asked, dataset=name, length_sd=SD if name else 0.0))
        for name in ("", "long 10-30", "other 10-30")
    )
    assert (long[0], long[1]) == (pytest.approx(alone[0] + found), alone[1])
    assert (unknown[0], unknown[1]) == (alone[0], pytest.approx(math.hypot(alone[1], SD)))


def test_a_left_out_model_with_a_data_set_of_its_own_is_unsure_of_it() -> None:
    rows = [*(row for model in KNOWN for row in plain(model)), answers(KNOWN[0], 26, "mine")]
    widths = {row.id: high / low for row, _, low, high in leave_one_model_out(rows)}
    alone = max(width for name, width in widths.items() if "mine" not in name)
    assert widths[f" {KNOWN[0]} mine"] > math.exp(2 * EIGHTY * SD) > alone


def test_a_shipped_profile_tells_them() -> None:
    (profile,) = CHIP.profiles_of("llm.npu").values()
    plain, wiki, other = (
        told(CHIP, llm_npu(NEW.name, 600, **more)) for more in ({}, WIKI_ROW, {**WIKI_ROW, "dataset": "none"})
    )
    assert wiki[0] == pytest.approx(plain[0] * profile.datasets[WIKI][0])
    assert (other[0], other[1] > plain[1] == wiki[1]) == (plain[0], True)


def test_an_own_row_as_the_profile_tells_it_moves_nothing() -> None:
    """What is known of the data set is taken out of the row, and put back where it is told again."""
    rows = [
        llm_npu(model, 3 * told(CHIP, llm_npu(model, 1, **WIKI_ROW))[0], **WIKI_ROW) for model in (NEW.name, "Gemma-2B")
    ]
    found = moved(*rows)
    for model in (NEW.name, "Gemma-2B", "Qwen2.5-3B"):
        for more in ({}, WIKI_ROW):
            before, after = (told(chip, llm_npu(model, 1, **more)) for chip in (CHIP, found))
            assert after[0] == pytest.approx(before[0], rel=0.01)
            assert after[1] <= before[1] or model == "Qwen2.5-3B"


def test_slow_rows_of_one_data_set_are_more_likely_long_answers() -> None:
    """Six models 1.4 times slower: with a range of lengths the data set is to blame, without one the chip."""
    models = [NEW.name, "Gemma-2B", "Qwen2.5-3B", "Llama3.2-1B", "Llama3.2-3B", "Qwen2.5-7B"]
    slow = [llm_npu(model, 3 * 1.4 * told(CHIP, llm_npu(model, 1))[0]) for model in models]
    vague, exact = moved(*(replace(row, **MINE) for row in slow)), moved(*slow)
    (profile,) = vague.profiles_of("llm.npu").values()
    factor, sd = profile.datasets["mine 1-5 decode"]
    assert 1.15 < factor < 1.4
    assert sd < EVEN * 4 / 3
    other = llm_npu("Phi-4-mini", 1)
    before, blamed, unblamed = (told(chip, other)[0] for chip in (CHIP, vague, exact))
    assert before < blamed < before * 1.2 < unblamed
    again = told(vague, replace(other, **MINE))[0]
    assert again == pytest.approx(1.4 * before, rel=0.1)


def test_a_chip_file_keeps_them(tmp_path: Path) -> None:
    own = [llm_npu(NEW.name, 3 * 260.0, **MINE), llm_npu("Llama2-7B", 3 * 150.0)]
    found = moved(*own)
    path = tmp_path / "mine.toml"
    path.write_text(chip_text(found), encoding="utf-8")
    read = load_chip(path)
    for row in (*own, llm_npu(NEW.name, 1, **WIKI_ROW), llm_npu("Gemma-2B", 1, **MINE)):
        assert told(read, row) == pytest.approx(told(found, row), rel=0.01)
    (profile,) = read.profiles_of("llm.npu").values()
    rows = [row for row in profile.of_model["Llama2-7B"] if (row.phase, row.context) == ("decode", 1561)]
    assert {row.dataset for row in rows} == {"", "2wiki 2-4"}, "an own row stands beside one of another length"
    two = own_rows([llm_npu(NEW.name, 1), llm_npu(NEW.name, 1, **MINE)], CHIP)[0]
    assert two[0].key != two[1].key
