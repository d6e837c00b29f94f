"""Arrays: what they are called in signatures; and many numbers in one, as the scales of a blocked weight are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

#: Numbers of any type.
Array = npt.NDArray[Any]
Reals = npt.NDArray[np.float64]
#: Numbers from which an encoding holds an array: 32 bytes a Python float are felt then.
MANY = 1 << 14


class Numbers(Sequence[float]):
    """A flat sequence of numbers that equals the tuple of the same numbers; what asks for one of them gets it as Python has it.

    Args:
        count: how many.
        make: gives them, 1-D. It is called at every look, so that who holds the numbers need not hold their bytes.
        source: what computes them, for those who can work with less than all of them.
    """

    __slots__ = ("_count", "_make", "source")

    def __init__(self, count: int, make: Callable[[], Array], source: object = None) -> None:
        self._count, self._make, self.source = count, make, source

    @classmethod
    def of(cls, array: Array) -> Numbers:
        """The numbers of ``array``, in C order; it must not be written to any more."""
        flat = array.reshape(-1)
        return cls(flat.size, lambda: flat)

    @classmethod
    def same(cls, count: int, number: int) -> Numbers:
        """``count`` times ``number``."""
        one = np.array(number)
        return cls(count, lambda: np.broadcast_to(one, (count,)), source=number)

    @property
    def array(self) -> Array:
        """All of them, [count]."""
        return self._make()

    def is_all(self, number: int) -> bool:
        """Whether each of them is ``number``."""
        return self.source == number if type(self.source) is int else bool((self.array == number).all())

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...
    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        found = self.array[index]
        return tuple(found.tolist()) if isinstance(index, slice) else found.item()

    def __iter__(self) -> Iterator[float]:
        return iter(self.array.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.array
        return array.copy() if copy and dtype is None else array.astype(dtype or array.dtype, copy=bool(copy))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Numbers | tuple) or len(other) != self._count:
            return NotImplemented if not isinstance(other, Numbers | tuple) else False
        return self is other or bool(np.array_equal(self.array, np.asarray(other), equal_nan=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{self._count} numbers>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Numbers.of, (np.array(self.array),))


def compact(numbers: Sequence[float]) -> Sequence[float]:
    """``numbers`` as an encoding holds them: few as a tuple, unless something is still to compute them, many in an array."""
    if isinstance(numbers, Numbers) and (len(numbers) >= MANY or not isinstance(numbers.source, int | None)):
        return numbers
    # one NaN for all, so that tuples of it are equal
    return Numbers.of(np.array(numbers)) if len(numbers) >= MANY else tuple(math.nan if n != n else n for n in numbers)
