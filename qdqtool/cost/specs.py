"""Profiles of chips that nobody measured, carried over from the measured chip that is nearest, by the numbers of data sheets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qdqtool.chips.chip import Chip, Fitted, Profile
from qdqtool.cost.networks import COEFFICIENTS

#: Of the logarithm: what chips of one maker differ in beyond their data sheets; of two makers. The speeds of the measured chips
#: scatter by 0.3 around what TOPS and bandwidth tell.
ONE_MAKER, TWO_MAKERS = 0.3, 0.6
#: Coefficients of language models that hang on TOPS, and on the bandwidth; the others stay.
_TOPS, _BANDWIDTH = ("mac", "scores", "vectors"), ("weights", "cache", "heads", "load", "spilled")


def carried_over(chip: Chip, like: Chip, profile: Profile) -> Profile:
    """``profile`` of ``like`` as it would be on ``chip``, no surer than data sheets are.

    Args:
        chip: that nobody measured.
        like: the measured one.
        profile: of ``like``.
    """
    tops, bandwidth = _ratio(chip, like, "int8_tops"), _ratio(chip, like, "bandwidth_gbs")
    sd = ONE_MAKER if chip.vendor == like.vendor else TWO_MAKERS
    shift = np.array([_shift(profile, name, tops, bandwidth) for name in profile.fitted.names])

    def moved(fitted: Fitted) -> Fitted:
        return Fitted(fitted.names, fitted.mean + shift, fitted.covariance + sd**2)

    return replace(
        profile,
        rows=0,
        version="",
        fitted=moved(profile.fitted),
        families={name: moved(one) for name, one in profile.families.items()},
        scale=max(profile.scale, 1.0),
        measured=(),
        carried=like.name,
    )


def _shift(profile: Profile, name: str, tops: float, bandwidth: float) -> float:
    if profile.form == "network":
        resource = COEFFICIENTS[name][0]
        return -math.log({"MAC": tops, "vector": tops, "memory": bandwidth, "weights": bandwidth}.get(resource, 1.0))
    return -math.log(tops if name in _TOPS else bandwidth if name in _BANDWIDTH else 1.0)


def _ratio(chip: Chip, like: Chip, key: str) -> float:
    ours, theirs = chip.hardware.get(key), like.hardware.get(key)
    return 1.0 if ours is None or theirs is None else ours.value / theirs.value
