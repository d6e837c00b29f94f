"""Precisions that a runtime of language models was measured with, their bits; and what the CPU beside an NPU is known by."""

from __future__ import annotations

import re
from collections import Counter

from qdq_passes.errors import UsageError

from qdqtool.chips.chip import Chip, Profile
from qdqtool.cost.decoders import PIPELINED_LINEAR, STATIC_CONTEXT, STREAMING

#: Bits of weights, and of activations where they are integers, at the beginning of a published precision.
_PRECISION = re.compile(r"w(\d+)(?:a(\d+))?(?=[^\w.]|$)", re.IGNORECASE)
#: Form → precisions of a profile without rows: those that others of the form were measured with.
UNMEASURED = {STATIC_CONTEXT.name: ("w4a16", "w4"), STREAMING.name: ("w4",), PIPELINED_LINEAR.name: ("w8a8",)}


def beside(chip: Chip, profile: Profile) -> Profile | None:
    """Where the profile is of graphs that run whole, the chip's one of linear layers beside a CPU; it knows what the CPU does."""
    if profile.form == PIPELINED_LINEAR.name:
        return None
    return next((other for other in chip.profiles if other.form == PIPELINED_LINEAR.name), None)


def precisions_of(profile: Profile) -> tuple[str, ...]:
    """What a runtime was measured with, in short: ``w8a8 (llm.npu)`` → ``w8a8``; more bits of activations first."""
    found = {row.precision for row in profile.measured if _PRECISION.match(row.precision)}
    names = {short_precision(name) for name in found} or set(UNMEASURED[profile.form])
    return tuple(sorted(names, key=lambda name: (bits_of(name)[1] == 0, -bits_of(name)[1], bits_of(name)[0])))


def usual_precision(profile: Profile, phase: str = "") -> str:
    """What is meant where nobody says it: what most rows of the phase, or of all, were measured in, bits before names."""
    counts = Counter(row.precision for row in profile.measured if row.precision and phase in ("", row.phase))
    found = max(counts, key=lambda name: (_PRECISION.match(name) is not None, counts[name], name), default="")
    return found or UNMEASURED[profile.form][0]


def short_precision(precision: str) -> str:
    """A published precision in short, as `precisions_of` has them; as it is where it begins with no bits."""
    found = _PRECISION.match(precision)
    return precision if found is None else f"w{found[1]}" + (f"a{found[2]}" if found[2] else "")


def bits_of(precision: str) -> tuple[int, int]:
    """Bits of weights and of activations; 0 where activations are floats.

    Raises:
        UsageError: it is no precision.
    """
    found = _PRECISION.match(precision)
    if found is None:
        raise UsageError(f"{precision!r} is no precision", hint="write w4a16, w8a8 or w4")
    return int(found[1]), int(found[2] or 0)
