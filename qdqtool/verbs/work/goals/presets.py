"""Other presets on the way to a goal: those of another scheme, each scheme once, that suit the target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from qdq_passes.numerics.encoding import parse_dtype

from qdqtool.options import changed
from qdqtool.presets import PRESETS
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.quantization.plan import Plan
from qdqtool.search.goal.trials import Candidate
from qdqtool.targets.loading import load_target

if TYPE_CHECKING:
    from qdqtool.verbs.goals.quantize_to_goal import QuantizeToGoal


def other_presets(
    asked: QuantizeToGoal, plain: Plan, *, bits: Literal[8, 16], poorer: bool | None = None
) -> Iterator[Candidate]:
    """Candidates of one preset each, of activations of ``bits``; none where a preset is said.

    Args:
        asked: the command.
        plain: plan of the plain quantization; presets of its scheme are left out.
        bits: of activations.
        poorer: those alone that can say less than the plain one: of powers of two, or without zero points, where it has more; or
            those alone that cannot. None for all.
    """
    if "preset" in changed(asked):
        return
    target = None if asked.target is None else load_target(asked.target)
    seen = {_scheme(plain.preset)}
    needs_pow2 = plain.preset.annotate.scales == "pow2"
    for name in PRESETS.names():
        preset = load_preset(name)
        policy, scheme = preset.annotate, _scheme(preset)
        if not preset.is_calibrated or scheme in seen or (needs_pow2 and policy.scales != "pow2"):
            continue
        stored = parse_dtype(policy.activations)
        if stored.bitwidth != bits or parse_dtype(policy.weights).bitwidth < 8:
            continue
        if target is not None and not target.quantized_ops(stored):
            continue
        if poorer is not None and _is_poorer(preset, plain.preset) != poorer:
            continue
        seen.add(scheme)
        yield Candidate.of(f"another scheme: {policy.activations} activations", {"preset": name})


def _is_poorer(preset: Preset, other: Preset) -> bool:
    own, its = preset.annotate, other.annotate
    return (own.scales == "pow2" and its.scales != "pow2") or (bool(own.symmetric) and not its.symmetric)


def _scheme(preset: Preset) -> tuple[object, ...]:
    """What tells one preset's integers from another's; with scales of powers of two the passes too, which move them."""
    policy = preset.annotate
    edits = str(preset.pipeline_text()) if policy.scales == "pow2" else ""
    return (
        policy.activations, policy.weights, policy.scales, policy.symmetric, bool(policy.per_axis), policy.weights_symmetric,
        edits,
    )  # fmt: skip
