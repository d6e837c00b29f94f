"""Why a quantized tensor costs so much: a word and a sentence, from its values, its grid and a better one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from qdq_passes.qdq.look.grids import middle

from qdqtool.comparison.prices.refit import moved_back
from qdqtool.comparison.prices.subjects import Subject

#: A better grid that saves this share of the noise tells a cause; one that saves less is no better grid.
TELLING = 0.5
#: A scale that is so many times what the tensor needs is another's.
APART = 4.0
#: Share of a better grid's gain that another zero point alone must have to be the cause.
ALONE = 0.7
#: Scales differ between channels by so much in their logarithm, and once sorted by less than half of it: they stand elsewhere.
SPREAD = 0.05
#: Mean over root mean square of the error from where on a constant is displaced as a whole.
DISPLACED = 0.7
#: What a channel of zeros counts as.
TINY = 1e-30


def diagnosis(subject: Subject, subjects: Sequence[Subject], best: Sequence[str]) -> tuple[str, str]:
    """A word and a sentence.

    Args:
        subject: the tensor.
        subjects: all of the model.
        best: the kind of the edit that wins most; empty where none wins.
    """
    clipped = subject.record.clipped or 0.0
    beyond = f"{100 * clipped:.3g} % of the values lie beyond the grid"
    if subject.record.kind == "bias":
        return "bias", beyond if clipped else "its integers are not those of the float bias, or rounded too coarsely"
    told = _constant(subject, beyond) if subject.record.kind == "weight" else _activation(subject, subjects, beyond)
    if told is not None:
        return told
    if "per-axis" in best:
        return "outlier", "one scale for channels of very different sizes"
    if subject.record.kind == "weight":
        return "weight", "rounding of weights; no other scale of this form is much better"
    if "boundary" in subject.record.price:
        return "boundary", "it is rounded because integers and floats meet here"
    if subject.record.price.get("clipping", 0.0) > subject.record.price.get("rounding", 0.0):
        return "clipping", beyond
    return "rounding", "no other scale of this form is much better: it needs more bits, or to stay float"


def _activation(subject: Subject, subjects: Sequence[Subject], beyond: str) -> tuple[str, str] | None:
    encoding, refit = subject.pair.encoding, subject.refit
    if refit is None or encoding is None or subject.gain < TELLING:
        return None
    zero = encoding.zero_point[0]
    off_middle = zero != middle(encoding.dtype)
    back = moved_back(subject.values, encoding) if subject.values is not None and off_middle else None
    if back is not None and back.gain > ALONE * subject.gain and back.encoding.zero_point[0] != zero:
        return "zero point", f"it is {zero}, where {back.encoding.zero_point[0]} fits its range"
    times = max(encoding.scale) / max(refit.encoding.scale)
    if times > APART * 0.999 and (other := _sharing(subject, subjects)):
        return "shared", f"it has the encoding of {other}, {times:.3g} times what its own range needs"
    return ("clipping", beyond) if times < 1 else ("rounding", f"its scale is {times:.3g} times what its range needs")


def _constant(subject: Subject, beyond: str) -> tuple[str, str] | None:
    encoding, refit = subject.pair.encoding, subject.refit
    if refit is None or encoding is None or subject.gain < TELLING:
        return None
    if abs(subject.shift) > DISPLACED:
        return "zero point", "all its values are displaced to one side"
    now, then = np.log(np.array(encoding.scale)), np.log(np.array(refit.encoding.scale))
    if encoding.axis is not None and subject.values is not None and len(encoding.scale) > 1:
        rows = np.moveaxis(np.abs(subject.values), encoding.axis, 0).reshape(len(encoding.scale), -1)
        wanted = np.log(np.maximum(rows.max(axis=1), TINY))
        spread = float(np.std(now - wanted))
        if spread > SPREAD and float(np.std(np.sort(now) - np.sort(wanted))) < spread / 2:
            return "axis", "its scales fit other channels than those they stand at"
    times = math.exp(float(np.median(now - then)))
    if subject.record.clipped and times < 1:
        return "weight clipping", beyond
    if times > 1:
        return "weight", f"its scale is {times:.3g} times what its values need"
    return "weight", "its integers are not those of the float weight"


def _sharing(subject: Subject, subjects: Sequence[Subject]) -> str:
    """Another tensor of the same encoding, whose range needs it; "" of none."""
    own = subject.record.encoding
    for other in subjects:
        is_own = other.record.encoding == own and other.record.kind == "activation"
        if other is not subject and is_own and other.gain < TELLING:
            return other.record.name
    return ""
