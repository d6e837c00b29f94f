"""What calibration tells of a tensor: its range, and the histogram of its values where the method keeps one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from qdq_passes.encode.edit.encoding_policy import ObservedRange
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.histogram import Histogram

#: What ``@ranges`` is bound to: ranges, or ready encodings, by tensor name.
Ranges = Mapping[str, ObservedRange | Encoding]


@runtime_checkable
class WithHistogram(Protocol):
    """A range that may bring the histogram of the values it was made from."""

    @property
    def histogram(self) -> Histogram | None: ...


def histogram_of(ranges: Mapping[str, object], name: str) -> Histogram | None:
    """The histogram of the tensor ``name``, or None where none was kept.

    Args:
        ranges: what ``@ranges`` is bound to: range (or ready encoding) by tensor name.
        name: name of the tensor.
    """
    found = ranges.get(name)
    return found.histogram if isinstance(found, WithHistogram) else None


def range_of(ranges: Ranges, name: str) -> tuple[float, float] | None:
    """(low, high) seen of the tensor ``name``; None where nothing is known of it, or where it has a ready encoding."""
    found = ranges.get(name)
    if found is None or isinstance(found, Encoding):
        return None
    low, high = float(found.low), float(found.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) and low <= high else None
