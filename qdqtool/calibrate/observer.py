"""What a calibration method is: an observer of one tensor that sees every sample once and ends in a range."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from qdq_passes.core.registry import FolderRegistry
from qdq_passes.errors import ModelError, UsageError

Array = npt.NDArray[Any]
Option = str | int | float | bool
#: JSON-ready statistics of an observer; floats survive exactly.
State = Mapping[str, Any]

METHODS = FolderRegistry("methods", ("qdqtool.calibrate.methods",))


@dataclass(frozen=True)
class Range:
    """The values a tensor takes, in its own unit: an interval that its encoding must cover.

    Args:
        low: smallest value.
        high: largest value.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ModelError(f"[{self.low}, {self.high}] is no range", hint="low <= high, both finite")

    @property
    def magnitude(self) -> float:
        """Largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def union(self, other: Range) -> Range:
        """The smallest range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


class Observer(abc.ABC):
    """Statistics of one tensor. Options of the method are keyword arguments of ``__init__``.

    What an observer keeps must not grow with the size of the tensor, and must be exact, so that observing a and b, or
    merging an observer of a with one of b, gives the same state to the last bit.
    """

    @abc.abstractmethod
    def observe(self, values: Array, low: float, high: float) -> None:
        """Take in one sample's tensor.

        Args:
            values: float, of any shape, not empty, all finite; read only, gone after the call.
            low: its smallest value.
            high: its largest value.
        """

    @abc.abstractmethod
    def merge(self, other: Self) -> None:
        """Take in what ``other`` saw, as if its samples had come after those of this one."""

    @abc.abstractmethod
    def range(self) -> Range:
        """The range of everything seen; at least one sample was."""

    def state(self) -> State:
        """What `restore` needs besides the range, for the ranges file; empty where the range says it all."""
        return {}

    @abc.abstractmethod
    def restore(self, state: State, found: Range) -> None:
        """Become the observer that had this ``state`` and ended in ``found``."""


def observers(method: str, options: Mapping[str, Option] | None = None) -> Callable[[], Observer]:
    """A factory of observers of ``method``, all with the same options.

    Raises:
        UsageError: no such method (the nearest names are given), or it does not take these options.
    """
    cls = METHODS.load(method)
    if not (isinstance(cls, type) and issubclass(cls, Observer)):
        raise UsageError(f"{getattr(cls, '__name__', cls)} is no Observer", where=f"method {method!r}")

    def make() -> Observer:
        return cls(**dict(options or {}))

    try:
        make()
    except TypeError as error:
        raise UsageError(f"it does not take these options: {error}", where=f"method {method!r}") from error
    return make


def extremes(values: Array) -> tuple[float, float]:
    """(smallest, largest) of a non-empty float tensor; NaN in it gives NaN in both."""
    return float(np.min(values)), float(np.max(values))
