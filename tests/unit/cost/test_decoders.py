"""The forms of decoders' time and their fit, on made rows and on three published ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.cost.decoder_fit import chip_of, fit_decoders, leave_one_model_out
from qdqtool.cost.decoders import FORMS, STREAMING, Call, Form, breakdown, form_of, log_ms, weight_bits
from qdqtool.cost.fitting import Array
from qdqtool.cost.rows import Phase, Row
from qdqtool.cost.shapes import DecoderShape, read_shape

SHAPE = read_shape("Gemma3-4B")


def mean(form: Form) -> Array:
    return np.log([c.ms for c in form.coefficients])


def call(phase: str, tokens: int, context: int, precision: str) -> Call:
    if phase == "decode":
        return Call(phase="decode", context=context, precision=precision)
    return Call(phase="prefill", tokens=tokens, context=context, precision=precision)


@given(
    st.sampled_from(FORMS),
    st.sampled_from(["prefill", "decode"]),
    st.integers(1, 4096),
    st.integers(1, 8192),
    st.integers(1, 60),
    st.lists(st.floats(-2, 2), min_size=9, max_size=9),
)
@settings(max_examples=60, deadline=None)
def test_more_work_never_takes_less_time(
    form: Form, phase: str, tokens: int, context: int, layers: int, off: list[float]
) -> None:
    theta = mean(form) + np.array(off)[: len(form.coefficients)]
    shape = replace(SHAPE, layers=layers)

    def time(shape: DecoderShape, tokens: int, context: int, precision: str) -> float:
        return log_ms(form, theta, shape, call(phase, tokens, context, precision))[0]

    first = time(shape, tokens, context, "w4a16") - 1e-9
    assert time(shape, tokens + 100, context, "w4a16") >= first
    assert time(shape, tokens, context + 100, "w4a16") >= first
    assert time(replace(shape, layers=layers + 1), tokens, context, "w4a16") >= first
    assert time(shape, tokens, context, "w8a16") >= first
    slopes = log_ms(form, theta, shape, call(phase, tokens, context, "w4a16"))[1]
    assert (slopes >= 0).all(), "what takes longer a unit never makes the whole faster"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_slopes_are_those_of_differences_and_parts_add_up(form: Form, phase: str) -> None:
    theta, asked = mean(form), call(phase, 300, 2048, "w4")
    log, slopes = log_ms(form, theta, SHAPE, asked)
    for at, step in enumerate(1e-5 * np.eye(len(theta))):
        difference = log_ms(form, theta + step, SHAPE, asked)[0] - log_ms(form, theta - step, SHAPE, asked)[0]
        assert slopes[at] == pytest.approx(difference / 2e-5, abs=1e-6), form.names[at]
    assert sum(breakdown(form, theta, SHAPE, asked).values()) == pytest.approx(math.exp(log))


def made(theta: Array, models: list[str], offset: float = 0.0) -> list[Row]:
    rows = []
    phases: tuple[Phase, Phase] = ("prefill", "decode")
    for model in models:
        for phase in phases:
            for tokens in (512, 2048, 8192):
                ms = math.exp(
                    log_ms(STREAMING, theta, read_shape(model), call(phase, tokens, tokens, "w4"))[0] + offset
                )
                rows.append(
                    Row(
                        id=f"{model} {phase} {tokens}",
                        model=model,
                        stack="FastFlowLM",
                        precision="w4",
                        value=ms,
                        chip="N",
                        phase=phase,
                        seq_len=tokens,
                    )
                )
    return rows


KNOWN = ["Llama3.2-1B", "Llama3.2-3B", "Llama3.1-8B", "Qwen3-0.6B"]


def test_a_fit_finds_what_the_rows_were_made_of() -> None:
    theta = mean(STREAMING) + np.array([0.2, -0.2, 0, 0.3, -0.3, 0, 0.2, 0.3, -0.3])
    rows = made(theta, KNOWN)
    fit = fit_decoders(rows)["N", "FastFlowLM"]
    for name in ("weights", "mac", "scores", "load"):
        at = STREAMING.names.index(name)
        assert fit.posterior.mean[at] == pytest.approx(theta[at], abs=0.25), name
    for row, ms, low, high in leave_one_model_out(rows):
        assert low < row.ms < high
        assert ms == pytest.approx(row.ms, rel=0.12)
    assert fit_decoders(rows)["N", "FastFlowLM"].posterior.mean.tolist() == fit.posterior.mean.tolist()
    assert fit.training["tokens"] == (512.0, 8192.0)
    unknown = fit_decoders(rows)["", "FastFlowLM"]
    assert np.diag(unknown.posterior.covariance).sum() > np.diag(fit.posterior.covariance).sum()


def test_two_rows_of_a_model_tell_its_others() -> None:
    theta = mean(STREAMING)
    fit = fit_decoders(made(theta, KNOWN))["N", "FastFlowLM"]
    shape = read_shape("Qwen3-1.7B")
    slow = made(theta, ["Qwen3-1.7B"], offset=0.3)[:3]
    calls = [call("prefill", row.seq_len, 0, "w4") for row in slow]
    known = fit.seen(shape, calls[:2], [math.log(row.ms) for row in slow[:2]])
    assert known.interval(shape, calls[2])[0] == pytest.approx(slow[2].ms, rel=0.1)
    assert fit.interval(shape, calls[2])[0] < 0.85 * slow[2].ms


def test_published_prefills_of_one_model_are_met() -> None:
    rows = [
        Row(
            id=str(n),
            model="Qwen1.5-1.8B",
            stack="llm.npu",
            precision="w8a8",
            value=ms,
            device=board,
            phase="prefill",
            seq_len=n,
        )
        for board, times in (
            ("Realme GT7 Pro (Snapdragon 8 Elite)", {64: 201.087, 256: 487.811, 1024: 1010.18}),
            ("Redmi K70 Pro (Snapdragon 8 Gen 3, 24GB)", {64: 64 / 0.333, 256: 256 / 0.564, 1024: 1024 / 1.106}),
        )
        for n, ms in times.items()
    ]
    assert [chip_of(rows[0]), chip_of(rows[-1])] == ["Snapdragon 8 Elite", "Snapdragon 8 Gen 3"]
    fit = fit_decoders(rows)["Snapdragon 8 Elite", "llm.npu"]
    for row in rows[:3]:
        ms, low, high = fit.interval(read_shape(row.model), call("prefill", row.seq_len, 0, "w8a8"))
        assert ms == pytest.approx(row.ms, rel=0.15)
        assert low < row.ms < high


def test_rows_that_say_nothing_are_left_out() -> None:
    row = made(mean(STREAMING), ["Llama3.2-1B"])[0]
    rows = [
        replace(row, suspect=True),
        replace(row, duplicate=True),
        replace(row, model="gpt-oss-20b"),
        replace(row, stack="other"),
    ]
    assert fit_decoders(rows) == {}
    assert form_of("other") is None


def test_bits_of_weights() -> None:
    names = {"w4a16": 4, "w8a8 (llm.npu)": 8, "Q4_0": 4, "int4": 4, "float": 16}
    assert {name: weight_bits(name) for name in names} == names
