"""The fit of the decoders' forms to measured rows: shared coefficients and how chips, families and models lie off them.

θ = μ + a(chip) + b(chip, stack) + c(family) + d(model) + e(chip, model), all with Gaussian priors; how far chips, families and
models lie from each other, and the noise, follow from the rows in some steps of expectation and maximization. Of a model that
was never seen d and e are 0 with their priors' variance: that is part of the posteriors given back, so that a few rows of the
model are one more `fit` from there. Times that are means over a data set, of whose lengths a range is told, err alike by what
its middle is wrong, whatever the model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

import numpy as np
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cost.decoders import FORMS, Call, Design, Form
from qdqtool.cost.fitting import BEYOND, EIGHTY, Array, Posterior, Predict, fit
from qdqtool.cost.rows import Row
from qdqtool.cost.shapes import DecoderShape, shape_named

#: Parts of a board's name → its chip, for rows that do not tell it.
CHIPS = {"Krackan": "Krackan XDNA2"}
#: Standard deviation of log ms around the form before a row is seen, and how many rows that is worth.
NOISE, NOISE_ROWS = 0.05, 4.0
#: How many groups the prior of a distance between groups is worth; distances of stacks on a chip, in shares of the chips', of
#: families and of models on one chip, in shares of the models'.
SPREAD_GROUPS = 4.0
STACK_SHARE, FAMILY_SHARE, PAIR_SHARE = 1.0, 1.0, 0.5
#: Standard deviation of what lies anywhere in a range, in ranges; and what is not told apart from the other noise of a row, as a
#: standard deviation of a logarithm.
EVEN, IN_NOISE = 12**-0.5, 0.1
ROUNDS = 4
#: A row counts as at most so many noises² off when the noise is looked for.
FAR_OFF = 9.0
#: How many rows say that the standard deviations are right.
SCALE_ROWS = 10
#: What a scale is at least; and of a model with rows of its own, of whose intervals left-out models say little: with it they hold
#: 70 to 87 % of the model's other rows.
LEAST_SCALE, LEAST_OWN = 0.3, 0.85


@dataclass(frozen=True)
class ChipFit:
    """What the rows say of one runtime on one chip.

    Args:
        form: of the runtime.
        posterior: of log coefficients, for a model that was not seen; its covariance has the distance between models in it.
        near: the same for a family (``qwen``) and for a model (``Qwen3-8B``) of which there were rows.
        noise: standard deviation of log ms of a row, by phase.
        model_sd: of log coefficients between models of one chip, whatever their family [coefficients].
        scale: factor on the coefficients' standard deviations with which left-out models' intervals hold what they promise; of a
            family without rows it narrows nothing, of a model with rows of its own little.
        training: lowest and highest of tokens, context and weights (products a token).
        datasets: by `Call.lengths`, what the error of the mean length adds to log ms, and its standard deviation.
    """

    form: Form
    posterior: Posterior
    near: Mapping[str, Posterior]
    noise: Mapping[str, float]
    model_sd: Array
    scale: float
    training: Mapping[str, tuple[float, float]]
    datasets: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def posterior_of(self, shape: DecoderShape) -> Posterior:
        """Of log coefficients for this model: its own, its family's, or any model's."""
        return self.near.get(shape.name) or self.near.get(family_of(shape.name)) or self.posterior

    def log_ms(self, shape: DecoderShape, call: Call) -> tuple[float, float]:
        """Log milliseconds of a call, and their standard deviation."""
        known = self.posterior_of(shape)
        log, slopes = Design.of(self.form, [(shape, call)]).log_ms(known.mean)
        least = 1.0 if known is self.posterior else LEAST_OWN if shape.name in self.near else 0.0
        scale = max(self.scale, least)
        unsure = scale * math.sqrt(max(float(slopes[0] @ known.covariance @ slopes[0]), 0.0))
        beyond = 0.0
        for name, value in _sizes(shape, call).items():
            low, high = self.training.get(name, (value, value))
            beyond += math.log(max(low / value, value / high, 1.0))
        return float(log[0]) + self.length_error(call)[0], math.hypot(unsure, self.noise_of(call), BEYOND * beyond)

    def length_error(self, call: Call) -> tuple[float, float]:
        """What the error of the mean length adds to log ms, as far as rows tell it, and the standard deviation of that."""
        return self.datasets.get(call.lengths, (0.0, call.length_sd))

    def noise_of(self, call: Call) -> float:
        """Standard deviation of log ms of a row around what its coefficients and its data set say. A data set that was measured
        adds nothing: its error was found beside the coefficients, whose standard deviations hold what is unsure of both."""
        unsure = 0.0 if call.lengths in self.datasets else call.length_sd
        return math.hypot(self.noise[call.phase], unsure)

    def seen(self, shape: DecoderShape, calls: Sequence[Call], log_ms: Sequence[float]) -> ChipFit:
        """The same with measured calls of one model: they move that model's posterior alone."""
        offsets, unsure = np.array([self.length_error(call) for call in calls]).T
        sigma = np.hypot([self.noise[call.phase] for call in calls], unsure)
        design = Design.of(self.form, [(shape, call) for call in calls])
        after = fit_rows(design.log_ms, self.posterior_of(shape), np.array(log_ms) - offsets, sigma)
        return replace(self, near={**self.near, shape.name: after})

    def interval(self, shape: DecoderShape, call: Call) -> tuple[float, float, float]:
        """Milliseconds of a call, and the ends of the 80 % interval."""
        log, sd = self.log_ms(shape, call)
        return math.exp(log), math.exp(log - EIGHTY * sd), math.exp(log + EIGHTY * sd)


@dataclass(frozen=True)
class Observed:
    """A row as the fit sees it."""

    row: Row
    shape: DecoderShape
    call: Call
    log_ms: float

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """Of each level the group that the row is of."""
        chip = chip_of(self.row)
        model = self.shape.name
        return (
            ("chip", chip),
            ("stack", f"{chip}|{self.row.stack}"),
            ("family", family_of(model)),
            ("model", model),
            ("pair", f"{chip}|{model}"),
        )


def family_of(name: str) -> str:
    """``Qwen2.5-3B`` → ``qwen``: one family's models are made by one kernel."""
    return re.split(r"[^a-z]", name.lower(), maxsplit=1)[0]


def chip_of(row: Row) -> str:
    """The chip of a row: as told, or from its board: ``… (Snapdragon 8 Gen 3, 24GB)`` → ``Snapdragon 8 Gen 3``."""
    if row.chip:
        return row.chip
    known = next((chip for part, chip in CHIPS.items() if part in row.device), None)
    inside = row.device.rpartition("(")[2].rstrip(")") if "(" in row.device else row.device
    return known or inside.partition(",")[0].strip()


def call_of(row: Row) -> Call:
    """What a row of a language model measures."""
    if row.phase == "decode":
        call = Call(phase="decode", context=row.ctx or row.seq_len, precision=row.precision)
    else:
        call = Call(phase="prefill", tokens=row.seq_len, context=row.ctx, precision=row.precision)
    if row.length_range is None:
        return call
    least, most = row.length_range
    sd = EVEN * (most - least) / ((least + most) / 2)
    return replace(call, dataset=f"{row.dataset} {least:g}-{most:g}".strip(), length_sd=sd) if sd > IN_NOISE else call


def observed(rows: Sequence[Row], form: Form) -> list[Observed]:
    """The rows that a form can be fitted to: of its stacks, of models with a shape, neither suspect nor told twice."""
    found = []
    for row in rows:
        shape = shape_named(row.model)
        if row.stack not in form.stacks or shape is None or row.suspect or row.duplicate or row.component:
            continue
        tokens = row.out_tokens if row.metric == "latency_total" else 1
        told = row.phase == "decode" or (row.phase == "prefill" and row.seq_len)
        if told and tokens and row.value > 0:
            found.append(Observed(row, shape, call_of(row), math.log(row.ms / tokens)))
    return found


def _sizes(shape: DecoderShape, call: Call) -> dict[str, float]:
    sizes = {"weights": shape.weights, "context": call.context, "tokens": call.tokens if call.phase == "prefill" else 0}
    return {name: float(size) for name, size in sizes.items() if size}


def _ranges(rows: Sequence[Observed]) -> dict[str, tuple[float, float]]:
    sizes = [_sizes(r.shape, r.call) for r in rows]
    values = {name: [one[name] for one in sizes if name in one] for name in ("weights", "context", "tokens")}
    return {name: (min(found), max(found)) for name, found in values.items() if found}


def fit_rows(predict: Predict, prior: Posterior, log_ms: Array, sigma: Array) -> Posterior:
    """`fit` where each row has a noise of its own [rows]."""
    relative = sigma / sigma.min()

    def even(theta: Array) -> tuple[Array, Array]:
        log, slopes = predict(theta)
        return log / relative, slopes / relative[:, None]

    return fit(even, prior, log_ms / relative, float(sigma.min()))


def _groups(rows: Sequence[Observed]) -> tuple[list[tuple[str, str]], set[tuple[str, str]]]:
    """The groups of the rows; and those left out of them because they have the same rows as a group of a level above."""
    members: dict[tuple[str, str], set[int]] = {}
    for at, row in enumerate(rows):
        for group in row.groups:
            members.setdefault(group, set()).add(at)
    above = {
        level: [members[g] for g in members if g[0] == other] for level, other in (("stack", "chip"), ("pair", "model"))
    }
    twins = {group for group in members if members[group] in above.get(group[0], [])}
    return sorted(set(members) - twins), twins


class _Levels:
    """One long vector of μ, the offsets of all groups and those of the data sets, and the rows that each of them moves.

    Args:
        form: of the rows.
        rows: not empty.
    """

    def __init__(self, form: Form, rows: Sequence[Observed]) -> None:
        parts = form.coefficients
        self.form, self.rows = form, rows
        self.groups, self.twins = _groups(rows)
        self.design = Design.of(form, [(r.shape, r.call) for r in rows])
        self.log_ms = np.array([r.log_ms for r in rows])
        self.members = np.array([[1.0, *(group in r.groups for group in self.groups)] for r in rows])
        self.length_sds = dict(sorted((r.call.lengths, r.call.length_sd) for r in rows if r.call.lengths))
        self.of_set = np.array([[float(r.call.lengths == name) for name in self.length_sds] for r in rows])
        self.shared = len(parts) * (1 + len(self.groups))
        chip, model = np.array([p.chip for p in parts]), np.array([p.model for p in parts])
        self.first = {
            "chip": chip,
            "stack": STACK_SHARE * chip,
            "family": FAMILY_SHARE * model,
            "model": model,
            "pair": PAIR_SHARE * model,
        }
        self.spread = dict(self.first)
        self.phases = np.array([r.call.phase for r in rows])
        self.noise = {"prefill": NOISE, "decode": NOISE}
        for _ in range(ROUNDS):
            self.found = self._fitted()

    def predict(self, vector: Array) -> tuple[Array, Array]:
        """Log ms of the rows and their derivatives over the long vector."""
        shared, sets = np.split(vector, [self.shared])
        log, slopes = self.design.log_ms(self.members @ shared.reshape(-1, len(self.form.coefficients)))
        of_shared = np.einsum("rm,rn->rmn", self.members, slopes).reshape(len(log), -1)
        return log + self.of_set @ sets, np.hstack([of_shared, self.of_set])

    @property
    def sigma(self) -> Array:
        """The noise of each row."""
        return np.array([self.noise[phase] for phase in self.phases])

    def _fitted(self) -> Posterior:
        """One round: the vector under the distances, then the distances and the noise under the vector."""
        parts = self.form.coefficients
        n = len(parts)
        sds = np.concatenate(
            [[p.sd for p in parts], *(self.spread[level] for level, _ in self.groups), list(self.length_sds.values())]
        )
        mean = np.concatenate([np.log([p.ms for p in parts]), np.zeros(len(sds) - n)])
        found = fit_rows(self.predict, Posterior(mean, np.diag(sds**2)), self.log_ms, self.sigma)
        squares = (found.mean**2 + np.diag(found.covariance))[: self.shared].reshape(-1, n)[1:]
        for level, first in self.first.items():
            own = squares[[group[0] == level for group in self.groups]]
            self.spread[level] = np.sqrt((SPREAD_GROUPS * first**2 + own.sum(axis=0)) / (SPREAD_GROUPS + len(own)))
        log, slopes = self.predict(found.mean)
        off = np.minimum((self.log_ms - log) ** 2, FAR_OFF * self.sigma**2)
        off += np.einsum("rn,nm,rm->r", slopes, found.covariance, slopes)
        for phase in self.noise:
            own = off[self.phases == phase]
            self.noise[phase] = math.sqrt((NOISE_ROWS * NOISE**2 + own.sum()) / (NOISE_ROWS + len(own)))
        return found

    def posterior(self, *groups: tuple[str, str]) -> Posterior:
        """Of log coefficients where these groups are at work: one each level; a group without rows adds its level's distance."""
        n = len(self.form.coefficients)
        take = np.zeros((n, len(self.found.mean)))
        take[:, :n] = np.eye(n)
        extra = np.zeros(n)
        for group in groups:
            if group in self.groups:
                at = n * (1 + self.groups.index(group))
                take[:, at : at + n] = np.eye(n)
            elif group not in self.twins:
                extra += self.spread[group[0]] ** 2
        return Posterior(take @ self.found.mean, take @ self.found.covariance @ take.T + np.diag(extra))

    def of(self, chip: str, stack: str) -> ChipFit:
        """What the rows say of a chip; of one without rows it is what they say of all."""
        board = ("chip", chip), ("stack", f"{chip}|{stack}")
        own = [r for r in self.rows if board[0] in r.groups] or self.rows
        near = {
            name: self.posterior(*board, ("family", name), ("model", ""), ("pair", ""))
            for level, name in self.groups
            if level == "family"
        }
        for level, name in self.groups:
            if level == "model":
                near[name] = self.posterior(
                    *board, ("family", family_of(name)), ("model", name), ("pair", f"{chip}|{name}")
                )
        unseen = self.posterior(*board, ("family", ""), ("model", ""), ("pair", ""))
        between = np.sqrt(sum(self.spread[level] ** 2 for level in ("family", "model", "pair")))
        errors = np.sqrt(np.diag(self.found.covariance))
        sets = zip(self.length_sds, self.found.mean[self.shared :], errors[self.shared :], strict=True)
        datasets = {name: (float(longer), float(error)) for name, longer, error in sets}
        return ChipFit(self.form, unseen, near, dict(self.noise), between, 1.0, _ranges(own), datasets)


@dataclass(frozen=True)
class LeftOut:
    """A row as the rows of other models predict it.

    Args:
        seen: the row.
        log_ms: predicted.
        sd: of ``log_ms`` without a scale, noise and all.
        noise: the part of the row alone.
    """

    seen: Observed
    log_ms: float
    sd: float
    noise: float

    @property
    def scale(self) -> float:
        """What the coefficients' standard deviation is to be multiplied by for the row to be at the end of its interval."""
        off = (self.seen.log_ms - self.log_ms) / EIGHTY
        return math.sqrt(max(off**2 - self.noise**2, 0.0) / (self.sd**2 - self.noise**2))

    def interval(self, scale: float) -> tuple[float, float, float]:
        """Milliseconds, and the ends of the 80 % interval."""
        wide = EIGHTY * math.sqrt(scale**2 * (self.sd**2 - self.noise**2) + self.noise**2)
        return math.exp(self.log_ms), math.exp(self.log_ms - wide), math.exp(self.log_ms + wide)


def _left_out(form: Form, rows: Sequence[Observed]) -> list[LeftOut]:
    found = []
    for model in sorted({r.shape.name for r in rows}):
        others = [r for r in rows if r.shape.name != model]
        if not others:
            continue
        levels = _Levels(form, others)
        for r in (r for r in rows if r.shape.name == model):
            known = levels.of(chip_of(r.row), r.row.stack)
            found.append(LeftOut(r, *known.log_ms(r.shape, r.call), known.noise_of(r.call)))
    return found


def _scale(left_out: Sequence[LeftOut]) -> float:
    """The scale with which 80 % of these rows are in their intervals, the nearer to 1 the fewer they are."""
    if not left_out:
        return 1.0
    needed = float(np.quantile([one.scale for one in left_out], 0.8))
    return float(max(needed, LEAST_SCALE) ** (len(left_out) / (len(left_out) + SCALE_ROWS)))


def leave_one_model_out(rows: Sequence[Row]) -> Iterator[tuple[Row, float, float, float]]:
    """Each usable row as the rows of other models predict it: (row, ms, low, high), of a token where it tells a whole decode."""
    for form in FORMS:
        left_out = _left_out(form, observed(rows, form))
        for one in left_out:
            others = [other for other in left_out if other.seen.shape.name != one.seen.shape.name]
            yield one.seen.row, *one.interval(_scale(others))


def fit_decoders(rows: Sequence[Row]) -> dict[tuple[str, str], ChipFit]:
    """What the rows say of each (chip, stack) in them; the chip "" of a stack is one that was never seen."""
    found: dict[tuple[str, str], ChipFit] = {}
    for form in FORMS:
        usable = observed(rows, form)
        if not usable:
            continue
        levels, scale = _Levels(form, usable), _scale(_left_out(form, usable))
        for chip, stack in sorted({(chip, r.row.stack) for r in usable for chip in ("", chip_of(r.row))}):
            found[chip, stack] = replace(levels.of(chip, stack), scale=scale)
    return found
