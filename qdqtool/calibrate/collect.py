"""Run a model over sample feeds and observe its tensors: one session, one sample's tensors in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir
from qdq_passes.analysis.qdq_ops import is_dequantize, is_quantize
from qdq_passes.analysis.uses import all_nodes
from qdq_passes.errors import ModelError, QdqError, UsageError
from qdq_passes.numerics.histogram import Histogram

from qdqtool.calibrate.cache import RangesCache, cache_key, data_sha256
from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.observer import Array, Observer, Option, checked_options, extremes, observers
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feed_hash import EMPTY, add_feed
from qdqtool.io.feed_spec import is_float
from qdqtool.io.feeds import Feeds
from qdqtool.io.progress import Progress
from qdqtool.runtime.taps import Taps, float_tensors

#: Told (number of the sample, from 0; the graph outputs of it by name).
Watch = Callable[[int, Mapping[str, Array]], None]

#: With a cache, what was seen is saved after so many samples each.
SAVE_EVERY = 64


def collect(
    model: ir.Model,
    feeds: Iterable[Mapping[str, Array]],
    method: str = "minmax",
    *,
    tensors: Iterable[str] | None = None,
    options: Mapping[str, Option] | None = None,
    statistics: bool = False,
    cache: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> Ranges:
    """Ranges of the float tensors of ``model`` (not changed) over ``feeds``.

    Args:
        model: the float model.
        feeds: `Feeds`, or any iterable of dicts of arrays by input name; read once, with a cache twice.
        method: calibration method, see `qdqtool.calibrate.methods`.
        tensors: names of float graph inputs and node outputs of the main graph; default: all.
        options: options of the method.
        statistics: every range has a histogram, also of methods that need none.
        cache: folder that keeps the ranges of every calibration: one of the same model, data, tensors, method and options is
            not run again, and one that was interrupted goes on after the last `SAVE_EVERY` samples.
        watch: called after each sample with the model's outputs; not for samples that the cache knows.
        threads: threads inside an operator.
        progress: called after each sample.

    Raises:
        UsageError: no such method or tensor, a tensor is not float, there is no sample, or the data cannot be read twice.
        ModelError: a tensor holds NaN or Inf.
    """
    options = checked_options(method, options)
    names = tuple(dict.fromkeys(float_tensors(model) if tensors is None else tensors))
    total = feeds.count if isinstance(feeds, Feeds) else None
    seen = Seen(names, method, options, statistics=statistics, model=model_sha256(model))
    store = None
    if cache is not None:
        data = data_sha256(feeds)
        store = RangesCache(cache, cache_key(seen.ranges(), names, data, statistics=statistics, threads=threads))
        if (found := store.read()) is not None:
            return found
        if (part := store.read_part()) is not None:
            seen.resume(part)
    taps = Taps(
        model, (*names, *(_outputs(model) if watch is not None else ())), threads=threads, optimize=seen.may_optimize(model)
    )  # fmt: skip
    done = seen.samples
    for number, feed in enumerate(feeds):
        if number < done:
            continue
        fetched = taps.run(feed)
        seen.add(feed, fetched)
        if watch is not None:
            watch(number, {name: fetched[name] for name in _outputs(model)})
        del fetched  # before the next sample's tensors come
        if progress is not None:
            progress(seen.samples, total)
        if store is not None and seen.samples % SAVE_EVERY == 0:
            store.write_part(seen.ranges())
    taps.session.close()
    if not seen.samples:
        raise UsageError("there is no sample to calibrate on", hint="--data gives the samples")
    if store is not None:
        if seen.data != data:
            raise UsageError(
                "the data differ from one reading to the next", hint="seed what is random, or calibrate without a cache"
            )
        store.write(seen.ranges())
    return seen.ranges()


class Seen:
    """What was seen of the tensors ``names`` so far: nothing at first."""

    def __init__(
        self, names: tuple[str, ...], method: str, options: Mapping[str, Option], *, statistics: bool, model: str
    ) -> None:
        self._names, self._method, self._options, self._model = names, method, options, model
        self._make, self._statistics = observers(method, options), statistics
        self._observers: dict[str, Observer] = {}
        self._beside: dict[str, Histogram] = {}
        self.samples, self.data = 0, EMPTY

    def add(self, feed: Mapping[str, Array], values: Mapping[str, Array]) -> None:
        """Take in the ``values`` that the model has for ``feed``."""
        for name in self._names:
            array = values[name]
            if array.size:
                if name not in self._observers:
                    self._observers[name] = self._make()
                    if self._statistics and self._observers[name].histogram() is None:
                        self._beside[name] = Histogram()
                self._observe(name, array)
        self.data = add_feed(self.data, feed)
        self.samples += 1

    def may_optimize(self, model: ir.Model) -> bool:
        """Whether onnxruntime may optimize ``model``, which takes half the time on convolutions: not where the method forbids
        it, and not where pairs stand, whose optimized kernels may saturate."""
        return not self._make().as_written and not any(
            is_quantize(node) or is_dequantize(node) for node in all_nodes(model)
        )

    def resume(self, part: Ranges) -> None:
        """Go on from ``part``, which is of the first samples."""
        self._observers, self._beside = part.observers(), part.histograms()
        self.samples, self.data = part.samples, part.data_sha256

    def ranges(self) -> Ranges:
        """The ranges of what was seen."""
        return Ranges.of(
            {name: self._observers[name] for name in self._names if name in self._observers},
            self._beside,
            unobserved=[name for name in self._names if name not in self._observers],
            method=self._method,
            options=self._options,
            samples=self.samples,
            model_sha256=self._model,
            data_sha256=self.data,
        )

    def _observe(self, name: str, values: Array) -> None:
        observer, beside = self._observers[name], self._beside.get(name)
        if not is_float(values.dtype):
            raise UsageError(f"tensor {name!r} is {values.dtype}, not float", hint="only float tensors are calibrated")
        if values.dtype.kind == "V":  # bfloat16 and the like: arithmetic of numpy is for its own types
            values = values.astype(np.float32)
        low, high = extremes(values)
        if not (np.isfinite(low) and np.isfinite(high)):
            if not observer.sanitizes:
                count = int(np.count_nonzero(~np.isfinite(values)))
                raise ModelError(
                    f"{count} of {values.size} values are NaN or Inf in sample {self.samples}",
                    where=f"tensor {name!r}",
                    hint="leave it float with --exclude, or look for the sample that causes it",
                )
            with np.errstate(over="ignore"):
                values = np.nan_to_num(values.astype(np.float32, copy=False))
            low, high = extremes(values)
        observer.sample = self.samples
        try:
            observer.observe(values, low, high)
        except QdqError as error:
            error.where = error.where or f"tensor {name!r}"
            raise
        if beside is not None:
            beside.add(values, low, high)


def _outputs(model: ir.Model) -> list[str]:
    return [value.name for value in model.graph.outputs if value.name]
