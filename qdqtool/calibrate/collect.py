"""Run a model over sample feeds and observe its tensors: one session a worker, one sample's tensors in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.calibrate.cache import RangesCache, cache_key, data_sha256
from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.observed import Observers
from qdqtool.calibrate.observer import Option, checked_options
from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.shards import observed_parts
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.progress import Progress
from qdqtool.runtime.taps import Taps, float_tensors
from qdqtool.workers.cluster import InProcess, Workers

#: Told (number of the sample, from 0; the graph outputs of it by name).
Watch = Callable[[int, Mapping[str, Array]], None]

#: With a cache, what was observed is saved after so many samples each.
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
    workers: Workers | None = None,
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
        workers: who runs the model; None: this process. The ranges are the same.
        progress: called after each sample.

    Raises:
        UsageError: no such method or tensor, a tensor is not float, there is no sample, or the data cannot be read twice.
        ModelError: a tensor holds NaN or Inf.
    """
    options = checked_options(method, options)
    names = tuple(dict.fromkeys(float_tensors(model) if tensors is None else tensors))
    total = feeds.count if isinstance(feeds, Feeds) else None
    observers = Observers(names, method, options, statistics=statistics, model=model_sha256(model))
    store = None
    if cache is not None:
        data = data_sha256(feeds)
        store = RangesCache(cache, cache_key(observers.ranges(), names, data, statistics=statistics, threads=threads))
        if (found := store.read()) is not None:
            return found
        if (part := store.read_part()) is not None:
            observers.resume(part)
    if workers is None or isinstance(workers, InProcess) or watch is not None or not observers.merges:
        steps = _here(observers, model, feeds, watch, threads)
    else:
        steps = _elsewhere(observers, model, feeds, workers)
    saved = observers.samples // SAVE_EVERY
    for samples in steps:
        if progress is not None:
            progress(samples, total)
        if store is not None and samples // SAVE_EVERY > saved:
            saved = samples // SAVE_EVERY
            store.write_part(observers.ranges())
    if not observers.samples:
        raise UsageError("there is no sample to calibrate on", hint="--data gives the samples")
    if store is not None:
        if observers.data != data:
            raise UsageError(
                "the data differ from one reading to the next", hint="seed what is random, or calibrate without a cache"
            )
        store.write(observers.ranges())
    return observers.ranges()


def _here(
    observers: Observers, model: ir.Model, feeds: Iterable[Mapping[str, Array]], watch: Watch | None, threads: int
) -> Iterator[int]:
    """Let ``observers`` see the feeds that they have not seen, in this process; the number of samples after each."""
    outputs = _outputs(model) if watch is not None else []
    taps = Taps(model, (*observers.names, *outputs), threads=threads, optimize=observers.may_optimize(model))
    done = observers.samples
    for number, feed in enumerate(feeds):
        if number < done:
            continue
        fetched = taps.run(feed)
        observers.add(feed, fetched)
        if watch is not None:
            watch(number, {name: fetched[name] for name in outputs})
        del fetched  # before the next sample's tensors come
        yield observers.samples
    taps.session.close()


def _elsewhere(
    observers: Observers, model: ir.Model, feeds: Iterable[Mapping[str, Array]], workers: Workers
) -> Iterator[int]:
    """As `_here`, by ``workers``; the number of samples after each shard."""
    for part, warnings in observed_parts(observers, model, feeds, workers):
        observers.take_in(part)
        if isinstance(feeds, Feeds):
            for text in warnings:
                feeds.warnings(text)
        yield observers.samples


def _outputs(model: ir.Model) -> list[str]:
    return [value.name for value in model.graph.outputs if value.name]
