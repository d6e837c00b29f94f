"""Least squares with priors: coefficients of a form from the logarithms of measured times.

The step is Gauss-Newton's on the log posterior, halved until it gains; rows far off count less (noise of a t distribution).
The assumed noise sinks from step to step, so that the first steps follow all rows. Numpy, deterministic, no seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from qdq_passes._lazy_dataclass import dataclass

Array = NDArray[np.float64]
#: Coefficients [n] → log times [rows] and their derivatives [rows, n].
Predict = Callable[[Array], tuple[Array, Array]]

#: Degrees of freedom of the noise: a row three sigmas off counts a third.
FREEDOM = 4.0
#: What the assumed noise begins with, in shares of the noise what it does near the end, and what is left of it after a step.
FIRST_NOISE, NEAR, COOLING = 0.5, 3.0, 0.7
#: The largest change of a coefficient in a step, that of the last step, and how often a step is halved.
LONGEST, SHORTEST, HALVINGS = 1.0, 1e-3, 6
MOST_STEPS = 60
#: Half the width of an 80 % interval in standard deviations.
EIGHTY = 1.2816
#: What each factor of e beyond the sizes that were seen adds to the standard deviation of log ms.
BEYOND = 0.1
#: Share of a prior's variances that is added to them: correlations of two decimals may be those of nothing without.
ROUNDING = 0.01


@dataclass(frozen=True)
class Posterior:
    """Coefficients and how sure they are.

    Args:
        mean: [n].
        covariance: [n, n].
    """

    mean: Array
    covariance: Array


def fit(predict: Predict, prior: Posterior, log_ms: Array, noise: float, *, start: Array | None = None) -> Posterior:
    """The posterior of a form's coefficients.

    Args:
        predict: the form on the rows.
        prior: of the coefficients, before a row is seen.
        log_ms: logarithms of the measured times [rows].
        noise: standard deviation of ``log_ms`` around the form.
        start: coefficients [n] near the end, from most of the same rows: few steps are left from there.
    """
    inverse = np.linalg.inv(prior.covariance + ROUNDING * np.diag(np.diag(prior.covariance)))
    mean = (prior.mean if start is None else start).copy()
    first = FIRST_NOISE if start is None else NEAR * noise
    predicted, slopes = predict(mean)
    precision = inverse

    def loss(at: Array, log_times: Array, sigma: float) -> float:
        rows = (FREEDOM + 1) / 2 * np.log1p(((log_ms - log_times) / sigma) ** 2 / FREEDOM).sum()
        return float(rows + (at - prior.mean) @ inverse @ (at - prior.mean) / 2)

    for step in range(MOST_STEPS):
        sigma = max(noise, first * COOLING**step)
        off = log_ms - predicted
        weights = (FREEDOM + 1) / (FREEDOM + (off / sigma) ** 2)
        precision = slopes.T @ (slopes * weights[:, None]) / sigma**2 + inverse
        change = np.linalg.solve(precision, slopes.T @ (weights * off) / sigma**2 - inverse @ (mean - prior.mean))
        change *= min(1.0, LONGEST / max(float(np.abs(change).max(initial=0.0)), SHORTEST))
        before = loss(mean, predicted, sigma)
        for _ in range(HALVINGS):
            tried, slopes_there = predict(mean + change)
            if loss(mean + change, tried, sigma) <= before:
                break
            change /= 2
        mean, predicted, slopes = mean + change, tried, slopes_there
        if float(np.abs(change).max(initial=0.0)) < SHORTEST and sigma == noise:
            break
    return Posterior(mean, np.linalg.inv(precision))
