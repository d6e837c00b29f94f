"""Extremes of values and their counts in the bins of a histogram, in one pass of C++ (``counting.cc``).

The library is built when the package is installed. Where it could not be built, and for the types and sizes that it does not
take, numpy finds the same extremes here and the same counts in `qdq_passes.numerics.histogram`."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import SetupError

Values = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]

NAME = "qdq_counting.dll" if sys.platform == "win32" else "libqdq_counting.so"
#: Number of what the functions of ``counting.cc`` take and mean; a library of other sources, left behind, has another or none.
INTERFACE = 1
#: More values than this in one call would overflow a table of 32-bit counts.
MOST = 1 << 31
#: Largest exponent of a bin width whose inverse is a normal float32.
FLOAT32_EXPONENT = 126
#: Results of the library.
_COUNTED, _NOT_FINITE = 0, 2
#: Types that the library takes, by numpy's character for each.
_TYPES = {"f": "float32", "d": "float64"}
#: What a call finds: the smallest and the largest value, and the number of zeros.
_Found = ctypes.c_double * 3
_REPAIR = "install qdqtool again, or delete it"
#: Newest instruction set to use: 0 none of AVX, 1 AVX2, 2 AVX-512.
newest = 2


class Counted(NamedTuple):
    """The result of one count.

    Attributes:
        low: smallest value.
        high: largest value.
        zeros: number of values that are 0; counts of nothing where ``is_counted`` is off.
        is_counted: whether the values were counted: all are finite and lie within the bins.
        is_finite: whether all are finite.
    """

    low: float
    high: float
    zeros: int
    is_counted: bool
    is_finite: bool


def extremes(values: Values) -> tuple[float, float]:
    """(smallest, largest) of a non-empty float tensor, never −0.0; NaN in it gives NaN in both."""
    flat = values.reshape(-1)
    library = _library() if _is_taken(flat) else None
    if library is not None:
        found = _Found()
        if library.extremes[flat.dtype.char](flat.ctypes.data, flat.size, newest, found) == _COUNTED:
            return found[0] + 0.0, found[1] + 0.0
    return float(np.min(values)) + 0.0, float(np.max(values)) + 0.0


def takes(flat: Values, exponent: int) -> bool:
    """Whether `count` takes the one-dimensional ``flat`` into bins of width 2^``exponent``: the library is there, and computes
    the bins of this type as numpy does."""
    is_wide = flat.dtype.itemsize == 8 or exponent <= FLOAT32_EXPONENT
    return is_wide and _is_taken(flat) and _library() is not None


def count(flat: Values, low: float, high: float, exponent: int, first: int, counts: Counts) -> Counted:
    """Add ``flat``, which `takes` accepts, to ``counts``; all values, or none where one is not finite or beyond [low, high].

    Args:
        flat: float32 or float64 [values].
        low: smallest value that the bins hold.
        high: largest value that the bins hold.
        exponent: log2 of the bin width.
        first: index of the first bin: floor(low / width).
        counts: int64 [bins], changed in place.
    """
    library = _library()
    assert library is not None, "call `takes` first"
    assert counts.dtype == np.int64 and counts.flags.carray, "counts are int64, contiguous and writable"  # noqa: PT018
    found = _Found()
    result = library.count[flat.dtype.char](
        flat.ctypes.data, flat.size, low, high, exponent, first, counts.size, counts.ctypes.data, newest, found
    )  # fmt: skip
    return Counted(found[0] + 0.0, found[1] + 0.0, int(found[2]), result == _COUNTED, result != _NOT_FINITE)


def is_finite(low: float, high: float) -> bool:
    """Whether `extremes` are those of finite values."""
    return math.isfinite(low) and math.isfinite(high)


def _is_taken(flat: Values) -> bool:
    dtype, flags = flat.dtype, flat.flags
    return dtype.char in _TYPES and dtype.isnative and 0 < flat.size < MOST and flags.c_contiguous and flags.aligned


@dataclass(frozen=True)
class _Library:
    """The functions of the library, by the character of the type that they take."""

    count: dict[str, Callable[..., int]]
    extremes: dict[str, Callable[..., int]]


def _refuse_other_sources(library: ctypes.CDLL, where: str) -> None:
    interface = library.qdq_counting_interface() if hasattr(library, "qdq_counting_interface") else None
    if interface != INTERFACE:
        raise SetupError(
            f"was built from other sources: its interface is {interface}, not {INTERFACE}", where=where, hint=_REPAIR
        )


@functools.cache
def _library() -> _Library | None:
    """The library; None where it was not built.

    Raises:
        SetupError: it is there and cannot be loaded, or was built from other sources.
    """
    # An editable installation has Python files in one folder and what was built in another.
    where = next((path for folder in __path__ if os.path.isfile(path := os.path.join(folder, NAME))), None)
    if where is None:
        return None
    found = _Library({}, {})
    pointer, real = ctypes.c_void_p, ctypes.c_double
    try:
        library = ctypes.CDLL(where)
        _refuse_other_sources(library, where)
        for char, name in _TYPES.items():
            found.count[char] = run = getattr(library, f"qdq_count_{name}")
            found.extremes[char] = look = getattr(library, f"qdq_extremes_{name}")
            run.argtypes = [
                pointer, ctypes.c_int64, real, real, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, pointer, ctypes.c_int, pointer
            ]  # fmt: skip
            look.argtypes = [pointer, ctypes.c_int64, ctypes.c_int, pointer]
    except (OSError, AttributeError) as error:
        raise SetupError(f"cannot be loaded: {error}", where=where, hint=_REPAIR) from error
    return found
