"""Which profile of a chip answers: by runtime and precision, or carried over from data sheets where a person says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError

from qdqtool.chips.chip import Chip, Profile
from qdqtool.chips.loading import all_known, load_chip
from qdqtool.cost.decoders import FORMS
from qdqtool.cost.networks import NAMES
from qdqtool.cost.precisions import precisions_of, short_precision, usual_precision
from qdqtool.cost.specs import carried_over

#: The form of networks; all others are of language models.
NETWORK = "network"
#: Runtimes that run what another one compiles, and precisions that are mostly another one: what answers for them.
ALIKE = {"precompiled_qnn_onnx": ("onnx", "qnn_dlc"), "qnn_context_binary": ("qnn_dlc",)}
MOSTLY = {
    "w8a8_mixed_int16": "w8a8", "w8a8_mixed_fp16": "w8a8", "w8a16_mixed_int16": "w8a16", "w8a16_mixed_fp16": "w8a16",
    "w16a16": "w8a16", "mixed_with_float": "w8a8", "fp16": "float", "float16": "float", "int8": "w8a8",
}  # fmt: skip
#: What a runtime runs.
Kind = Literal["network", "decoder"]
#: What standing in for another adds to the standard deviation of log ms.
STANDING_IN = 0.15


@dataclass(frozen=True)
class Choice:
    """The profile that answers.

    Args:
        chip: whose it is.
        profile: of the runtime and precision.
        precision: that was asked for.
        notes: what it stands in for.
    """

    chip: Chip
    profile: Profile
    precision: str
    notes: tuple[str, ...] = ()


def profile_for(chip: Chip, stack: str = "", precision: str = "", *, decoder: bool, from_specs: bool = False) -> Choice:
    """The profile of ``chip`` that answers for a runtime and a precision.

    Args:
        chip: that is asked about.
        stack: the runtime; "" for the first with rows.
        precision: "" for the first.
        decoder: whether it is of a language model, else of a network.
        from_specs: whether one carried over by data sheets will do.

    Raises:
        UsageError: nobody measured that, and data sheets were not asked for.
        ModelError: the file of the chip has profiles that no form fits.
    """
    check_forms(chip)
    found = _measured(chip, stack, precision, decoder=decoder)
    if found is None and from_specs and chip.like:
        like = load_chip(chip.like)
        there = _measured(like, stack, precision, decoder=decoder)
        if there is not None:
            return Choice(chip, carried_over(chip, like, there.profile), there.precision, there.notes)
    if found is None:
        raise _nobody(chip, stack, precision, decoder=decoder)
    return found


def kinds_of(chip: Chip, stack: str, *, from_specs: bool = False) -> frozenset[Kind]:
    """What a runtime runs, by the forms that it is known with, on ``chip`` or anywhere.

    Args:
        chip: that is asked about.
        stack: the runtime; "" for whatever the chip was measured with.
        from_specs: or, by data sheets, the chip that it is like.
    """
    if not stack:
        chips = (chip, load_chip(chip.like)) if from_specs and chip.like else (chip,)
        kinds: set[Kind] = {"network" if p.form == NETWORK else "decoder" for one in chips for p in one.profiles}
        return frozenset(kinds | {"network"})
    known = {p.form for one in (chip, *all_known()) for p in one.profiles if p.stack == stack}
    known |= {form.name for form in FORMS if stack in form.stacks} | ({NETWORK} if stack in ALIKE else set())
    return frozenset("network" if form == NETWORK else "decoder" for form in known) or frozenset({"network"})


def check_forms(chip: Chip) -> None:
    """Refuse profiles of a form that is not known, or with other coefficients than it has.

    Raises:
        ModelError: the chip's file has one.
    """
    known = {NETWORK: NAMES, **{form.name: form.names for form in FORMS}}
    for profile in chip.profiles:
        where = f"{chip.file}.toml, profile {profile.stack} {profile.precision}".rstrip()
        if profile.form not in known:
            raise ModelError(f"no form is called {profile.form!r}", where=where, hint=f"there is {', '.join(known)}")
        for fitted in (profile.fitted, *profile.families.values()):
            if fitted.names != known[profile.form]:
                names = ", ".join(known[profile.form])
                raise ModelError(
                    f"other coefficients than {profile.form} has", where=where, hint=f"in this order: {names}"
                )


def _measured(chip: Chip, stack: str, precision: str, *, decoder: bool) -> Choice | None:
    own = [p for p in chip.profiles if (p.form != NETWORK) == decoder]
    notes: list[str] = []
    for wanted in dict.fromkeys((stack, *ALIKE.get(stack, ()))):
        here = [p for p in own if not wanted or p.stack == wanted]
        if not here:
            continue
        if wanted != stack:
            notes.append(f"{stack} was not measured: {wanted} stands in")
        if decoder:
            if precision and short_precision(precision) not in precisions_of(here[0]):
                notes.append(
                    f"{precision} was not measured with {wanted or here[0].stack}: its times are told by its bits"
                )
            return Choice(chip, here[0], precision or usual_precision(here[0]), tuple(notes))
        here = [p for p in here if p.stack == here[0].stack]
        exact = next((p for p in here if p.precision == (precision or here[0].precision)), None)
        near = next((p for p in here if p.precision == MOSTLY.get(precision)), None)
        if exact is None and near is not None:
            notes.append(f"{precision} was not measured: {near.precision} stands in")
        chosen = exact or near
        if chosen is not None:
            if notes:
                chosen = replace(chosen, unseen=(chosen.unseen**2 + STANDING_IN**2) ** 0.5)
            return Choice(chip, chosen, precision or chosen.precision, tuple(notes))
    return None


def _nobody(chip: Chip, stack: str, precision: str, *, decoder: bool) -> UsageError:
    what = "language models" if decoder else "networks"
    asked = " ".join(part for part in (stack, precision) if part)
    own = _shown(chip, decoder=decoder)
    ways = [f"on it were measured: {own}"] if own else [f"measured are {_where(decoder=decoder)}"]
    if chip.like:
        ways.append(f"--from-specs carries over from {load_chip(chip.like).name} by data sheets, with wide intervals")
    ways.append("qdqtool calibrate-chip makes a profile of own rows")
    return UsageError(f"nobody measured {what} on {chip.name}{f' with {asked}' if asked else ''}", hint="; ".join(ways))


def _shown(chip: Chip, *, decoder: bool) -> str:
    own = [p for p in chip.profiles if (p.form != NETWORK) == decoder]
    return ", ".join(dict.fromkeys(" ".join(part for part in (p.stack, p.precision) if part) for p in own))


def _where(*, decoder: bool) -> str:
    return ", ".join(chip.name for chip in all_known() if _shown(chip, decoder=decoder))
