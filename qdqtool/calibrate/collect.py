"""Run a model over sample feeds and observe its tensors: one session a worker, one sample's tensors in memory at a time.

Several workers observe shards of consecutive samples, and the observers are merged in their order. Observers are exact whatever
the grouping of the samples, so the ranges are those of one process, to the last bit. Data that lie in files are opened by each
worker; all others (Python objects, functions) are read once, here, and sent in batches: what a function yields may depend on how
often it was called."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqWarning, SetupError, UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.calibrate.cache import RangesCache, cache_key, data_sha256, method_sha256
from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.observed import Observers, Part
from qdqtool.calibrate.observer import Option, checked_options
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feeds.feeds import Feeds, Opening, Slices
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.progress import Progress
from qdqtool.runtime.taps import Taps, float_tensors
from qdqtool.workers.cluster import InProcess, Workers
from qdqtool.workers.shared_model import SharedModel

Feed = Mapping[str, Array]
#: Told (number of the sample, from 0; the graph outputs of it by name).
Watch = Callable[[int, Mapping[str, Array]], None]

#: With a cache, what was observed is saved after so many samples each.
SAVE_EVERY = 64
#: Shards per worker, where the number of samples is known: so many that the last ones end together.
SHARDS = 4
#: Samples of a shard at most, and where their number is not known.
MOST, UNKNOWN = 64, 4
#: Bytes of feeds from which a shard that is sent is full.
FULL = 1 << 24


def collect(
    model: ir.Model,
    feeds: Iterable[Feed],
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
    observers: Observers, model: ir.Model, feeds: Iterable[Feed], watch: Watch | None, threads: int
) -> Iterator[int]:
    """Let ``observers`` see the feeds that they have not seen, in this process; the number of samples after each."""
    outputs = _outputs(model) if watch is not None else []
    say = feeds.warnings if isinstance(feeds, Feeds) else functools.partial(warnings.warn, category=QdqWarning)
    taps = Taps(
        model,
        (*observers.names, *outputs),
        threads=threads,
        optimize=observers.may_optimize(model),
        any_order=say if observers.count else None,
    )
    done = observers.samples
    for number, feed in enumerate(feeds):
        if number < done:
            continue
        fetched = taps.lend(feed)
        observers.add(feed, fetched)
        if watch is not None:
            watch(number, {name: fetched[name] for name in outputs})
        del fetched  # before the next sample's tensors come
        yield observers.samples
    taps.session.close()


def _elsewhere(observers: Observers, model: ir.Model, feeds: Iterable[Feed], workers: Workers) -> Iterator[int]:
    """As `_here`, by ``workers``; the number of samples after each shard."""
    for part, told in observed_parts(observers, model, feeds, workers):
        observers.take_in(part)
        if isinstance(feeds, Feeds):
            for text in told:
                feeds.warnings(text)
        yield observers.samples


def _outputs(model: ir.Model) -> list[str]:
    return [value.name for value in model.graph.outputs if value.name]


@dataclass(frozen=True)
class Shard:
    """Consecutive samples.

    Args:
        first: number of the first.
        count: how many.
        feeds: the samples; None where the worker opens the data.
    """

    first: int
    count: int
    feeds: tuple[Feed, ...] | None = None


@dataclass(frozen=True)
class Job:
    """One calibration: what all of its shards have in common.

    Args:
        model: the model.
        names: tensors to observe.
        method: calibration method.
        options: its options.
        statistics: histograms are kept whatever the method.
        source: fingerprint of the method's source: a worker must have the same.
        opening: how the data are opened; None where they are sent.
    """

    model: SharedModel
    names: tuple[str, ...]
    method: str
    options: Mapping[str, Option]
    statistics: bool
    source: str
    opening: Opening | None

    @functools.cached_property
    def opened(self) -> OpenJob:
        """The job as a worker runs it, set up once."""
        return OpenJob(self)

    def observers(self, before: int) -> Observers:
        """Observers that have seen nothing yet, ``before`` samples into the data."""
        return Observers(self.names, self.method, self.options, statistics=self.statistics, model="", before=before)


class OpenJob:
    """A job on a worker: the session, and how far the data are read."""

    def __init__(self, job: Job) -> None:
        if method_sha256(job.method) != job.source:
            raise SetupError(
                "the worker has another source of this method",
                where=f"method {job.method!r}",
                hint="install the same on every machine",
            )
        model = job.model.load()
        self.slices = None if job.opening is None else Slices(job.opening.open(input_specs(model)))
        self.taps = Taps(model, job.names, optimize=job.observers(0).may_optimize(model))


def observe(job: Job, shard: Shard) -> tuple[Part, list[str]]:
    """Run the shard's samples; return the merged observers and the warnings: the task of a worker.

    Raises:
        ModelError: a tensor holds NaN or Inf.
    """
    opened, observers = job.opened, job.observers(shard.first)
    feeds: Iterable[Feed] = shard.feeds or ()
    if opened.slices is not None:
        feeds = opened.slices.take(shard.first, shard.count)
    for feed in feeds:
        observers.add(feed, opened.taps.lend(feed))
    return observers.part(), [] if opened.slices is None else list(opened.slices.warnings)


def observed_parts(
    observers: Observers, model: ir.Model, feeds: Iterable[Feed], workers: Workers
) -> Iterator[tuple[Part, list[str]]]:
    """Observe by ``workers`` the feeds behind those that ``observers`` has; yield the parts and their warnings, in order.

    Args:
        observers: how to observe, and how many samples they have; not changed here.
        model: the model; not changed.
        feeds: all feeds.
        workers: who runs the model.
    """
    count = feeds.count if isinstance(feeds, Feeds) else None
    opening = feeds.opening if isinstance(feeds, Feeds) else None
    if opening is not None and (count is None or (opening.is_path and not workers.sees(opening.spec))):
        opening = None
    size = UNKNOWN if count is None else max(1, min(MOST, -(-(count - observers.samples) // (SHARDS * workers.count))))
    job = Job(
        workers.share(model), observers.names, observers.method, observers.options, observers.statistics,
        method_sha256(observers.method), opening,
    )  # fmt: skip
    if opening is not None and count is not None:
        shards = [Shard(first, min(size, count - first)) for first in range(observers.samples, count, size)]
        yield from workers.map(observe, job, shards)
    else:
        yield from workers.map(observe, job, _sent(feeds, observers.samples, size))


def _sent(feeds: Iterable[Feed], done: int, size: int) -> Iterator[Shard]:
    """Shards with their feeds, which are copied: whoever yields them may use the arrays again."""
    held: list[Feed] = []
    first = done
    for number, feed in enumerate(feeds):
        if number < done:
            continue
        held.append({name: np.array(array) for name, array in feed.items()})
        if len(held) == size or sum(a.nbytes for f in held for a in f.values()) >= FULL:
            yield Shard(first, len(held), tuple(held))
            first, held = number + 1, []
    if held:
        yield Shard(first, len(held), tuple(held))
