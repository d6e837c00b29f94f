"""Chips and shapes of decoders as `list` shows them: numbers with their sources, and how good each profile is."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from qdqtool.chips.chip import HARDWARE, Chip, Profile


def described_chip(name: str) -> dict[str, Any]:
    """Return the chip in the file ``name``: name, one line, text in full, and the same as data."""
    from qdqtool.chips.loading import load_chip

    chip = load_chip(name)
    return {
        "name": chip.file,
        "summary": f"{chip.name}, {chip.npu}: {_measured(chip)}",
        "text": "\n".join(_lines(chip)),
        "hardware": {key: asdict(one) for key, one in chip.hardware.items()},
        "profiles": [_profile(profile) for profile in chip.profiles],
    }


def _measured(chip: Chip) -> str:
    stacks = ", ".join(chip.stacks)
    return f"measured under {stacks}" if stacks else f"not measured; --from-specs takes {chip.like}"


def _lines(chip: Chip) -> list[str]:
    lines = [f"{chip.vendor} {chip.name}, {chip.npu}; target {chip.target}"]
    lines += [
        f"{word}: {', '.join(names)}" for word, names in (("aliases", chip.aliases), ("boards", chip.boards)) if names
    ]
    for key, one in chip.hardware.items():
        lines.append(f"{key} {one.value:g} ({HARDWARE[key]}): {one.source}; {one.confidence}, {one.date}")
    for stack, one in chip.watts.items():
        lines.append(f"watts under {stack} {one.value:g}: {one.source}; {one.confidence}, {one.date}")
    lines += [_profile_line(profile) for profile in chip.profiles]
    return lines if chip.profiles else [*lines, f"nobody measured it: {_measured(chip)}"]


def _profile_line(profile: Profile) -> str:
    told = _profile(profile)
    name = " ".join(part for part in (profile.stack, profile.precision) if part)
    from_where = f"carried over from {profile.carried}" if profile.carried else f"{told['rows']} rows, {told['date']}"
    return (
        f"{name}: {from_where}, {told['measured']} measured times; a model that was not measured within "
        f"a factor of {told['within']:.2f} (80 %)"
    )


def _profile(profile: Profile) -> dict[str, Any]:
    """How good a profile is: ``within`` is the factor that 80 % of unseen models are within, at a typical share of each term."""
    mean = float(profile.fitted.covariance.mean())
    noise = max(profile.noise.values(), default=0.0)
    sd = math.sqrt(profile.scale**2 * (max(mean, 0.0) + profile.unseen**2) + noise**2)
    return {
        "stack": profile.stack, "precision": profile.precision, "form": profile.form, "version": profile.version,
        "date": profile.date, "rows": profile.rows, "measured": len(profile.measured), "within": round(math.exp(1.2816 * sd), 3),
        "coefficients": {n: float(f"{math.exp(m):.4g}") for n, m in zip(profile.fitted.names, profile.fitted.mean, strict=True)},
        "errors": {n: float(f"{e:.3g}") for n, e in zip(profile.fitted.names, profile.fitted.errors, strict=True)},
    }  # fmt: skip


def listed_shapes() -> list[dict[str, Any]]:
    """Every shape of a decoder that is known by name."""
    from qdqtool.cost.shapes import shapes

    found = []
    for shape in shapes():
        numbers = asdict(shape)
        text = "\n".join(f"  {key}: {value}" for key, value in numbers.items() if key != "name" and value)
        summary = f"{shape.weights / 1e9:.2f} billion weights a token, {shape.layers} layers of {shape.hidden}"
        found.append({"name": shape.name, "summary": summary, "text": text, **numbers})
    return found
