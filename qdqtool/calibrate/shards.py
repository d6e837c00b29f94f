"""Calibration in shards: consecutive samples, each observed by one worker, and what was seen taken in in their order.

Observers are exact whatever the grouping of the samples, so the ranges are those of one process, to the last bit. Data that lie
in files are opened by each worker; all others (Python objects, functions) are read once, here, and sent in batches: what a
function yields may depend on how often it was called."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import SetupError
from qdq_passes.numerics.arrays import Array

from qdqtool.calibrate.cache import method_sha256
from qdqtool.calibrate.observed import Part, Seen
from qdqtool.calibrate.observer import Option
from qdqtool.io.feeds.feeds import Feeds, Opening
from qdqtool.io.feeds.slices import Slices
from qdqtool.io.feeds.spec import input_specs
from qdqtool.runtime.taps import Taps
from qdqtool.workers.cluster import Workers
from qdqtool.workers.shared_model import SharedModel

Feed = Mapping[str, Array]

#: Shards per worker, where the number of samples is known: so many that the last ones end together.
SHARDS = 4
#: Samples of a shard at most, and where their number is not known.
MOST, UNKNOWN = 64, 4
#: Bytes of feeds from which a shard that is sent is full.
FULL = 1 << 24


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
class Bench:
    """What all shards of one calibration have in common.

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
    def stand(self) -> Stand:
        """What a worker sets up once."""
        return Stand(self)

    def seen(self, before: int) -> Seen:
        """Nothing seen yet, ``before`` samples into the data."""
        return Seen(self.names, self.method, self.options, statistics=self.statistics, model="", before=before)


class Stand:
    """A session, and how far the data are read."""

    def __init__(self, bench: Bench) -> None:
        if method_sha256(bench.method) != bench.source:
            raise SetupError(
                "the worker has another source of this method",
                where=f"method {bench.method!r}",
                hint="install the same on every machine",
            )
        model = bench.model.load()
        self.slices = None if bench.opening is None else Slices(bench.opening.open(input_specs(model)))
        self.taps = Taps(model, bench.names, optimize=bench.seen(0).may_optimize(model))


def observe(bench: Bench, shard: Shard) -> tuple[Part, list[str]]:
    """What is seen in ``shard``, and what there is to warn of: the task of a worker.

    Raises:
        ModelError: a tensor holds NaN or Inf.
    """
    stand, seen = bench.stand, bench.seen(shard.first)
    feeds: Iterable[Feed] = shard.feeds or ()
    if stand.slices is not None:
        feeds = stand.slices.take(shard.first, shard.count)
    for feed in feeds:
        seen.add(feed, stand.taps.run(feed))
    return seen.part(), [] if stand.slices is None else list(stand.slices.warnings)


def parts(seen: Seen, model: ir.Model, feeds: Iterable[Feed], workers: Workers) -> Iterator[tuple[Part, list[str]]]:
    """What ``workers`` see in the feeds behind those that ``seen`` has seen, in their order.

    Args:
        seen: how to see, and how much was seen; not changed here.
        model: the model; not changed.
        feeds: all feeds.
        workers: who runs the model.
    """
    count = feeds.count if isinstance(feeds, Feeds) else None
    opening = feeds.opening if isinstance(feeds, Feeds) else None
    if opening is not None and (count is None or (opening.is_path and not workers.sees(opening.spec))):
        opening = None
    size = UNKNOWN if count is None else max(1, min(MOST, -(-(count - seen.samples) // (SHARDS * workers.count))))
    bench = Bench(
        workers.share(model),
        seen.names,
        seen.method,
        seen.options,
        seen.statistics,
        method_sha256(seen.method),
        opening,
    )
    if opening is not None and count is not None:
        shards = [Shard(first, min(size, count - first)) for first in range(seen.samples, count, size)]
        yield from workers.map(observe, bench, shards)
    else:
        yield from workers.map(observe, bench, _sent(feeds, seen.samples, size))


def _sent(feeds: Iterable[Feed], seen: int, size: int) -> Iterator[Shard]:
    """Shards with their feeds, which are copied: whoever yields them may use the arrays again."""
    held: list[Feed] = []
    first = seen
    for number, feed in enumerate(feeds):
        if number < seen:
            continue
        held.append({name: np.array(array) for name, array in feed.items()})
        if len(held) == size or sum(a.nbytes for f in held for a in f.values()) >= FULL:
            yield Shard(first, len(held), tuple(held))
            first, held = number + 1, []
    if held:
        yield Shard(first, len(held), tuple(held))
