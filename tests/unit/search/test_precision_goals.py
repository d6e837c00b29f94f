"""What the presets promise on a language model with outliers: the trained sample decoder, some channels 64 times larger."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool import api
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from qdqtool.verbs.perplexity import perplexity
from tests.cases.cli_helpers import SAMPLES

TEXT = SAMPLES / "text"
WINDOW = 256
Measure = Callable[..., float]


@pytest.fixture(scope="module")
def outliers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoder with outliers, split; its graphs give all logits, so that a text is scored in a few runs."""
    folder = tmp_path_factory.mktemp("outliers")
    hard = run_pipeline(load(SAMPLES / "tiny_llama.onnx"), "inject-outliers").model
    save(hard, folder / "hard.onnx")
    api.split(
        folder / "hard.onnx", folder / "float", prefill=(128,), decode=(), context=(WINDOW,), all_logits=True,
        tokenizer=SAMPLES / "tokenizer.json",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def measured(outliers: Path) -> Measure:
    """Perplexity of the held-out text, all 8,181 tokens of it, over that of the float graphs."""

    def of(folder: Path) -> float:
        return perplexity(folder, TEXT / "held_out.txt", window=WINDOW, threads=1).perplexity

    reference = of(outliers / "float")

    def measure(name: str, preset: str, **options: Any) -> float:
        api.quantize(
            outliers / "float", outliers / name, preset=preset, data=TEXT / "train.txt", overwrite=True, **options
        )
        return of(outliers / name) / reference

    return measure


@pytest.mark.extra
def test_eight_bits_collapse_and_smoothing_wins_back_what_outliers_cost(measured: Measure) -> None:
    """Mean −ln p rises by log(ratio); smoothing takes 90 % and more of that away."""
    plain, smoothed = (measured("8a8w", "8a8w", samples=8, smooth=smooth) for smooth in (None, 0.5))
    assert plain > 2
    assert math.log(smoothed) < 0.1 * math.log(plain)


@pytest.mark.product(days=9)
@pytest.mark.parametrize(
    ("preset", "options", "bound"),
    [
        ("16a8w", {"samples": 8}, 1.01),
        ("mobilequant", {"samples": 8, "smooth": 0.5}, 1.03),
        ("8a8w", {"samples": 8, "rotate": True}, 1.03),
        pytest.param(
            "w4-g32",
            {"samples": 64, "rotate": True, "search_scales": True, "round_weights": True, "lm_head": "int8"},
            1.03,
            marks=pytest.mark.extra,
        ),
        pytest.param(
            "w4-g32",
            {"samples": 64, "smooth": 0.5, "round_weights": True, "lm_head": "int8", "float": ["*linear_6"]},
            1.03,
            marks=pytest.mark.extra,
        ),
    ],
    ids=["16a8w", "mobilequant", "8a8w rotated", "w4-g32 rotated", "w4-g32"],
)
def test_perplexity_stays(preset: str, options: dict[str, Any], bound: float, measured: Measure) -> None:
    assert 0.97 < measured(preset, preset, **options) < bound
