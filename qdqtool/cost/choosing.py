"""Which profile of a chip answers for language models: that of the runtime that was named, else the first that has rows."""

from __future__ import annotations

import re

from qdq_passes.errors import UsageError

from qdqtool.chips.chip import Chip, Profile
from qdqtool.chips.loading import chip_names, load_chip
from qdqtool.cost.decoders import FORMS, PIPELINED_LINEAR

#: Forms of language models.
LANGUAGE = tuple(form.name for form in FORMS)
#: Bits of weights, and of activations where they are integers, at the beginning of a published precision.
_PRECISION = re.compile(r"w(\d+)(?:a(\d+))?(?=[^\w.]|$)", re.IGNORECASE)
#: Precisions of a profile without rows.
UNMEASURED = ("w4a16", "w8a8", "w4")


def profile_for(chip: Chip, stack: str | None = None, *, from_specs: bool = False) -> Profile:
    """The profile of a chip that language models are planned with.

    Args:
        chip: it.
        stack: the runtime; None takes the first with rows.
        from_specs: where nobody measured, a profile from the data sheet will do.

    Raises:
        UsageError: there is none; the message names the runtimes of the chip, or the chips, that have one.
    """
    known = {profile.stack: profile for profile in chip.profiles if profile.form in LANGUAGE}
    if stack is None and known:
        return next(iter(known.values()))
    if stack is not None and stack in known:
        return known[stack]
    if from_specs:
        raise UsageError(f"{chip.name} has no profile from its data sheet", hint=f"measured: {measured()}")
    if known:
        raise UsageError(f"{stack!r} has no rows of language models on {chip.name}", hint=f"give {' or '.join(known)}")
    hint = f"measured: {measured()}; or --from-specs"
    raise UsageError(f"nobody measured a language model on {chip.name}", hint=hint)


def beside(chip: Chip, profile: Profile) -> Profile | None:
    """Where the profile is of graphs that run whole, the chip's one of linear layers beside a CPU; it knows what the CPU does."""
    if profile.form == PIPELINED_LINEAR.name:
        return None
    return next((other for other in chip.profiles if other.form == PIPELINED_LINEAR.name), None)


def measured() -> str:
    """Chips with rows of language models, and their runtimes: ``Krackan XDNA2 (FastFlowLM), …``."""
    found = []
    for name in chip_names():
        chip = load_chip(name)
        stacks = dict.fromkeys(profile.stack for profile in chip.profiles if profile.form in LANGUAGE)
        if stacks:
            found.append(f"{chip.name} ({', '.join(stacks)})")
    return ", ".join(found)


def precisions_of(profile: Profile) -> tuple[str, ...]:
    """What a runtime was measured with, in short: ``w8a8 (llm.npu)`` → ``w8a8``; more bits of activations first."""
    found = (_PRECISION.match(row.precision) for row in profile.measured)
    names = {f"w{m[1]}a{m[2]}" if m[2] else f"w{m[1]}" for m in found if m is not None} or set(UNMEASURED)
    return tuple(sorted(names, key=lambda name: (bits_of(name)[1] == 0, -bits_of(name)[1], bits_of(name)[0])))


def bits_of(precision: str) -> tuple[int, int]:
    """Bits of weights and of activations; 0 where activations are floats.

    Raises:
        UsageError: it is no precision.
    """
    found = _PRECISION.match(precision)
    if found is None:
        raise UsageError(f"{precision!r} is no precision", hint="write w4a16, w8a8 or w4")
    return int(found[1]), int(found[2] or 0)
