"""Whether two runs gave the same outputs: bit for bit with NaN equal to NaN, or within a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: Kinds of numpy types that are numbers with rounding; ml_dtypes' are of kind "V".
_FLOATS = "fcV"


def difference(expected: Mapping[str, Any], found: Mapping[str, Any], bound: float | None) -> str | None:
    """None when every output agrees, else what does not, in one line.

    Args:
        expected: outputs of the original, by name, in order.
        found: outputs of the edited model.
        bound: None asks for equal bits; else ``|found − expected| ≤ bound · max|expected|`` per float output. Outputs without
            rounding (integers, bools, strings) have equal bits in any case.
    """
    if list(expected) != list(found):
        return f"outputs are {list(found)}, were {list(expected)}"
    for name, value in expected.items():
        fault = _difference(value, found[name], bound)
        if fault is not None:
            return f"output {name!r}: {fault}"
    return None


def _difference(expected: Any, found: Any, bound: float | None) -> str | None:
    if expected is None or found is None:
        return None if expected is found else f"{_kind(found)}, was {_kind(expected)}"
    if isinstance(expected, Mapping):
        return _mappings(expected, found, bound)
    if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        return _sequences(expected, found, bound)
    return _arrays(np.asarray(expected), np.asarray(found), bound)


def _mappings(expected: Mapping[Any, Any], found: Any, bound: float | None) -> str | None:
    if not isinstance(found, Mapping) or list(expected) != list(found):
        return "other keys"
    return _sequences(list(expected.values()), list(found.values()), bound)


def _sequences(expected: Sequence[Any], found: Any, bound: float | None) -> str | None:
    if not isinstance(found, Sequence) or len(expected) != len(found):
        return f"{_kind(found)}, was a sequence of {len(expected)}"
    faults = (_difference(old, new, bound) for old, new in zip(expected, found, strict=True))
    return next((fault for fault in faults if fault is not None), None)


def _arrays(expected: npt.NDArray[Any], found: npt.NDArray[Any], bound: float | None) -> str | None:
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return f"{found.dtype}{list(found.shape)}, was {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind not in _FLOATS:
        wrong = np.atleast_1d(expected != found)
        return f"{np.count_nonzero(wrong)} of {wrong.size} elements differ" if wrong.any() else None
    if _same_bits(expected, found):
        return None
    old, new = _wide(expected), _wide(found)
    if bound is None:
        wrong = _bits(expected) != _bits(found)
        wrong &= ~(np.isnan(old) & np.isnan(new)).reshape(wrong.shape)
        if not wrong.any():
            return None
        return f"{np.count_nonzero(wrong)} of {old.size} elements differ, {_measure(old, new)}, allowed 0"
    return None if _within(old, new, bound) else f"{_measure(old, new)}, allowed {bound:.3g}"


def _within(old: npt.NDArray[Any], new: npt.NDArray[Any], bound: float) -> bool:
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True):
        return False
    return bool(np.all(np.abs(new[finite] - old[finite]) <= bound * np.max(np.abs(old[finite]), initial=0.0)))


def _measure(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> str:
    both = np.isfinite(old) & np.isfinite(new)
    largest = float(np.max(np.abs(old[both]), initial=0.0))
    error = float(np.max(np.abs(new[both] - old[both]), initial=0.0))
    kinds = "" if np.array_equal(np.isfinite(old), np.isfinite(new)) else ", NaN or Inf at other places"
    return f"max error {error / largest if largest else error:.3g} of max|y| = {largest:.3g}{kinds}"


def _same_bits(expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> bool:
    return expected.tobytes() == found.tobytes()


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One row of bytes per element, seen as one item each."""
    return np.frombuffer(array.tobytes(), f"V{array.dtype.itemsize}")


def _wide(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Float64 (complex128 for complex), in which every narrower float is exact."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).reshape(-1)


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
