"""Profiles of language models moved by own rows: one speed, the lengths of data sets, and the coefficients of each model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.chips.chip import Fitted, Measured, Profile
from qdqtool.cost import predicting
from qdqtool.cost.decoder_fit import ChipFit, fit_rows
from qdqtool.cost.decoders import Design
from qdqtool.cost.fitting import Array, Posterior
from qdqtool.cost.shapes import shape_named

if TYPE_CHECKING:
    from qdqtool.cost.calibrating import Own


@dataclass(frozen=True)
class _Moved:
    """What own rows say of all models together.

    Args:
        speed: logarithm of how many times longer everything takes.
        variance: of it.
        datasets: by `Call.lengths`, what the error of the mean length adds to log ms, and its standard deviation.
    """

    speed: float
    variance: float
    datasets: dict[str, tuple[float, float]]


def moved_decoder(profile: Profile, rows: Sequence[Own], speed_sd: float) -> Profile:
    """``profile`` with one speed that the own rows tell, and the rows put to those of their models.

    Args:
        profile: of language models.
        rows: of language models at this profile; without any the speed is as unsure as before.
        speed_sd: standard deviation of the logarithm of the speed before a row is seen.
    """
    known = predicting.language_model(profile)
    names = known.form.names
    pace = np.array([float(name == "pace" or "pace" not in names) for name in names])
    found = _moved(known, rows, pace, speed_sd) if rows else _Moved(0.0, speed_sd**2, {})

    def moved(fitted: Fitted) -> Fitted:
        spread = fitted.covariance + found.variance * np.outer(pace, pace)
        return Fitted(fitted.names, fitted.mean + found.speed * pace, spread)

    mine = [
        Measured(
            model=own.row.model, ms=own.ms, precision=own.row.precision, phase=own.row.phase, tokens=own.call.tokens,
            context=own.call.context, dataset=own.call.dataset,
        )
        for own in rows
    ]  # fmt: skip
    keys = {_key(row) for row in mine}
    others = [replace(row, ms=row.ms * math.exp(found.speed)) for row in profile.measured if _key(row) not in keys]
    return replace(
        profile,
        fitted=moved(profile.fitted),
        families={name: moved(one) for name, one in profile.families.items()},
        datasets={**profile.datasets, **{name: (math.exp(log), sd) for name, (log, sd) in found.datasets.items()}},
        measured=(*mine, *others),
    )


def _moved(known: ChipFit, rows: Sequence[Own], pace: Array, speed_sd: float) -> _Moved:
    """The posterior of the speed and of the data sets' lengths beside the coefficients of each model that there are rows of."""
    shapes = {own.shape.name: own.shape for own in rows if own.shape is not None}
    sets = {own.call.lengths: known.length_error(own.call) for own in rows if own.call.lengths}
    names = sorted(sets)
    n, first = len(pace), 1 + len(names)
    size = first + n * len(shapes)
    mean, covariance = np.zeros(size), np.zeros((size, size))
    covariance[0, 0] = speed_sd**2
    for at, name in enumerate(names, 1):
        mean[at], covariance[at, at] = sets[name][0], sets[name][1] ** 2
    for at, shape in enumerate(shapes.values()):
        part, prior = slice(first + n * at, first + n * (at + 1)), known.posterior_of(shape)
        mean[part], covariance[part, part] = prior.mean, prior.covariance
    design = Design.of(known.form, [(own.shape, own.call) for own in rows if own.shape is not None])
    take, longer = np.zeros((len(rows), n, size)), np.zeros((len(rows), size))
    for at, own in enumerate(rows):
        start = first + n * list(shapes).index(own.shape.name if own.shape is not None else "")
        take[at][:, start : start + n] = np.eye(n)
        take[at][:, 0] = pace
        longer[at, 1:first] = [own.call.lengths == name for name in names]

    def predict(unknowns: Array) -> tuple[Array, Array]:
        log, slopes = design.log_ms(take @ unknowns)
        return log + longer @ unknowns, np.einsum("rn,rnu->ru", slopes, take) + longer

    sigma = np.array([known.noise[own.call.phase] for own in rows])
    after = fit_rows(predict, Posterior(mean, covariance), np.array([math.log(own.ms) for own in rows]), sigma)
    errors = np.sqrt(np.diag(after.covariance))
    datasets = {name: (float(after.mean[at]), float(errors[at])) for at, name in enumerate(names, 1)}
    return _Moved(float(after.mean[0]), float(after.covariance[0, 0]), datasets)


def _key(row: Measured) -> tuple[str | int, ...]:
    shape = shape_named(row.model)
    return row.model if shape is None else shape.name, row.precision, row.phase, row.tokens, row.context, row.dataset
