"""Tensors dumped on a board against the model's: which agree, and where in the graph the first does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.agreement import Accumulator, Agreement, agreement, worst, worst_first
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding

from qdqtool.comparison.cumulative import activation_pairs, matched, read_for
from qdqtool.comparison.dump_files import Layout, Names, names_of, read_dump
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.dumps import Dump
from qdqtool.io.files.progress import Progress
from qdqtool.record.record import NOTHING, Record
from qdqtool.runtime.taps import Taps, float_tensors

#: A tensor diverges below so many dB: its noise is a hundredth of its signal.
DIVERGES_DB = 20.0


@dataclass(frozen=True, kw_only=True)
class DumpedTensor:
    """One dumped tensor.

    Args:
        name: the model's name of it.
        dump: what the file calls it.
        is_output: whether it is an output of the model.
        agreement: the dump against A.
        with_b: the dump against B; None without B, or where B lacks the tensor.
        of_b: B against A; likewise.
    """

    name: str
    dump: str
    is_output: bool
    agreement: Agreement
    with_b: Agreement | None = None
    of_b: Agreement | None = None

    @property
    def expected(self) -> Agreement:
        """Against what the board should compute: B where there is one."""
        return self.with_b or self.agreement

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the dump against A; ``with_b`` and ``of_b`` where B has the tensor."""
        more = {"with_b": self.with_b, "of_b": self.of_b}
        found = {key: each.to_json() for key, each in more.items() if each is not None}
        return {"name": self.name, "dump": self.dump, **self.agreement.to_json(), **found}


@dataclass(frozen=True, kw_only=True)
class DumpComparison:
    """What comparing dumps found.

    Args:
        tensors: in the order of the graph.
        unmatched: (dump, reason).
        samples: feeds compared.
        diverges_below: dB below which a tensor diverges.
        warnings: what may be a mistake.
        record: the same as a record of the model that the board runs.
    """

    tensors: tuple[DumpedTensor, ...]
    unmatched: tuple[tuple[str, str], ...]
    samples: int
    diverges_below: float = DIVERGES_DB
    warnings: tuple[str, ...] = ()
    record: Record = NOTHING

    @property
    def first_diverging(self) -> DumpedTensor | None:
        """The first tensor in the order of the graph that diverges, from B where there is one; None where none does."""
        return next((t for t in self.tensors if worst_first(t.expected.sqnr_db) < self.diverges_below), None)

    @property
    def min_sqnr(self) -> float | None:
        """SQNR of the worst tensor in dB, against B where there is one; None when every tensor is exact."""
        return worst([t.expected.sqnr_db for t in self.tensors])

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: ``outputs`` by name, ``tensors`` in the order of the graph, ``unmatched``, ``first_diverging``."""
        first = self.first_diverging
        return {
            "outputs": {t.name: t.to_json() for t in self.tensors if t.is_output},
            "tensors": [t.to_json() for t in self.tensors],
            "unmatched": [{"dump": name, "reason": reason} for name, reason in self.unmatched],
            "first_diverging": None if first is None else first.name,
            "diverges_below": self.diverges_below,
            "min_sqnr": self.min_sqnr,
            "samples": self.samples,
            "warnings": list(self.warnings),
            **self.record.as_key(),
        }


@dataclass
class _Track:
    """One dumped tensor followed through the samples."""

    name: str
    dump: str
    in_a: str
    in_b: str | None
    encoding: Encoding | None
    samples: int = 0
    with_a: Accumulator = field(default_factory=Accumulator)
    with_b: Accumulator = field(default_factory=Accumulator)
    of_b: Accumulator = field(default_factory=Accumulator)


def compare_dumps(
    a: ir.Model,
    b: ir.Model | None,
    dumps: Sequence[Sequence[Dump]],
    feeds: Iterable[Mapping[str, Array]],
    *,
    layout: Layout = "auto",
    diverges_below: float = DIVERGES_DB,
    threads: int = 1,
    progress: Progress | None = None,
) -> DumpComparison:
    """Compare dumped tensors with those of ``a``, and of ``b``.

    Args:
        a: the reference.
        b: the model that the board runs: its pairs say what dumped integers stand for; else those of ``a`` do.
        dumps: dumped tensors of each sample, from `qdqtool.io.files.dumps.dumps_in`.
        feeds: feeds of ``a``, in the order of the dumps; as many are read as there are dumps.
        layout: of the dumps.
        diverges_below: dB below which a tensor diverges.
        threads: threads inside an operator.
        progress: called after each sample.

    Raises:
        UsageError: nothing dumped is a tensor of the models, or there is no sample.
    """
    warnings: list[str] = []
    unmatched: dict[str, str] = {}
    order = list(dict.fromkeys(_tensors(a)))
    tracks = _tracks(a, b, dumps, names_of(order, [m for m in (b, a) if m is not None]), unmatched)
    inputs_b = {} if b is None else matched("inputs", _inputs(a), _inputs(b), warnings)
    taps_a = Taps(a, [t.in_a for t in tracks.values()], threads=threads)
    taps_b = None if b is None else Taps(b, [t.in_b for t in tracks.values() if t.in_b is not None], threads=threads)
    read, samples = 0, 0
    for sample, feed in zip(dumps, feeds, strict=False):
        read += 1
        if not sample:
            continue
        values_a = taps_a.run(feed)
        values_b = {} if taps_b is None else taps_b.run({inputs_b[name]: array for name, array in feed.items()})
        _add_sample(tracks, sample, values_a, values_b, layout, unmatched)
        samples += 1
        if progress is not None:
            progress(read, len(dumps))
    taps_a.session.close()
    if taps_b is not None:
        taps_b.session.close()
    given = feeds.count if isinstance(feeds, Feeds) else None
    if read < len(dumps) or (given is not None and given > len(dumps)):
        many = "more" if given is None else str(given)
        warnings.append(f"{len(dumps)} dumped samples and {many} of data: the first {read} are compared")
    if not samples:
        raise UsageError("there is no sample to compare on", hint="--data gives the samples")
    if not tracks:
        name, (reason, _, hint) = next((name, why.partition("; ")) for name, why in unmatched.items())
        raise UsageError(f"nothing dumped can be compared: {reason}", where=name, hint=hint)
    warnings += _missing(dumps[:read], tracks.values(), samples)
    outputs = {v.name for v in a.graph.outputs}
    rank = {name: number for number, name in enumerate(order)}
    ended = sorted(tracks.values(), key=lambda t: (rank[t.name], t.dump))
    return DumpComparison(
        tensors=tuple(_dumped(t, t.name in outputs) for t in ended),
        unmatched=tuple(sorted(unmatched.items())),
        samples=samples,
        diverges_below=diverges_below,
        warnings=tuple(warnings),
    )


def _tracks(
    a: ir.Model, b: ir.Model | None, dumps: Sequence[Sequence[Dump]], names: Names, unmatched: dict[str, str]
) -> dict[str, _Track]:
    """A track for each dump that is a tensor of the models, by the name of the dump; the others go to ``unmatched``.

    Raises:
        UsageError: there is none.
    """
    pairs_a, pairs_b = activation_pairs(a), {} if b is None else activation_pairs(b)
    in_b = set() if b is None else {*float_tensors(b), *pairs_b}
    found = {d.name: tensor for sample in dumps for d in sample if (tensor := _find(d, names, unmatched))}
    if not found:
        name, reason = next(iter(unmatched.items()), ("", ""))
        raise UsageError("nothing dumped is a tensor of the model", where=name, hint=reason.partition("; ")[2])
    tracks = {}
    for dump, tensor in found.items():
        pair = pairs_b.get(tensor) or pairs_a.get(tensor)
        tested = read_for(tensor, pairs_b) if tensor in in_b else None
        tracks[dump] = _Track(tensor, dump, read_for(tensor, pairs_a), tested, pair.encoding if pair else None)
    return tracks


def _add_sample(
    tracks: dict[str, _Track],
    sample: Sequence[Dump],
    values_a: Mapping[str, Array],
    values_b: Mapping[str, Array],
    layout: Layout,
    unmatched: dict[str, str],
) -> None:
    """Take the dumps of one sample in; a track whose dump does not fit its tensor moves to ``unmatched``."""
    for dumped in sample:
        if dumped.name in tracks:
            try:
                _add(tracks[dumped.name], dumped, values_a, values_b, layout)
            except ModelError as error:
                unmatched[dumped.name] = error.message
                del tracks[dumped.name]


def _missing(dumps: Sequence[Sequence[Dump]], tracks: Iterable[_Track], samples: int) -> list[str]:
    """What to say where samples lack dumps: all of them, or single tensors."""
    gaps = [str(index) for index, sample in enumerate(dumps) if not sample]
    found = [f"no dumps of sample {', '.join(gaps)}, counted from 0, which is left out"] if gaps else []
    partly = [f"{t.dump} ({t.samples})" for t in tracks if t.samples < samples]
    return found + ([f"not in each of the {samples} samples: {', '.join(partly)}"] if partly else [])


def _tensors(model: ir.Model) -> list[str]:
    """Every tensor of the main graph that may be dumped, inputs first, then in the order of the graph."""
    pairs = activation_pairs(model)
    made = {pair.output.name for pair in pairs.values()}
    names = [*float_tensors(model), *(v.name for v in model.graph.outputs if v.name)]
    return [name for name in names if name not in made or name in {v.name for v in model.graph.outputs}]


def _find(dump: Dump, names: Names, unmatched: dict[str, str]) -> str | None:
    found = names.find(dump.name)
    if isinstance(found, str):
        return found
    if found:
        unmatched[dump.name] = f"may be {' or '.join(found)}"
    else:
        near = names.nearest(dump.name)
        unmatched[dump.name] = "is no tensor of the model" + (f"; nearest: {', '.join(near)}" if near else "")
    return None


def _add(
    track: _Track, dump: Dump, values_a: Mapping[str, Array], values_b: Mapping[str, Array], layout: Layout
) -> None:
    """Take one sample in.

    Raises:
        ModelError: the dump does not fit the tensor.
    """
    x = np.asarray(values_a[track.in_a])
    dumped = dump.read()
    y = read_dump(dumped, x, track.encoding, layout)
    _hint_at_layout(dumped, x, y, track.encoding, layout)
    if track.encoding is not None:
        scale = track.encoding.granularity.expand(track.encoding.scale_array(), x.shape)
        for total in (track.with_a, track.with_b, track.of_b):
            total.scale = np.asarray(scale, np.float64)
    if track.in_b is not None:
        z = np.asarray(values_b[track.in_b])
        if z.shape == x.shape:
            track.with_b.add(z, y)
            track.of_b.add(x, z)
        else:
            track.in_b = None
    track.with_a.add(x, y)
    track.samples += 1


def _hint_at_layout(dumped: Array | bytes, x: Array, y: Array, encoding: Encoding | None, layout: Layout) -> None:
    """Refuse a dump that agrees only in the other layout: it would count as diverging for no fault of the board.

    Raises:
        ModelError: it is in the other layout.
    """
    if layout != "auto" or x.ndim < 4:
        return
    plain = agreement(x, y).sqnr_db
    if worst_first(plain) < DIVERGES_DB:
        turned = agreement(x, read_dump(dumped, x, encoding, "nhwc")).sqnr_db
        if worst_first(turned) >= DIVERGES_DB:
            raise ModelError("agrees with its channels last; give --dumps-layout nhwc")


def _dumped(track: _Track, is_output: bool) -> DumpedTensor:
    has_b = track.in_b is not None
    return DumpedTensor(
        name=track.name, dump=track.dump, is_output=is_output, agreement=track.with_a.result(),
        with_b=track.with_b.result() if has_b else None, of_b=track.of_b.result() if has_b else None,
    )  # fmt: skip


def _inputs(model: ir.Model) -> list[str]:
    return [v.name for v in model.graph.inputs if v.name and v.name not in model.graph.initializers]
