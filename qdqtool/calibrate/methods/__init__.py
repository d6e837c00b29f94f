"""Calibration methods, one file each: ``entropy.py`` holds the class ``Entropy`` and is called ``--method entropy``.

To add one, put such a file here, or into ``methods/`` of a folder given with ``--path``:

    from qdqtool.calibrate.methods import Array, Observer, Range, State

    class LargestMean(Observer):                                # largest_mean.py = --method largest-mean
        '''The range covers ``factor`` times the largest mean magnitude of a sample.'''

        def __init__(self, *, factor: float = 4.0) -> None:     # options are keyword arguments
            self.factor, self.mean = factor, 0.0

        def observe(self, values: Array, low: float, high: float) -> None:
            self.mean = max(self.mean, float(abs(values).mean()))

        def merge(self, other: LargestMean) -> None:
            self.mean = max(self.mean, other.mean)

        def range(self) -> Range:
            return Range(-self.factor * self.mean, self.factor * self.mean)

        def state(self) -> State:                               # JSON-ready, exact
            return {"mean": self.mean}

        def restore(self, state: State, found: Range) -> None:
            self.mean = state["mean"]

`qdqtool.calibrate.observer.Observer` says what each must keep to: bounded memory, and a merge that is exact. One observer
serves one tensor and sees it once per feed, in the order of the feeds. A method that chooses its range from a histogram of all
values derives from `HistogramObserver` and writes ``range`` alone; one that depends on the order of the samples notes what it
needs under ``self.sample`` and puts it in order at the end, as ``moving_average.py`` does."""

from __future__ import annotations

from qdq_passes.numerics.arrays import Array

from qdqtool.calibrate.observer import METHODS, HistogramObserver, Observer, Range, State

__all__ = ["METHODS", "Array", "HistogramObserver", "Observer", "Range", "State"]
