"""Collecting statistics: run a model over sample feeds and sum up what its layers multiply, one sample's tensors in memory at
a time.

While a moment is summed up it has 8·G·K² bytes; what does not fit into the memory allowed is collected in several readings of the
data. A convolution's patches are made in strips.

Of several workers each runs the model on all the data, and sums up what some of the layers read. Sums of floats depend on how
the samples are grouped, so it is the layers that are divided: a second moment of K numbers takes K² multiplications a vector, far
more than the layer itself, and every layer's sums are those of one process, to the last bit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.layer_form import LayerForm, columns, magnitudes
from qdq_passes.numerics.moments import LayerStatistics, Moments
from qdq_passes.numerics.one_thread import one_thread
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layers

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.statistics import Entries, Statistics, known_of_both
from qdqtool.io.feeds.array_store import writing_arrays
from qdqtool.io.feeds.feeds import Feeds, Opening
from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.progress import Progress
from qdqtool.runtime.taps import Taps
from qdqtool.workers.cluster import InProcess, Workers
from qdqtool.workers.shared_model import SharedModel

Feed = Mapping[str, Array]

#: What is collected of each layer: ``means`` brings the responses along.
Wanted = Literal["magnitudes", "means", "moments"]

#: Bytes of the sums that one reading of the data builds up, at least one layer's.
MEMORY = 1 << 30
#: Bytes of feeds that are sent to every worker, where it cannot open the data; with more, this process does the work.
SENT = 1 << 28


def collect_statistics(
    model: ir.Model,
    feeds: Iterable[Feed],
    *,
    wanted: Sequence[Wanted] = ("magnitudes", "means", "moments"),
    layers: Iterable[str] | None = None,
    memory: int = MEMORY,
    file: str | os.PathLike[str] | None = None,
    before: Statistics | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> Statistics:
    """Statistics of the layers of ``model`` (not changed) over ``feeds``.

    A model with pairs is run as it is: then the statistics are of what the quantized model feeds its layers, and W·E[x] of
    the float weights before their pairs.

    Args:
        model: the model.
        feeds: `Feeds`, or any iterable of dicts of arrays by input name; read once for each ``memory`` of sums.
        wanted: what to collect.
        layers: node names; all layers of the main graph by default.
        memory: bytes of sums that are built up at once.
        file: write what is found there, layer by layer, and read it from there; None keeps it in memory.
        before: statistics to take over into the same record.
        threads: threads inside an operator.
        progress: called after each sample.

    Raises:
        UsageError: there is no sample, no such layer, or the data cannot be read as often as needed.
    """
    if bad := [what for what in wanted if what not in get_args(Wanted)]:
        raise UsageError(f"there are no statistics called {bad[0]}", hint=f"there are {', '.join(get_args(Wanted))}")
    shared, known = _shared(_chosen(model, layers)), {} if before is None else before.layers
    batches = list(_batches(shared, wanted, memory))
    total = feeds.count if isinstance(feeds, Feeds) else None
    seen = _Progress(progress, len(batches), total)
    model_hash = model_sha256(model)
    if file is not None:
        with writing_arrays(file) as writer:
            entries = Entries(writer)
            for name, one in _collected(model, feeds, batches, wanted, threads, seen):
                entries.add(name, known_of_both(known.get(name), one))
            for name in sorted(set(known) - set(entries.layers)):
                entries.add(name, known[name])
            entries.finish(samples=seen.samples, model_sha256=model_hash, data_sha256=seen.data)
        return Statistics.read(file)
    kept = dict(known)
    for name, one in _collected(model, feeds, batches, wanted, threads, seen):
        kept[name] = known_of_both(known.get(name), one)
    return Statistics.of(kept, samples=seen.samples, model_sha256=model_hash, data_sha256=seen.data)


def layers_together(model: ir.Model, layers: Iterable[str] | None = None) -> list[tuple[int, tuple[str, ...]]]:
    """(bytes of the sums, names) of the layers that are summed up together, as they read the same vectors, in the order of a
    record.

    Raises:
        UsageError: there is no such layer.
    """
    groups = _shared(_chosen(model, layers))
    return [(2 * _moment_bytes(group[0].form), tuple(layer.name for layer in group)) for group in groups]


def moment_bytes(model: ir.Model) -> int:
    """Bytes that the second moments of all layers of ``model`` have."""
    return sum(_moment_bytes(group[0].form) for group in _shared(weighted_layers(model)))


def _moment_bytes(form: LayerForm) -> int:
    groups, _, width = form.sizes
    return 4 * groups * width * width


def _chosen(model: ir.Model, names: Iterable[str] | None) -> list[WeightedLayer]:
    found = weighted_layers(model)
    if names is None:
        return found
    known, asked = {layer.name for layer in found}, list(dict.fromkeys(names))
    if missing := [name for name in asked if name not in known]:
        raise UsageError(
            f"there is no layer {missing[0]!r}", hint="layers are Conv, ConvTranspose, Gemm, MatMul with a weight"
        )
    return [layer for layer in found if layer.name in set(asked)]


def _shared(layers: Iterable[WeightedLayer]) -> list[list[WeightedLayer]]:
    """The layers, those that multiply the same vectors together."""
    groups: dict[tuple[object, ...], list[WeightedLayer]] = {}
    for layer in layers:
        form = layer.form
        vectors = replace(form, shape=(), turned=False, is_first=False, factor=1.0)
        groups.setdefault(
            (
                layer.data_value,
                vectors,
                form.shape[:-2] if form.kind == "product" else form.kernel,
                form.sizes[0],
                form.sizes[2],
            ),
            [],
        ).append(layer)
    return list(groups.values())


def _batches(
    groups: Iterable[list[WeightedLayer]], wanted: Sequence[Wanted], memory: int
) -> Iterator[list[list[WeightedLayer]]]:
    """Groups whose sums fit into ``memory`` together, in their order; everything at once where no moments are wanted."""
    batch, used = list[list[WeightedLayer]](), 0
    for group in groups:
        need = 2 * _moment_bytes(group[0].form) if "moments" in wanted else 0
        if batch and used + need > memory:
            yield batch
            batch, used = [], 0
        batch.append(group)
        used += need
    if batch:
        yield batch


class _Progress:
    """Ticks over all readings of the data, and the fingerprint of the first."""

    def __init__(self, progress: Progress | None, readings: int, count: int | None) -> None:
        self._progress, self._total = progress, None if count is None else count * readings
        self.done, self.samples, self.data = 0, 0, EMPTY

    def read(self, feeds: Iterable[Feed], *, is_first: bool) -> Iterator[Mapping[str, Array]]:
        for feed in feeds:
            if is_first:
                self.data, self.samples = add_feed(self.data, feed), self.samples + 1
            yield feed
            self.done += 1
            if self._progress is not None:
                self._progress(self.done, self._total)


def _collected(
    model: ir.Model,
    feeds: Iterable[Feed],
    batches: Sequence[Sequence[Sequence[WeightedLayer]]],
    wanted: Sequence[Wanted],
    threads: int,
    seen: _Progress,
) -> Iterator[tuple[str, LayerStatistics]]:
    for number, batch in enumerate(batches):
        names = [group[0].data_value.name or "" for group in batch]
        taps = Taps(model, names, threads=threads)
        sums = [_Sums(group[0].form, wanted) for group in batch]
        before = seen.done
        for feed in seen.read(feeds, is_first=number == 0):
            values = taps.run(feed)
            with one_thread():
                for name, one in zip(names, sums, strict=True):
                    one.add(values[name])
        taps.session.close()
        if seen.done == before:
            raise UsageError("there is no sample, or the data can be read only once", hint="give a list or a file")
        for group, one in zip(batch, sums, strict=True):
            shared = one.found()
            for layer in group:
                yield layer.name, _with_response(layer, shared)
            one.clear()


class _Sums:
    """Sums of one layer, or of several that multiply the same vectors."""

    def __init__(self, form: LayerForm, wanted: Sequence[Wanted]) -> None:
        self._form, self._wanted = form, wanted
        self._absmax = np.zeros(form.channels[1])
        groups, _, width = form.sizes
        is_summed = "means" in wanted or "moments" in wanted
        self._moments = Moments((groups, width), second="moments" in wanted) if is_summed else None

    def add(self, data: Array) -> None:
        wide = data if data.dtype in (np.float32, np.float64) else data.astype(np.float32)
        if "magnitudes" in self._wanted:
            self._absmax = np.maximum(self._absmax, magnitudes(self._form, wide))
        if self._moments is not None and wide.size:
            self._moments.add(columns(self._form, wide))

    def found(self) -> LayerStatistics:
        moments = self._moments
        return LayerStatistics(
            count=0 if moments is None else moments.count,
            absmax=self._absmax if "magnitudes" in self._wanted else None,
            mean=None if moments is None else moments.mean,
            moment=None if moments is None else moments.moment,
        )

    def clear(self) -> None:
        self._moments = None


def _with_response(layer: WeightedLayer, found: LayerStatistics) -> LayerStatistics:
    """``found`` with W·E[x] of the layer's float weight, where there is one."""
    weight = layer.float_weight
    if found.mean is None or weight is None:
        return found
    rows = layer.form.rows(weight)
    with one_thread():
        response = np.stack([rows[group].astype(np.float64) @ mean for group, mean in enumerate(found.mean)])
    return replace(found, response=response)


@dataclass(frozen=True)
class StatisticsJob:
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


def collect_part(job: StatisticsJob, layers: Sequence[str]) -> Statistics:
    """Statistics of some layers: the task of a worker."""
    model = job.model.load()
    feeds = job.data.open(input_specs(model)) if isinstance(job.data, Opening) else job.data
    return collect_statistics(model, feeds, wanted=job.wanted, layers=layers, memory=job.memory)


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
    """What `collect_statistics` gives, byte for byte, by ``workers``, whose findings are held here at once; arguments as there.

    Args:
        feeds: the samples. Data in files are opened by each worker; others are sent where they are not larger than `SENT`.
        workers: who runs the model.
        memory: bytes of sums that a worker builds up at once.
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
    job = StatisticsJob(workers.share(model), data, tuple(wanted), memory)
    found = list(workers.map(collect_part, job, divided(groups, workers.count), progress=progress))
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
