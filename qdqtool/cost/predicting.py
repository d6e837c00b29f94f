"""Times with 80 % intervals from a chip's profiles: of a network's graph, or of a language model's prefill and tokens.

A network that was measured is answered with its own row; one measured elsewhere (another chip, runtime or precision) is carried
over from there, by the ratio of what the form says of the graph at both places and of the networks that both places know."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.chips.chip import Chip, Fitted, Measured, Profile
from qdqtool.cost.decoder_fit import ChipFit, family_of
from qdqtool.cost.decoders import FORMS, Call, breakdown
from qdqtool.cost.fitting import BEYOND, EIGHTY, FREEDOM, Posterior
from qdqtool.cost.networks import COEFFICIENTS, NAMES, RESOURCES, Amounts, log_ms, node_ms
from qdqtool.cost.shapes import DecoderShape, shape_named

#: Standard deviation of log ms between two measurements of one network at one place (27 months of re-measurements drift by 1.5 %
#: in the median, 21 % in the worst tenth), and what it takes to carry one over from another chip, runtime, precision.
DRIFT, BETWEEN = 0.05, (0.08, 0.12, 0.15)
#: Carrying over by the form alone, where two places have too little in common; the standard deviation of what the form says of a
#: graph's ratio, where it is asked beside the networks in common: of 0.06 to 0.15 all tell left-out networks as well.
BY_FORM, FORM_RATIO = 0.05, 0.1
#: How many networks in common the standard deviation that is known beforehand is worth; that of how a ratio grows with log ms;
#: what a median of absolute values is multiplied by so that 80 % of left-out networks are in their intervals (1.48 for a normal),
#: what is added so that it is none of nothing.
COMMON_WORTH, SLOPE, MAD, SMALLEST, ROUNDS = 6, 0.1, 1.9, 1e-3, 5
#: By what rows of a network and its graph together are surer than the surest: two own rows of a network that no profile knows
#: put 81 % of its others into their intervals with it, 94 % without.
SURER = 0.55
#: By what a network that was measured elsewhere is surer on a new chip that own rows tell the speed of: 80 % of the rows of chips
#: that were left out are in their intervals with it, 88 % without. Its graph tells less there than its times on other chips.
NEW_CHIP = 0.72
#: Networks that two places must have in common.
LEAST_COMMON = 3
#: What falls back to the CPU, of the 60 public pairs of one network with and without operators there: median of the times' ratio,
#: and the standard deviation of its logarithm that its 10 and 90 % (0.73 and 2.57) tell.
FALLBACK, FALLBACK_SD = 1.155, 0.49


@dataclass(frozen=True, kw_only=True)
class Span:
    """Milliseconds and the ends of their 80 % interval."""

    ms: float
    low: float
    high: float

    @classmethod
    def of(cls, log: float, sd: float) -> Span:
        """From a logarithm and its standard deviation."""
        return cls(ms=math.exp(log), low=math.exp(log - EIGHTY * sd), high=math.exp(log + EIGHTY * sd))

    def times(self, factor: float) -> Span:
        """All three by ``factor``."""
        return Span(ms=self.ms * factor, low=self.low * factor, high=self.high * factor)

    @property
    def width(self) -> float:
        """High by low."""
        return self.high / self.low

    def to_json(self) -> dict[str, float]:
        """JSON-ready, four digits."""
        return {key: float(f"{getattr(self, key):.4g}") for key in ("ms", "low", "high")}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run, a prefill or a token takes.

    Args:
        span: the time.
        resources: milliseconds by what is busy.
        widens: what makes the interval wide, the most telling first.
        nearest: the measured row that it is held against, with its place; None without one.
    """

    span: Span
    resources: Mapping[str, float]
    widens: tuple[str, ...] = ()
    nearest: tuple[str, Measured] | None = None


@dataclass(frozen=True)
class Carried:
    """A network's time as a row of another place tells it."""

    log_ms: float
    sd: float
    place: str
    row: Measured


def network(
    chips: Sequence[Chip], chip: Chip, profile: Profile, name: str, amounts: Amounts | None
) -> Prediction | None:
    """The time of one run of a network.

    Args:
        chips: whose rows may be carried over.
        chip: the one that is asked about.
        profile: its profile of the runtime and precision.
        name: of the network among the measured ones, or "".
        amounts: what its graph does; None where there is no graph.

    Returns:
        None where neither rows nor a graph tell.
    """
    own = profile.of_model.get(name, ())
    form = _form(profile, amounts) if amounts is not None else None
    nearest: tuple[str, Measured] | None
    if own:
        log, sd, nearest = math.log(own[0].ms), DRIFT, (_place(chip, profile), own[0])
    elif name in profile.shifted:
        log, sd = known_times(profile)[name]
        if profile.carried:
            sd *= NEW_CHIP
        elif form is not None:
            log, sd = _combined([(log, sd), form])
        nearest = _nearest(chip, profile, log)
    else:
        carried = sorted(_carried(chips, chip, profile, name, amounts), key=lambda one: (one.sd, one.place))
        best = carried[:4]
        known = [(one.log_ms, one.sd) for one in best] + ([form] if form is not None else [])
        if not known:
            return None
        log, sd = _combined(known) if best else known[0]
        if best and form is not None:
            sd = max(SURER * sd, DRIFT)
        nearest = (best[0].place, best[0].row) if best else _nearest(chip, profile, log)
    resources: dict[str, float] = {}
    if amounts is not None:
        shares = node_ms(profile.fitted.mean, amounts).sum(0)
        scale = math.exp(log) / shares.sum()
        for coefficient, ms in zip(NAMES, shares, strict=True):
            resource = COEFFICIENTS[coefficient][0]
            resources[resource] = resources.get(resource, 0.0) + float(ms) * scale
    return Prediction(
        span=Span.of(log, sd),
        resources={key: resources[key] for key in RESOURCES if key in resources},
        widens=() if own else tuple(_widens(profile, amounts)),
        nearest=nearest,
    )


def fallen_back(found: Prediction, count: int) -> Prediction:
    """``found`` where ``count`` operators run on the CPU: as much longer, and as unsure, as published pairs are."""
    span, log = found.span, math.log(found.span.ms * FALLBACK)
    sd = math.hypot(math.log(span.high / span.low) / 2 / EIGHTY, FALLBACK_SD)
    return replace(found, span=Span.of(log, sd), widens=(f"{count} operators run on the CPU", *found.widens))


def _form(profile: Profile, amounts: Amounts) -> tuple[float, float]:
    log, slopes = log_ms(profile.fitted.mean, amounts)
    unsure = max(float(slopes @ profile.fitted.covariance @ slopes), 0.0) + profile.unseen**2
    beyond = sum(math.log(max(low / size, size / high, 1.0)) for low, size, high, _ in _beyond(profile, amounts))
    noise = max(profile.noise.values(), default=0.0)
    return log, math.sqrt(profile.scale**2 * unsure + noise**2 + (BEYOND * beyond) ** 2)


def _beyond(profile: Profile, amounts: Amounts) -> Iterator[tuple[float, float, float, str]]:
    sizes = dict(zip(NAMES, amounts.totals, strict=True))
    for key, (low, high) in profile.training.items():
        if sizes.get(key, 0) > 0:
            yield low, float(sizes[key]), high, key


def _widens(profile: Profile, amounts: Amounts | None) -> Iterator[str]:
    if profile.carried:
        yield _carried_over(profile)
    if amounts is None:
        return
    _, slopes = log_ms(profile.fitted.mean, amounts)
    worst = np.abs(slopes) * profile.fitted.errors
    name = NAMES[int(worst.argmax())]
    if worst.max() > profile.unseen / 2:
        share = 100 * slopes[worst.argmax()]
        yield f"{share:.0f} % of the time are {name} ({COEFFICIENTS[name][2]}), of which the rows tell little"
    for _, size, high, key in _beyond(profile, amounts):
        if size > high:
            yield f"{key}: {size:.4g}, beyond the {high:.4g} that was measured ({COEFFICIENTS[key][2]})"


def _carried_over(profile: Profile) -> str:
    if profile.rows:
        return f"carried over from {profile.carried} by {profile.rows} own row{'s' * (profile.rows > 1)}"
    return f"nobody measured here: carried over from {profile.carried}"


def _nearest(chip: Chip, profile: Profile, log: float) -> tuple[str, Measured] | None:
    rows = sorted(profile.measured, key=lambda row: (abs(math.log(row.ms) - log), row.model))
    return (_place(chip, profile), rows[0]) if rows else None


def _place(chip: Chip, profile: Profile) -> str:
    return ", ".join(part for part in (chip.name, profile.stack, profile.precision) if part)


def measured_names(chips: Sequence[Chip]) -> frozenset[str]:
    """Of all networks and language models that were measured on one of the chips."""
    return frozenset(model for chip in chips for profile in chip.profiles for model in profile.of_model)


def known_times(profile: Profile) -> Mapping[str, tuple[float, float]]:
    """Log ms of the networks that were measured at a place, or shifted to it, and their standard deviations."""
    shifted = {name: (math.log(ms), sd) for name, (ms, sd) in profile.shifted.items()}
    return {
        **shifted,
        **{name: (math.log(rows[0].ms), DRIFT) for name, rows in profile.of_model.items() if not rows[0].phase},
    }


def _carried(
    chips: Sequence[Chip], chip: Chip, profile: Profile, name: str, amounts: Amounts | None
) -> Iterator[Carried]:
    """The network's rows at other places, as they would be at this one."""
    if not name:
        return
    for other in dict.fromkeys((chip, *chips)):
        for there in other.profiles:
            rows = there.of_model.get(name, ())
            if there is profile or not rows or rows[0].phase or there.form != profile.form:
                continue
            steps = (other.file != chip.file, there.stack != profile.stack, there.precision != profile.precision)
            least = math.hypot(*(step * sd for step, sd in zip(steps, BETWEEN, strict=True)))
            ratio = _ratio(there, profile, math.log(rows[0].ms), amounts, least)
            if ratio is not None:
                yield Carried(
                    math.log(rows[0].ms) + ratio[0], math.hypot(DRIFT, ratio[1]), _place(other, there), rows[0]
                )


def _ratio(
    there: Profile, here: Profile, log: float, amounts: Amounts | None, least: float
) -> tuple[float, float] | None:
    """Logarithm of how many times longer a network of ``log`` ms there takes here, and its standard deviation."""
    common, form = _common(there, here), 0.0
    if amounts is not None:
        form = log_ms(here.fitted.mean, amounts)[0] - log_ms(there.fitted.mean, amounts)[0]
    if common is not None:
        middle, ratio, slope, scatter, count = common
        sd = math.sqrt((COMMON_WORTH * least**2 + count * scatter**2) / (COMMON_WORTH + count))
        share = 0.0 if amounts is None else sd**2 / (sd**2 + FORM_RATIO**2)
        return share * form + (1 - share) * (ratio + slope * (log - middle)), sd
    return None if amounts is None else (form, math.hypot(least, BY_FORM))


@functools.lru_cache(maxsize=4096)
def _common(there: Profile, here: Profile) -> tuple[float, float, float, float, int] | None:
    """What both places know: mean log ms there, the ratio, how it grows with that, its scatter, how many networks."""
    a, b = known_times(there), known_times(here)
    common = sorted(a.keys() & b.keys())
    if len(common) < LEAST_COMMON:
        return None
    x = np.array([a[name][0] for name in common])
    y = np.array([b[name][0] for name in common]) - x
    middle, ratio, slope = float(x.mean()), float(np.median(y)), 0.0
    for _ in range(ROUNDS):
        off = y - ratio - slope * (x - middle)
        scatter = float(np.median(np.abs(off))) * MAD + SMALLEST
        weights = (FREEDOM + 1) / (FREEDOM + (off / scatter) ** 2)
        ratio += float(weights @ off / weights.sum())
        moved = (weights * (x - middle)) @ (y - ratio) / (weights @ (x - middle) ** 2 + (scatter / SLOPE) ** 2)
        slope = float(moved)
    return middle, ratio, slope, scatter, len(common)


def _combined(known: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of several opinions by how sure they are; together as sure as the surest: a network is odd everywhere."""
    weights = np.array([1 / sd**2 for _, sd in known])
    log = float(weights @ np.array([log for log, _ in known]) / weights.sum())
    return log, min(sd for _, sd in known)


@functools.lru_cache(maxsize=256)
def language_model(profile: Profile) -> ChipFit:
    """The decoders' form with what the profile tells of it; models that were measured are known by their rows."""
    form = next(form for form in FORMS if form.name == profile.form)
    n = len(form.coefficients)
    fit = ChipFit(
        form,
        _posterior(profile.fitted),
        {name: _posterior(fitted) for name, fitted in profile.families.items()},
        dict(profile.noise),
        np.zeros(n),
        profile.scale,
        profile.training,
        {name: (math.log(factor), sd) for name, (factor, sd) in profile.datasets.items()},
    )
    for name, rows in profile.of_model.items():
        shape = shape_named(name)
        if shape is not None:
            fit = fit.seen(shape, [call_of(row) for row in rows], [math.log(row.ms) for row in rows])
    return fit


def _posterior(fitted: Fitted) -> Posterior:
    return Posterior(fitted.mean, fitted.covariance)


def call_of(row: Measured) -> Call:
    """What a measured row of a language model is the time of."""
    return Call(
        phase="decode" if row.phase == "decode" else "prefill",
        tokens=max(row.tokens, 1),
        context=row.context,
        precision=row.precision,
        dataset=row.dataset,
    )


def decoder(chip: Chip, profile: Profile, shape: DecoderShape, call: Call) -> Prediction:
    """The time of one prefill, or of one token, of a language model."""
    fit = language_model(profile)
    log, sd = fit.log_ms(shape, call)
    rows = [row for row in profile.measured if row.phase == call.phase]
    own = [
        row for row in profile.measured if (known := shape_named(row.model)) is not None and known.name == shape.name
    ]
    same = [row for row in own if row.phase == call.phase]
    nearest = min(same or rows, key=lambda row: (abs(math.log(row.ms) - log), row.model), default=None)
    widens = []
    if profile.carried:
        widens.append(_carried_over(profile))
    if not same:
        family = family_of(shape.name)
        told = "of its family there are rows" if family in profile.families else "nor was one of its family"
        missing = (
            f"of {shape.name} no {call.phase} was measured here"
            if own
            else f"{shape.name} was not measured here; {told}"
        )
        widens.append(missing)
    return Prediction(
        span=Span.of(log, sd),
        resources={str(key): ms for key, ms in breakdown(fit.form, fit.posterior_of(shape).mean, shape, call).items()},
        widens=tuple(widens),
        nearest=None if nearest is None else (_place(chip, profile), nearest),
    )
