"""Power-of-two scales 2^-p and their position p.

Source: the Vitis line of quantizers restricts scales to 2^-p so that requantization is a shift. Rounding the scale *up*
(``overflow=False``) never clips the range it was made for; rounding to nearest clips by up to sqrt(2)."""

from __future__ import annotations

import math

from qdq_passes.errors import ModelError

#: Scales stay normal float32 numbers: 2^-126 is the smallest, and 2^127 the largest power of two.
MIN_EXPONENT, MAX_EXPONENT = -126, 127


def position_of(scale: float) -> int | None:
    """p with ``scale == 2^-p``, or None when ``scale`` is not a power of two."""
    if not (math.isfinite(scale) and scale > 0):
        return None
    mantissa, exponent = math.frexp(scale)
    return 1 - exponent if mantissa == 0.5 else None


def scale_of(position: int) -> float:
    """The scale 2^-p."""
    return math.ldexp(1.0, -position)


def round_scale(scale: float, *, nearest: bool = False) -> float:
    """The power of two at or above ``scale`` (``nearest``: the nearest in log2, ties to even), within float32's normal range.

    Exact at powers of two: frexp splits the float without a logarithm, so 2^-p never becomes 2^(1-p).

    Raises:
        ModelError: ``scale`` is not positive and finite.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise ModelError(f"{scale} is no scale", hint="a scale is positive and finite")
    if nearest:
        exponent = round(math.log2(scale))
    else:
        mantissa, exponent = math.frexp(scale)
        exponent -= mantissa == 0.5
    return math.ldexp(1.0, min(max(exponent, MIN_EXPONENT), MAX_EXPONENT))
