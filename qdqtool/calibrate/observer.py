"""What a calibration method is: an observer of one tensor that sees every sample once and ends in a range."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Self

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.counting import extremes
from qdq_passes.numerics.encoding import parse_dtype
from qdq_passes.numerics.histogram import Histogram

from qdqtool.calibrate import METHODS
from qdqtool.calibrate.method_options import Option, checked, keywords

#: JSON-ready statistics of an observer; floats survive exactly.
State = Mapping[str, Any]


@dataclass(frozen=True)
class Range:
    """The values a tensor takes, in its own unit: an interval that its encoding must cover.

    Args:
        low: smallest value.
        high: largest value.
        histogram: the values it was made from, where they were kept; not part of what the range is.
    """

    low: float
    high: float
    histogram: Histogram | None = field(default=None, compare=False, repr=False)

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

    Attributes:
        sample: number of the sample that `observe` is given, from 0; whoever calls `observe` sets it.
        sanitizes: `observe` is given NaN as 0 and infinities as the type's largest numbers, instead of an error being raised.
        merges: `merge` works; where it does not, one observer sees all samples.
        as_written: the model is run without any optimization; else sums may associate differently, in the last bits.
    """

    sample: int = 0
    sanitizes: bool = False
    merges: bool = True
    as_written: bool = False

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

    def shift(self, samples: int) -> None:
        """Count ``samples`` to the number of each sample seen: called before another observer merges this one."""
        return

    @abc.abstractmethod
    def range(self) -> Range:
        """The range of everything seen; at least one sample was."""

    def histogram(self) -> Histogram | None:
        """All values seen, where the method keeps them; it stands in `state` as ``"histogram"`` then."""
        return None

    @property
    def counting(self) -> Histogram | None:
        """The histogram where to count a sample's values there is all that `observe` does; it finds their extremes meanwhile."""
        return None

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
    cls = method_class(method)
    given = checked_options(method, options)

    def make() -> Observer:
        return cls(**given)

    try:
        make()
    except UsageError as error:
        error.where = error.where or f"method {method!r}"
        raise
    return make


def option_names(method: str) -> tuple[str, ...]:
    """Names of the options that ``method`` takes.

    Raises:
        UsageError: no such method.
    """
    return tuple(keywords(method_class(method)))


def checked_options(method: str, options: Mapping[str, Option] | None) -> dict[str, Option]:
    """``options`` as ``method`` takes them: a text that stands for a number is that number.

    Raises:
        UsageError: no such method, or it does not take these options.
    """
    return checked(method, keywords(method_class(method)), options or {})


def method_class(method: str) -> type[Observer]:
    """The class of a method.

    Raises:
        UsageError: no such method (the nearest names are given), or it is no `Observer`.
    """
    cls = METHODS.load(method)
    if not (isinstance(cls, type) and issubclass(cls, Observer)):
        raise UsageError(f"{getattr(cls, '__name__', cls)} is no Observer", where=f"method {method!r}")
    return cls


__all__ = [
    "METHODS", "Array", "Observer", "Option", "Range", "State", "checked_options", "counts", "extremes", "method_class",
    "observers", "option_names",
]  # fmt: skip


class HistogramObserver(Observer):
    """Keeps a `Histogram`, which is exact: the state does not depend on the order or grouping of the samples."""

    def __init__(self) -> None:
        self.seen = Histogram()

    def observe(self, values: Array, low: float, high: float) -> None:
        """Count the values."""
        self.seen.add(values, low, high)

    def merge(self, other: Self) -> None:
        """Count what the other counted."""
        self.seen.merge(other.seen)

    def histogram(self) -> Histogram | None:
        """All values seen."""
        return self.seen

    @property
    def counting(self) -> Histogram | None:
        """The histogram, unless a method observes in its own way."""
        return self.seen if type(self).observe is HistogramObserver.observe else None

    def state(self) -> State:
        """The histogram."""
        return {"histogram": self.seen.state()}

    def restore(self, state: State, found: Range) -> None:
        """Take up the histogram."""
        self.seen = Histogram.from_state(state["histogram"])

    @property
    def observed(self) -> Range:
        """[min, max] of everything seen."""
        assert self.seen.total, "no sample was observed"
        return Range(self.seen.low, self.seen.high)


def counts(observer: Observer) -> bool:
    """Whether what ``observer`` keeps is the histogram of all values, of the model as onnxruntime optimizes it, and no more."""
    kind, plain = type(observer), HistogramObserver
    is_plain = isinstance(observer, plain) and (kind.observe, kind.state) == (plain.observe, plain.state)
    return is_plain and not (observer.sanitizes or observer.as_written)


def storage_type(bits: int, *, symmetric: bool) -> ir.DataType:
    """The integer type of so many bits: int8 for symmetric grids, uint8 for asymmetric ones.

    Raises:
        UsageError: there is no such type.
    """
    try:
        return parse_dtype(f"{'int' if symmetric else 'uint'}{bits}")
    except UsageError:
        raise UsageError(f"no integer type has {bits} bits", hint="bits is 2, 4, 8 or 16") from None
