"""A chip's profiles moved by own rows: the profiles are the prior, a few rows give the posterior.

Networks: log of the time here by that on the base chip, D = speed + precision + runtime·precision + size·log ms
+ Σ w (D of another chip) + network, all normal around 0: two rows tell the speed, more what differs in size and kind.
The coefficients move with one speed and one overhead in common, and each profile's own.
Language models: one speed, and the coefficients of each model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.chips.chip import Chip, Fitted, Measured
from qdqtool.cost import predicting
from qdqtool.cost.calibrating_decoders import moved_decoder
from qdqtool.cost.decoder_fit import call_of as call_of_row
from qdqtool.cost.decoder_fit import fit_rows
from qdqtool.cost.decoders import Call
from qdqtool.cost.fitting import EIGHTY, Array, Posterior
from qdqtool.cost.networks import COEFFICIENTS, NAMES, Amounts, log_ms
from qdqtool.cost.precisions import usual_precision
from qdqtool.cost.predicting import DRIFT, known_times, measured_names
from qdqtool.cost.rows import Row
from qdqtool.cost.shapes import DecoderShape, shape_named


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far own rows may lie from the base: standard deviations of logarithms.

    Args:
        speed: of everything together: another chip; of one's own the power mode and the version of the software.
        precision: of a precision.
        place: of a runtime in a precision.
        others: what share of the differences between other chips and the base may be found here too.
        size: for each factor of e in a network's time.
        network: of one network, in all precisions.
        noise: of a row.
        odd: in shares of how far a network usually lies off between chips.
        group: of the coefficients of dispatch, and of one profile's.
    """

    speed: float
    precision: float
    place: float
    others: float
    size: float
    network: float
    noise: float
    odd: float
    group: float


OWN = Spread(
    speed=0.25, precision=0.1, place=0.05, others=0.0, size=0.02, network=0.05, noise=DRIFT, odd=0.0, group=0.1
)
#: Chosen so that eight chips that were left out with all their rows are told best by two rows of one runtime and precision.
OTHER = Spread(
    speed=0.7, precision=0.15, place=0.06, others=0.5, size=0.03, network=0.04, noise=0.06, odd=1.0, group=0.3
)
_DISPATCH = np.array([float(resource == "dispatch") for resource, _, _ in COEFFICIENTS.values()])
#: What a network of which there is no graph is thought to spend its time on beside a run's constant, and the most of that.
_TYPICAL, _MOST = np.array([float(n in ("mac", "weight", "activation", "written", "elementwise")) for n in NAMES]), 0.8


@dataclass(frozen=True)
class Own:
    """An own row at its profile of the base.

    Args:
        row: as read.
        stack: of the profile.
        precision: of the profile; "" of a language model.
        shape: of a language model, else None.
    """

    row: Row
    stack: str
    precision: str
    shape: DecoderShape | None = None

    @property
    def ms(self) -> float:
        """Of a run, a prefill, a token."""
        return self.row.ms / (self.row.out_tokens if self.row.metric == "latency_total" and self.row.out_tokens else 1)

    @property
    def name(self) -> str:
        """The network, or ``model--component``; the language model as it is measured."""
        return f"{self.row.model}--{self.row.component}" if self.row.component else self.row.model

    @property
    def call(self) -> Call:
        """Of a language model."""
        return call_of_row(self.row)

    @property
    def key(self) -> tuple[object, ...]:
        """Rows of one key are measurements of one thing."""
        call = self.call if self.shape is not None else None
        told = (call.precision, call.phase, call.tokens, call.context, call.dataset) if call is not None else ()
        return (self.stack, self.precision, self.name, *told)


def own_rows(rows: Sequence[Row], base: Chip, chips: Sequence[Chip] = ()) -> tuple[list[Own], list[tuple[Row, str]]]:
    """The rows that a profile of ``base`` is of, sorted, and those that none is of, each with the reason. A language model's that
    tells no precision is in the usual one of its runtime.

    Args:
        rows: as read.
        base: has the profiles.
        chips: more of them, that tell which networks were measured in parts.
    """
    found, passed = [], []
    for row in _without_lone_parts(rows, (base, *chips)):
        if reason := _unusable(row, base):
            passed.append((row, reason))
        elif row.phase:
            usual = usual_precision(base.profiles_of(row.stack)[""], row.phase)
            told = replace(row, precision=row.precision or usual)
            found.append(Own(told, row.stack, "", shape_named(row.model)))
        else:
            found.append(Own(row, row.stack, row.precision))
    return sorted(found, key=lambda own: ([*map(str, own.key)], own.ms)), passed


def _unusable(row: Row, base: Chip) -> str:
    """Why no profile of ``base`` is of the row, with the way out; "" where one is."""
    if not row.model or not row.value > 0:
        return "tells no model: give --model"
    if row.phase and shape_named(row.model) is None:
        return f"no shape of {row.model} is known: give --model as `list shapes` has it"
    profiles = base.profiles_of(row.stack)
    is_decoder = any(profile.form != "network" for profile in profiles.values())
    if is_decoder and not row.phase:
        return f"{row.stack} runs language models, and the row tells no phase: give --phase"
    if profiles and not row.phase and not row.precision:
        return "tells no precision: give --precision"
    if not (is_decoder if row.phase else row.precision in profiles):
        known = ", ".join(f"{p.stack} {p.precision}".strip() for p in base.profiles) or "none"
        what = f"language models under {row.stack!r}" if row.phase else repr(f"{row.stack} {row.precision}".strip())
        as_other = "" if row.stack in base.stacks else "; --stack NAME takes the rows for those of one of these"
        return f"{base.name} has no profile of {what}; it has {known}{as_other}"
    if row.phase == "prefill" and not row.seq_len:
        return "a prefill of unknown length"
    return f"{row.off_npu} of its operators did not run on the NPU" if row.off_npu else ""


def _without_lone_parts(rows: Sequence[Row], chips: Sequence[Chip]) -> list[Row]:
    """The rows, of networks that neither they nor the chips know parts of without their component's name."""
    known = measured_names(chips)
    in_parts = {name.partition("--")[0] for name in known if "--" in name}
    parts: dict[str, set[str]] = {}
    for row in rows:
        parts.setdefault(row.model, set()).add(row.component)
    whole = {
        model for model, names in parts.items() if len(names - {""}) == 1 and (model in known or model not in in_parts)
    }
    return [
        replace(row, component="") if row.model in whole and f"{row.model}--{row.component}" not in known else row
        for row in rows
    ]


def predicted(
    chips: Sequence[Chip], chip: Chip, own: Own, amounts: Mapping[str, Amounts]
) -> tuple[float, float] | None:
    """Log ms of an own row by the profiles of ``chip``, and its standard deviation; None where nothing tells."""
    profile = chip.profiles_of(own.stack).get(own.precision)
    if profile is None:
        return None
    if own.shape is not None:
        span = predicting.decoder(chip, profile, own.shape, own.call).span
    else:
        found = predicting.network(chips, chip, profile, own.name, amounts.get(own.row.model))
        if found is None:
            return None
        span = found.span
    return math.log(span.ms), math.log(span.high / span.ms) / EIGHTY


def calibrated(
    chips: Sequence[Chip], base: Chip, chip: Chip, rows: Sequence[Own], amounts: Mapping[str, Amounts]
) -> Chip:
    """``chip`` with the profiles of ``base`` as the own rows move them.

    Args:
        chips: whose rows tell how networks differ between chips, and what is not measured on the base.
        base: has the profiles.
        chip: whose identity the result has; another chip than ``base`` gets profiles marked ``carried``.
        rows: of `own_rows`.
        amounts: what the graphs do that there are, by model.
    """
    rows = sorted(rows, key=lambda own: ([*map(str, own.key)], own.ms))
    spread = OWN if chip.file == base.file else OTHER
    if not rows and spread is OWN:
        return base
    networks = [own for own in rows if own.shape is None]
    profiles = []
    shifted = _shifted(chips, base, chip, networks, amounts, spread) if networks or spread is OTHER else {}
    fitted = _coefficients(chips, base, networks, amounts, spread) if networks else {}
    for profile in base.profiles:
        own = [one for one in rows if (one.stack, one.precision) == (profile.stack, profile.precision)]
        if profile.form != "network":
            moved = moved_decoder(profile, own, spread.speed) if own or spread is OTHER else profile
        elif shifted:
            place = shifted[profile.stack, profile.precision]
            mine = tuple(Measured(model=model, ms=ms) for (_, _, model), ms in _merged(own).items())
            others = {name: pair for name, pair in place.items() if all(name != one.model for one in mine)}
            now = fitted.get((profile.stack, profile.precision), profile.fitted)
            moved = replace(profile, fitted=now, shifted=others, measured=mine)
        else:
            moved = profile
        carried = base.file if spread is OTHER else profile.carried
        count = len(own) if spread is OTHER else profile.rows + len(own)
        date = max((one.row.month for one in own), default="") or profile.date
        profiles.append(replace(moved, carried=carried, rows=count, date=date))
    return replace(chip, profiles=tuple(profiles))


def _merged(rows: Sequence[Own]) -> dict[tuple[str, str, str], float]:
    """The median of the rows of each network at each place."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for own in rows:
        found.setdefault((own.stack, own.precision, own.name), []).append(own.ms)
    return {key: float(np.median(ms)) for key, ms in found.items()}


class _Items:
    """The networks at the places of the base, and how they may differ on another chip.

    Args:
        keys: (runtime, precision, network).
        logs: log ms on the base [items].
        unsure: standard deviations of these [items].
        others: D of other chips, its median at the place taken out; 0 where it was not measured [items, chips].
    """

    def __init__(
        self, keys: Sequence[tuple[str, str, str]], logs: Array, unsure: Array, others: Array, spread: Spread
    ) -> None:
        places = sorted({key[:2] for key in keys})
        precisions = sorted({key[1] for key in keys})
        at = np.array([places.index(key[:2]) for key in keys])
        size = logs - np.array([np.median(logs[at == place]) for place in range(len(places))])[at]
        features = [
            spread.speed * np.ones((len(keys), 1)),
            spread.precision * np.array([[float(key[1] == one) for one in precisions] for key in keys]),
            spread.place * np.eye(len(places))[at],
            spread.size * size[:, None],
            spread.others * others / math.sqrt(max(others.shape[1], 1)),
        ]
        self.keys, self.logs, self.spread = keys, logs, spread
        self.features = np.hstack(features)
        usual = np.median(np.abs(others), axis=1) if others.shape[1] else np.zeros(len(keys))
        self.noise = spread.noise**2 + (spread.odd * usual) ** 2 + unsure**2

    def times(self, own: Mapping[tuple[str, str, str], float]) -> tuple[Array, Array]:
        """Log ms of the items here, and their standard deviations."""
        at = [index for index, key in enumerate(self.keys) if key in own]
        names = np.array([key[2] for key in self.keys])
        same = self.spread.network**2 * (names[:, None] == names[at])
        kernel = self.features @ self.features[at].T + same
        seen = kernel[at] + np.diag(self.noise[at])
        off = np.array([math.log(own[self.keys[index]]) - self.logs[index] for index in at])
        gain = np.linalg.solve(seen, kernel.T).T if at else kernel
        before = (self.features**2).sum(1) + self.spread.network**2
        variance = np.maximum(before - (gain * kernel).sum(1), 0) + self.noise
        return self.logs + (gain @ off if at else 0.0), np.sqrt(variance)


def _shifted(
    chips: Sequence[Chip], base: Chip, chip: Chip, rows: Sequence[Own], amounts: Mapping[str, Amounts], spread: Spread
) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """By place, ms of each network here and the standard deviation of its logarithm."""
    own = _merged(rows)
    times = {(p.stack, p.precision): dict(known_times(p)) for p in base.profiles if p.form == "network"}
    for one in rows:
        place = times[one.stack, one.precision]
        if one.name not in place and (told := predicted(chips, base, one, amounts)) is not None:
            place[one.name] = told
    keys = [(*place, name) for place in sorted(times) for name in sorted(times[place])]
    logs = np.array([times[key[:2]][key[2]][0] for key in keys])
    unsure = np.array([math.sqrt(max(times[key[:2]][key[2]][1] ** 2 - DRIFT**2, 0)) for key in keys])
    others = [other for other in chips if other.file not in (base.file, chip.file) and other.profiles]
    columns = [_differences(other, keys, logs) for other in (others if spread.others else ())]
    table = np.array(columns).T if columns else np.zeros((len(keys), 0))
    found: dict[tuple[str, str], dict[str, tuple[float, float]]] = {place: {} for place in times}
    for key, log, sd in zip(keys, *_Items(keys, logs, unsure, table, spread).times(own), strict=True):
        found[key[:2]][key[2]] = math.exp(log), float(sd)
    return found


def _differences(other: Chip, keys: Sequence[tuple[str, str, str]], logs: Array) -> Array:
    """Log of how much longer networks take on ``other`` than usual of it at their place [items]."""
    times = {(p.stack, p.precision): known_times(p) for p in other.profiles if p.form == "network"}
    told = np.array([times.get(key[:2], {}).get(key[2], (math.nan, 0))[0] for key in keys]) - logs
    found = np.zeros(len(keys))
    for place in sorted({key[:2] for key in keys}):
        here = np.array([key[:2] == place for key in keys]) & ~np.isnan(told)
        if here.sum() >= predicting.LEAST_COMMON:
            found[here] = np.clip(told[here] - np.median(told[here]), -1, 1)
    return found


def _coefficients(
    chips: Sequence[Chip], base: Chip, rows: Sequence[Own], amounts: Mapping[str, Amounts], spread: Spread
) -> dict[tuple[str, str], Fitted]:
    """By place, the coefficients as own rows move them: speed and overhead in common, the rest by place."""
    networks = {(p.stack, p.precision): p for p in base.profiles if p.form == "network"}
    places = sorted({(own.stack, own.precision) for own in rows})
    n = len(NAMES)
    common = np.column_stack([np.ones(n), _DISPATCH])
    size = 2 + n * len(places)
    covariance = np.zeros((size, size))
    covariance[:2, :2] = np.diag([spread.speed**2, spread.group**2])
    moves = {}
    for index, place in enumerate(places):
        start = 2 + n * index
        covariance[start : start + n, start : start + n] = (
            networks[place].fitted.covariance + np.eye(n) * (spread.group / 3) ** 2 + spread.precision**2
        )
        moves[place] = np.hstack([common, np.zeros((n, size - 2))])
        moves[place][:, start : start + n] = np.eye(n)
    told = [predicted(chips, base, own, amounts) for own in rows]
    usable = [(own, one) for own, one in zip(rows, told, strict=True) if one is not None or own.row.model in amounts]
    if not usable:
        return {}

    def predict(unknowns: Array) -> tuple[Array, Array]:
        logs, slopes = [], []
        for own, one in usable:
            place, first = (own.stack, own.precision), networks[own.stack, own.precision].fitted.mean
            change = moves[place] @ unknowns
            if own.row.model in amounts:
                log, slope = log_ms(first + change, amounts[own.row.model])
            else:
                assert one is not None
                dispatch = min(_MOST, math.exp(first[-1] - one[0]))
                slope = dispatch * _DISPATCH * (np.arange(n) == n - 1) + (1 - dispatch) * _TYPICAL / _TYPICAL.sum()
                log = one[0] + float(slope @ change)
            logs.append(log)
            slopes.append(slope @ moves[place])
        return np.array(logs), np.array(slopes)

    sigma = [
        math.hypot(spread.noise, networks[own.stack, own.precision].unseen if own.row.model in amounts else one[1])  # type: ignore[index]
        for own, one in usable
    ]
    prior = Posterior(np.zeros(size), covariance)
    after = fit_rows(predict, prior, np.array([math.log(own.ms) for own, _ in usable]), np.array(sigma))
    found = {}
    for place, profile in networks.items():
        move = moves.get(place, np.hstack([common, np.zeros((n, size - 2))]))
        moved = move @ after.covariance @ move.T + (0 if place in moves else profile.fitted.covariance)
        found[place] = Fitted(NAMES, profile.fitted.mean + move @ after.mean, moved)
    return found
