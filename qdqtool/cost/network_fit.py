"""The fit of the networks' form to measured rows: shared coefficients, and how precisions, runtimes, chips and networks differ.

log θ = base + precision + runtime + runtime·precision + chip (speed, and three groups of coefficients), each also by precision;
log ms = log form(θ) + network, and what of it differs by precision, by runtime, and by both.
All have Gaussian priors: precisions are multipliers of what float tells, chips differ by few numbers, and a network without rows
adds the distance between networks to its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cost.fitting import Array, Posterior, fit
from qdqtool.cost.networks import COEFFICIENTS, NAMES, Amounts, log_ms, log_ms_at
from qdqtool.cost.rows import Row

#: Precisions and runtimes that rows are fitted of; the first of each is what the others are multipliers of.
PRECISIONS = ("float", "w8a8", "w8a16")
STACKS = ("qnn_dlc", "tflite", "onnx")
#: Milliseconds before a row is seen, of a float network on a Snapdragon 8 Gen 3: 17 TFLOP/s at most and DRAM of 68 GB/s, of
#: which networks get half; elements at some ten a nanosecond, operators and a run from what such drivers take.
PRIOR = {
    "mac": 0.06, "weight": 0.045, "activation": 0.008, "written": 0.01, "depthwise": 0.02, "grouped": 0.1, "product": 0.15,
    "move": 0.02, "elementwise": 0.015, "function": 0.04, "gate": 0.02, "pool": 0.005, "operators": 0.09, "constant": 0.28,
}  # fmt: skip
#: Log of what a precision multiplies it with: half or a quarter of the bits where bytes move, a unit of twice the rate or more.
MULTIPLIERS = {
    "w8a8": {
        "mac": -1.0, "weight": -0.8, "activation": -0.7, "written": -0.7, "depthwise": -0.7, "grouped": -0.8, "product": -1.0,
        "move": -0.7, "elementwise": -0.7, "function": -0.5, "gate": -0.5, "pool": -0.6, "operators": -0.5, "constant": -0.35,
    },
    "w8a16": {
        "mac": -0.5, "weight": -0.6, "activation": 0.0, "written": 0.0, "depthwise": -0.2, "grouped": -0.3, "product": -0.7,
        "move": 0.0, "elementwise": -0.1, "function": -0.3, "gate": -0.2, "pool": 0.0, "operators": -0.1, "constant": -0.1,
    },
}  # fmt: skip
#: Standard deviations of logarithms: of the prior, of multipliers, between chips, and of networks around the form.
SPREAD = {
    "base": 0.4, "precision": 0.3, "stack": 0.5, "stack precision": 0.15, "chip": 0.7, "chip precision": 0.15,
    "chip stack": 0.03, "group": 0.3, "group precision": 0.4, "network": 0.22, "network precision": 0.03, "network stack": 0.05,
    "network stack precision": 0.05,
}  # fmt: skip
#: Of log ms of a row around the form and all effects.
NOISE = 0.07

_GROUPS = {"MAC": 0, "memory": 1, "vector": 1, "weights": 1, "dispatch": 2}
_GROUP = np.zeros((len(NAMES), 3))
_GROUP[np.arange(len(NAMES)), [_GROUPS[COEFFICIENTS[name][0]] for name in NAMES]] = 1
_ALL = np.eye(len(NAMES))
_SPEED = np.ones((len(NAMES), 1))

#: What a row or a profile is of: chip, runtime, precision.
Place = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Effect:
    """One group of unknowns.

    Args:
        key: which.
        to: how it moves the coefficients [coefficients, unknowns]; None of one that moves the time itself.
        mean: before a row is seen.
        sd: likewise.
    """

    key: tuple[str, ...]
    to: Array | None
    mean: Array
    sd: float


def effects_of(place: Place, network: str = "") -> Iterator[Effect]:
    """The unknowns that the time of ``network`` at ``place`` hangs on; without a network those of the coefficients alone."""
    chip, stack, precision = place
    none = np.zeros(1)
    yield Effect(("base",), _ALL, np.log([PRIOR[name] for name in NAMES]), SPREAD["base"])
    if precision != PRECISIONS[0]:
        mean = np.array([MULTIPLIERS[precision][name] for name in NAMES])
        yield Effect(("precision", precision), _ALL, mean, SPREAD["precision"])
    if stack != STACKS[0]:
        yield Effect(("stack", stack), _ALL, none, SPREAD["stack"])
        if precision != PRECISIONS[0]:
            yield Effect(("stack precision", stack, precision), _ALL, none, SPREAD["stack precision"])
    yield Effect(("chip", chip), _SPEED, none, SPREAD["chip"])
    yield Effect(("chip precision", chip, precision), _SPEED, none, SPREAD["chip precision"])
    yield Effect(("chip stack", chip, stack, precision), _SPEED, none, SPREAD["chip stack"])
    yield Effect(("group", chip), _GROUP, none, SPREAD["group"])
    yield Effect(("group precision", chip, precision), _GROUP, none, SPREAD["group precision"])
    if network:
        yield Effect(("network", network), None, none, SPREAD["network"])
        yield Effect(("network precision", network, precision), None, none, SPREAD["network precision"])
        yield Effect(("network stack", network, stack), None, none, SPREAD["network stack"])
        own = ("network stack precision", network, stack, precision)
        yield Effect(own, None, none, SPREAD["network stack precision"])


@dataclass(frozen=True)
class Seen:
    """A row as the fit sees it."""

    row: Row
    place: Place
    amounts: Amounts

    @property
    def log_ms(self) -> float:
        """Logarithm of the milliseconds."""
        return math.log(self.row.ms)


def seen(rows: Sequence[Row], amounts: Mapping[str, Amounts]) -> list[Seen]:
    """The rows that the form can be fitted to: all of a network on the NPU, and one of each measurement that stands there under
    several boards."""
    found: dict[tuple[object, ...], Seen] = {}
    for row in rows:
        known = row.stack in STACKS and row.precision in PRECISIONS and row.model in amounts
        if known and not row.phase and not row.suspect and not row.off_npu and row.chip:
            place = row.chip, row.stack, row.precision
            found.setdefault((*place, row.model, row.value), Seen(row, place, amounts[row.model]))
    return list(found.values())


class NetworkFit:
    """The unknowns after the rows were seen.

    Args:
        rows: not empty.
        near: a fit of most of the same rows, to start from.
    """

    def __init__(self, rows: Sequence[Seen], near: NetworkFit | None = None) -> None:
        self._at: dict[tuple[str, ...], tuple[int, int]] = {}
        means: list[Array] = []
        sds: list[Array] = []
        for row in rows:
            for effect in effects_of(row.place, row.row.model):
                if effect.key not in self._at:
                    size = 1 if effect.to is None else effect.to.shape[1]
                    self._at[effect.key] = sum(len(sd) for sd in sds), size
                    means.append(np.broadcast_to(effect.mean, size))
                    sds.append(np.full(size, effect.sd))
        prior = Posterior(np.concatenate(means), np.diag(np.concatenate(sds) ** 2))
        self._size = len(prior.mean)
        self.rows = rows
        designs = [self._design(row.place, row.row.model) for row in rows]
        moves, adds = (np.array(part) for part in zip(*designs, strict=True))

        same: dict[int, list[int]] = {}
        for at, row in enumerate(rows):
            same.setdefault(id(row.amounts), []).append(at)

        def predict(unknowns: Array) -> tuple[Array, Array]:
            thetas = moves @ unknowns
            logs, slopes = np.empty(len(rows)), np.empty(thetas.shape)
            for at in same.values():
                logs[at], slopes[at] = log_ms_at(thetas[at], rows[at[0]].amounts)
            return logs + adds @ unknowns, np.einsum("rc,rcn->rn", slopes, moves) + adds

        start = None if near is None else self._taken(near, prior.mean)
        self.found = fit(predict, prior, np.array([row.log_ms for row in rows]), NOISE, start=start)

    def _taken(self, near: NetworkFit, otherwise: Array) -> Array:
        start = otherwise.copy()
        for key, (at, size) in self._at.items():
            if key in near._at:
                start[at : at + size] = near.found.mean[near._at[key][0] :][:size]
        return start

    def _design(self, place: Place, network: str = "") -> tuple[Array, Array]:
        move, add = np.zeros((len(NAMES), self._size)), np.zeros(self._size)
        for effect in effects_of(place, network):
            if effect.key in self._at:
                start, size = self._at[effect.key]
                if effect.to is None:
                    add[start] = 1
                else:
                    move[:, start : start + size] += effect.to
        return move, add

    @property
    def places(self) -> list[Place]:
        """Where there are rows."""
        return sorted({row.place for row in self.rows})

    def coefficients(self, place: Place) -> Posterior:
        """Of log coefficients at ``place``."""
        move, _ = self._design(place)
        return Posterior(move @ self.found.mean, move @ self.found.covariance @ move.T)

    def log_ms(self, place: Place, network: str, amounts: Amounts) -> tuple[float, float]:
        """Log milliseconds of a network and their standard deviation, noise and the effects that no row told of among it."""
        move, add = self._design(place, network)
        log, slope = log_ms(move @ self.found.mean, amounts)
        slopes = slope @ move + add
        own = sum(e.sd**2 for e in effects_of(place, network) if e.to is None and e.key not in self._at)
        variance = float(slopes @ self.found.covariance @ slopes) + own + NOISE**2
        return log + float(add @ self.found.mean), math.sqrt(variance)


@dataclass(frozen=True)
class LeftOut:
    """A row as the others predict it: log ms, and their standard deviation."""

    seen: Seen
    log_ms: float
    sd: float


def leave_out(rows: Sequence[Seen], *, precision: bool) -> list[LeftOut]:
    """Each row as the rows of other networks predict it; with ``precision`` also those of the same network in others."""

    def group(row: Seen) -> tuple[str, str]:
        return row.row.model, row.place[2] if precision else ""

    found = []
    whole = NetworkFit(rows)
    for left in sorted({group(row) for row in rows}):
        known = NetworkFit([row for row in rows if group(row) != left], near=whole)
        for row in rows:
            if group(row) == left and row.place in known.places:
                found.append(LeftOut(row, *known.log_ms(row.place, row.row.model, row.amounts)))
    return found
