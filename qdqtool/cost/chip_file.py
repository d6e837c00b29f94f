"""A chip as the text of its file: what is known of it first, the fitted profiles behind. The same chip, the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qdqtool.chips.chip import Chip, Dated, Fitted, Profile
from qdqtool.io.files.toml_write import toml_text


def chip_text(chip: Chip, *, head: str = "") -> str:
    """The text of the chip's file.

    Args:
        chip: to be written.
        head: text of what stands before the profiles, instead of the chip's own.
    """
    profiles = {"profile": [_profile(profile) for profile in chip.profiles]}
    return (head or toml_text(_identity(chip))) + "\n" + toml_text(profiles).lstrip("\n")


def _identity(chip: Chip) -> dict[str, Any]:
    texts = {key: getattr(chip, key) for key in ("name", "vendor", "npu", "target", "like")}
    lists = {key: list(getattr(chip, key)) for key in ("aliases", "boards")}
    tables = {key: {name: _dated(one) for name, one in getattr(chip, key).items()} for key in ("hardware", "watts")}
    return {key: value for key, value in {**texts, **lists, **tables}.items() if value}


def _dated(one: Dated) -> dict[str, Any]:
    return {"value": one.value, "source": one.source, "confidence": one.confidence, "date": one.date}


def _profile(profile: Profile) -> dict[str, Any]:
    texts = {key: getattr(profile, key) for key in ("stack", "precision", "form", "version", "date", "carried")}
    numbers = {"unseen": digits(profile.unseen), "scale": digits(profile.scale)}
    return {
        **{key: text for key, text in texts.items() if text},
        "rows": profile.rows,
        **{key: number for key, number in numbers.items() if number},
        "noise": {phase or "run": digits(sd) for phase, sd in profile.noise.items()},
        **_pairs(profile, "training"),
        **_fitted(profile.fitted),
        **({"family": {name: _fitted(one) for name, one in profile.families.items()}} if profile.families else {}),
        **_pairs(profile, "datasets"),
        **_pairs(profile, "shifted"),
        "measured": _measured(profile),
    }


def _pairs(profile: Profile, key: str) -> dict[str, dict[str, list[float]]]:
    found = {name: [digits(a), digits(b)] for name, (a, b) in getattr(profile, key).items()}
    return {key: found} if found else {}


def _fitted(fitted: Fitted) -> dict[str, Any]:
    errors = fitted.errors
    correlations = fitted.covariance / np.outer(errors, errors)
    return {
        "coefficients": dict(zip(fitted.names, map(digits, np.exp(fitted.mean)), strict=True)),
        "errors": dict(zip(fitted.names, map(digits, errors), strict=True)),
        "correlations": [round(100 * float(c)) for c in correlations[np.tril_indices(len(errors), -1)]],
    }


def _measured(profile: Profile) -> Mapping[str, float] | list[list[Any]]:
    if all(not row.phase for row in profile.measured):
        return {row.model: digits(row.ms) for row in profile.measured}
    return [
        [r.model, r.precision, r.phase, r.tokens, r.context, digits(r.ms), *([r.dataset] if r.dataset else [])]
        for r in profile.measured
    ]


def digits(value: float) -> float:
    """Rounded to four digits."""
    return float(f"{value:.4g}")
