"""Observers of the tensors of a model: one for each, with the number of samples and the fingerprint of the feeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, QdqError, UsageError
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import all_nodes
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.counting import is_finite
from qdq_passes.numerics.histogram import Histogram

from qdqtool.calibrate.observer import Observer, Option, extremes, observers
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feeds.hashes import EMPTY, add_feed, join
from qdqtool.io.feeds.spec import is_float


class NotFiniteError(ModelError):
    """Tensors hold NaN or Inf in a sample.

    Attributes:
        tensors: names of all that do, in that sample.
    """

    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """Observers of consecutive samples, to be merged into those of the samples before; may be pickled.

    Args:
        observers: per tensor.
        beside: histograms kept beside them.
        samples: how many.
        data: fingerprint of the feeds, see `qdqtool.io.feeds.hashes`.
    """

    observers: Mapping[str, Observer]
    beside: Mapping[str, Histogram]
    samples: int
    data: str


class Observers:
    """An observer for each tensor that has been seen, none at first.

    Args:
        names: of the tensors.
        method: calibration method.
        options: its options, checked.
        statistics: histograms are kept whatever the method.
        model: fingerprint of the model.
        before: samples that somebody else has seen before; errors count from there.
    """

    def __init__(
        self, names: tuple[str, ...], method: str, options: Mapping[str, Option], *, statistics: bool, model: str,
        before: int = 0,
    ) -> None:  # fmt: skip
        self.names, self.method, self.options, self.model = names, method, options, model
        self._make, self.statistics = observers(method, options), statistics
        self._observers: dict[str, Observer] = {}
        self._beside: dict[str, Histogram] = {}
        self.samples, self.data, self._before = 0, EMPTY, before

    def add(self, feed: Mapping[str, Array], values: Mapping[str, Array], *, is_last: bool = True) -> None:
        """Take in the ``values`` that the model has for ``feed``: of all names, or of those that one of several graphs has.

        ``is_last``: the sample ends; else what comes next is of the same sample.
        """
        for name in self.names:
            array = values.get(name)
            if array is not None and array.size:
                if name not in self._observers:
                    self._observers[name] = self._make()
                    if self.statistics and self._observers[name].histogram() is None:
                        self._beside[name] = Histogram()
                try:
                    self._observe(name, array)
                except NotFiniteError as error:
                    error.tensors = tuple(n for n in self.names if n in values and not _is_finite(values[n]))
                    raise
        self.data = add_feed(self.data, feed)
        self.samples += is_last

    @property
    def merges(self) -> bool:
        """Whether observers of other samples can be merged, see `take_in`."""
        return self._make().merges

    @property
    def count(self) -> bool:
        """Whether all that is kept of values is a histogram, which does not depend on their order."""
        observer = self._make()
        return observer.counting is not None and not observer.sanitizes

    def may_optimize(self, model: ir.Model) -> bool:
        """Whether onnxruntime may optimize ``model``, which takes half the time on convolutions: not where the method forbids
        it, and not where pairs stand, whose optimized kernels may saturate."""
        return not self._make().as_written and not any(is_qdq(node) for node in all_nodes(model))

    def resume(self, part: Ranges) -> None:
        """Go on from ``part``, which is of the first samples."""
        self._observers, self._beside = part.observers(), part.histograms()
        self.samples, self.data = part.samples, part.data_sha256

    def part(self) -> Part:
        """These observers, to be merged into others; nothing more may be added here."""
        return Part(self._observers, self._beside, self.samples, self.data)

    def take_in(self, part: Part) -> None:
        """Merge observers of the samples that follow: the same as if those had been added here.

        Raises:
            UsageError: the method's ranges cannot be merged.
        """
        for name, observer in part.observers.items():
            observer.shift(self.samples)
            if name in self._observers:
                self._observers[name].merge(observer)
            else:
                self._observers[name] = observer
        for name, histogram in part.beside.items():
            self._beside.setdefault(name, Histogram()).merge(histogram)
        self.data = join(self.data, part.data, part.samples)
        self.samples += part.samples

    def ranges(self) -> Ranges:
        """The ranges observed so far."""
        return Ranges.of(
            {name: self._observers[name] for name in self.names if name in self._observers},
            self._beside,
            unobserved=[name for name in self.names if name not in self._observers],
            method=self.method,
            options=self.options,
            samples=self.samples,
            model_sha256=self.model,
            data_sha256=self.data,
        )

    def _observe(self, name: str, values: Array) -> None:
        observer, beside = self._observers[name], self._beside.get(name)
        if not is_float(values.dtype):
            raise UsageError(f"tensor {name!r} is {values.dtype}, not float", hint="only float tensors are calibrated")
        if values.dtype.kind == "V":  # bfloat16 and the like: arithmetic of numpy is for its own types
            values = values.astype(np.float32)
        counting = None if observer.sanitizes else observer.counting if beside is None else beside
        low, high = extremes(values) if counting is None else counting.count(values)
        if not is_finite(low, high):
            if not observer.sanitizes:
                count = int(np.count_nonzero(~np.isfinite(values)))
                raise NotFiniteError(
                    f"{count} of {values.size} values are NaN or Inf in sample {self._before + self.samples}",
                    where=f"tensor {name!r}",
                    hint="leave it float with --exclude, or look for the sample that causes it",
                )
            with np.errstate(over="ignore"):
                values = np.nan_to_num(values.astype(np.float32, copy=False))
            low, high = extremes(values)
        observer.sample = self.samples
        if counting is None or counting is beside:
            try:
                observer.observe(values, low, high)
            except QdqError as error:
                error.where = error.where or f"tensor {name!r}"
                raise
        if beside is not None and counting is None:
            beside.add(values, low, high)


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())
