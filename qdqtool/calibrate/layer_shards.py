"""Statistics by several workers: each runs the model on all the data, and sums up what some of the layers read.

Sums of floats depend on how the samples are grouped, so it is the layers that are divided: a second moment of K numbers takes K²
multiplications a vector, far more than the layer itself, and every layer's sums are those of one process, to the last bit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.calibrate.layer_sums import MEMORY, Wanted, collect_statistics, layers_together
from qdqtool.calibrate.statistics import Entries, Statistics, known_of_both
from qdqtool.io.feeds.array_store import writing_arrays
from qdqtool.io.feeds.feeds import Feeds, Opening
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.progress import Progress
from qdqtool.workers.cluster import InProcess, Workers
from qdqtool.workers.shared_model import SharedModel

Feed = Mapping[str, Array]

#: Bytes of feeds that are sent to every worker, where it cannot open the data; with more, this process does the work.
SENT = 1 << 28


@dataclass(frozen=True)
class StatisticsBench:
    """What the parts of one collection have in common.

    Args:
        model: the model.
        data: how the data are opened, or the feeds.
        wanted: what to collect of each layer.
        memory: bytes of sums that are built up at once.
    """

    model: SharedModel
    data: Opening | tuple[Feed, ...]
    wanted: tuple[Wanted, ...]
    memory: int


def collect_part(bench: StatisticsBench, layers: Sequence[str]) -> Statistics:
    """Statistics of some layers: the task of a worker."""
    model = bench.model.load()
    feeds = bench.data.open(input_specs(model)) if isinstance(bench.data, Opening) else bench.data
    return collect_statistics(model, feeds, wanted=bench.wanted, layers=layers, memory=bench.memory)


def share_statistics(
    model: ir.Model,
    feeds: Iterable[Feed],
    workers: Workers,
    *,
    wanted: Sequence[Wanted] = ("magnitudes", "means", "moments"),
    layers: Iterable[str] | None = None,
    memory: int = MEMORY,
    file: str | os.PathLike[str] | None = None,
    before: Statistics | None = None,
    progress: Progress | None = None,
) -> Statistics:
    """What `collect_statistics` gives, byte for byte, by ``workers``; arguments as there. What they found is held here at once.

    Args:
        model: the model; not changed.
        feeds: the samples. Data in files are opened by each worker; others are sent where they are not larger than `SENT`.
        workers: who runs the model.
        wanted: what to collect.
        layers: node names; all layers of the main graph by default.
        memory: bytes of sums that a worker builds up at once.
        file: write what is found there, and read it from there.
        before: statistics to take over into the same record.
        progress: called after each part, or after each sample where this process works alone.

    Raises:
        UsageError: as `collect_statistics`.
    """
    groups = layers_together(model, layers)
    data = None if isinstance(workers, InProcess) or len(groups) < 2 else _to_send(feeds, workers)
    if data is None:
        return collect_statistics(
            model, feeds, wanted=wanted, layers=layers, memory=memory, file=file, before=before, progress=progress
        )
    bench = StatisticsBench(workers.share(model), data, tuple(wanted), memory)
    found = list(workers.map(collect_part, bench, divided(groups, workers.count), progress=progress))
    if len({part.data_sha256 for part in found}) > 1:
        raise UsageError("the data differ from one reading to the next", hint="seed what is random")
    known = {} if before is None else before.layers
    new = {name: one for part in found for name, one in part.layers.items()}
    first, names = found[0], [name for _, group in groups for name in group]
    if file is None:
        kept = {**known, **{name: known_of_both(known.get(name), new[name]) for name in names}}
        return Statistics.of(
            kept, samples=first.samples, model_sha256=first.model_sha256, data_sha256=first.data_sha256
        )
    with writing_arrays(file) as writer:
        entries = Entries(writer)
        for name in (*names, *sorted(set(known) - set(names))):
            entries.add(name, known_of_both(known.get(name), new[name]) if name in new else known[name])
        entries.finish(samples=first.samples, model_sha256=first.model_sha256, data_sha256=first.data_sha256)
    return Statistics.read(file)


def divided(groups: Sequence[tuple[int, tuple[str, ...]]], parts: int) -> list[tuple[str, ...]]:
    """Names of the layers of each part; the largest group goes first, to whoever has least."""
    held: list[tuple[int, list[int]]] = [(0, []) for _ in range(min(parts, len(groups)))]
    for index in sorted(range(len(groups)), key=lambda i: -groups[i][0]):
        least = min(range(len(held)), key=lambda part: (held[part][0], len(held[part][1]), part))
        held[least] = held[least][0] + groups[index][0], [*held[least][1], index]
    return [tuple(name for index in sorted(indices) for name in groups[index][1]) for _, indices in held]


def _to_send(feeds: Iterable[Feed], workers: Workers) -> Opening | tuple[Feed, ...] | None:
    """How workers get the data; None where they cannot, or it would be too much."""
    opening = feeds.opening if isinstance(feeds, Feeds) else None
    if opening is not None and (not opening.is_path or workers.sees(opening.spec)):
        return opening
    if iter(feeds) is feeds:
        return None
    held, size = [], 0
    for feed in feeds:
        size += sum(array.nbytes for array in feed.values())
        if size > SENT:
            return None
        held.append({name: np.array(array) for name, array in feed.items()})
    return tuple(held)
