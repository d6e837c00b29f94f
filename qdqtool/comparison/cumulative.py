"""Cumulative comparison: both models run on the same feeds, errors add up along the graph as they do in use.

Where a tensor is quantized, what its consumers read is compared: the output of its DequantizeLinear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.numerics.agreement import Accumulator, worst_first
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import Pair, qdq_pairs

from qdqtool.comparison.masked import may_hide, seen
from qdqtool.comparison.report import Compared, Comparison
from qdqtool.comparison.turns import peeked, turns_of
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.progress import Progress, after
from qdqtool.runtime.taps import Taps, float_tensors

#: How a warning begins of a tensor that is left out.
_LEFT_OUT = "not compared: "


@dataclass
class _Track:
    """One tensor followed through the samples: its name in the report, and what is read for it in A and in B; whether a mask may
    hide keys in it; whether its values say how many there are of them, as of the boxes that a detector keeps."""

    name: str
    in_a: str
    in_b: str
    is_output: bool
    encoding: Encoding | None
    axis: int | None
    may_hide: bool = False
    may_vary: bool = False
    total: Accumulator = field(default_factory=Accumulator)
    sliced: Accumulator | None = None


def compare_models(
    a: ir.Model,
    b: ir.Model,
    feeds: Iterable[Mapping[str, Array]],
    *,
    per_slice: int | None = None,
    tensors: Sequence[str] | None = None,
    threads: int = 1,
    progress: Progress | None = None,
    outputs_matter: bool = True,
) -> Comparison:
    """Compare ``b`` (the quantized model) with ``a`` (the reference) on the same feeds; neither is changed.

    Args:
        a: reference.
        b: tested model; its inputs are those of ``a``, by name or else by position.
        feeds: feeds of ``a``; read once.
        per_slice: axis along which to compare every index by itself as well.
        tensors: names of tensors inside to compare; default: every float tensor that both have; empty: outputs only.
        threads: threads inside an operator.
        progress: called after each sample.
        outputs_matter: whether a comparison of no output is an error.

    Raises:
        UsageError: the models do not have as many inputs or outputs, a tensor is not in both, or there is no sample.
        ModelError: outputs of the two have different shapes, and those are static.
            Where the values say how many there are, as of boxes that a detector keeps, such an output is left out with a
            warning, unless ``outputs_matter`` and it is all that there is.
    """
    warnings: list[str] = []
    inputs = matched("inputs", _input_names(a), _input_names(b), warnings)
    tracks = _tracks(a, b, tensors, per_slice, warnings)
    first, feeds = peeked(feeds)
    turns = turns_of([(t.in_a, t.in_b) for t in tracks], (a, b), first)
    if len(turns) > 1 and not isinstance(feeds, Feeds):
        feeds = list(feeds)
    count = feeds.count if isinstance(feeds, Feeds) else len(feeds) if isinstance(feeds, Sequence) else None
    samples, kept = 0, list[_Track]()
    for at, turn in enumerate(turns):
        those = [tracks[i] for i in turn]
        opened = [
            Taps(model, names, threads=threads)
            for model, names in ((a, [t.in_a for t in those]), (b, [t.in_b for t in those]))
        ]
        ticks = progress if len(turns) == 1 or count is None else after(at * count, progress, len(turns) * count)
        samples = _run(opened[0], opened[1], inputs, those, feeds, warnings, ticks)
        kept += those
    if not samples:
        raise UsageError("there is no sample to compare on", hint="--data gives the samples")
    if outputs_matter and not any(t.is_output for t in kept) and any(t.is_output for t in tracks):
        raise ModelError(
            f"no output can be compared: {'; '.join(w.removeprefix(_LEFT_OUT) for w in warnings if w.startswith(_LEFT_OUT))}",
            hint="compare with a metric of your own, or outputs before those: `qdqtool extract --outputs NAME`",
        )
    inside = [_compared(t) for t in kept if not t.is_output]
    return Comparison(
        outputs=tuple(_compared(t) for t in kept if t.is_output),
        tensors=tuple(sorted(inside, key=lambda c: (worst_first(c.agreement.sqnr_db), c.name))),
        samples=samples,
        warnings=tuple(warnings),
    )


def _run(
    taps_a: Taps,
    taps_b: Taps,
    inputs: Mapping[str, str],
    tracks: list[_Track],
    feeds: Iterable[Mapping[str, Array]],
    warnings: list[str],
    progress: Progress | None,
) -> int:
    """Take all samples into ``tracks``, of which those that cannot be compared go; how many there were.

    Raises:
        ModelError: an output of static shape cannot be compared.
    """
    total = feeds.count if isinstance(feeds, Feeds) else None
    samples = 0
    for feed in feeds:
        values_a = taps_a.run(feed)
        values_b = taps_b.run({inputs[name]: array for name, array in feed.items()})
        for track in list(tracks):
            try:
                _add(track, values_a[track.in_a], values_b[track.in_b], warnings)
            except ModelError as error:
                if track.is_output and not track.may_vary:
                    raise
                warnings.append(f"{_LEFT_OUT}{error}")
                tracks.remove(track)
        del values_a, values_b  # before the next are there
        samples += 1
        if progress is not None:
            progress(samples, total)
    taps_a.session.close()
    taps_b.session.close()
    return samples


def _tracks(
    a: ir.Model, b: ir.Model, tensors: Sequence[str] | None, axis: int | None, warnings: list[str]
) -> list[_Track]:
    pairs_a, pairs_b = activation_pairs(a), activation_pairs(b)
    encodings = {name: pair.encoding for name, pair in pairs_b.items()}
    outputs = matched("outputs", _names(a.graph.outputs), _names(b.graph.outputs), warnings)
    varying = {value.name for value in (*a.graph.outputs, *b.graph.outputs) if static_sizes(value) is None}
    tracks = [
        _Track(x, x, y, True, encodings.get(y), axis, may_vary=not varying.isdisjoint((x, y)))
        for x, y in outputs.items()
    ]
    if tensors is not None and not tensors:
        return tracks
    in_b = set(float_tensors(b)) | set(pairs_b)
    shared = [name for name in float_tensors(a) if name in in_b]
    absent = sorted(set(tensors or ()) - set(shared))
    if absent:
        raise UsageError(f"not a float tensor of both models: {', '.join(absent)}", hint="tensors are matched by name")
    masked = may_hide(a)
    same = {*outputs, *(name for name in _input_names(a) if name not in pairs_b)}  # shown above, or equal by definition
    for name in [n for n in shared if n not in same] if tensors is None else dict.fromkeys(tensors):
        read_a, read_b = read_for(name, pairs_a), read_for(name, pairs_b)
        tracks.append(_Track(name, read_a, read_b, False, encodings.get(name), axis, name in masked))
    return tracks


def activation_pairs(model: ir.Model) -> dict[str, Pair]:
    """The pairs on activations of the main graph by the float value's name, the first of each."""
    found: dict[str, Pair] = {}
    for pair in qdq_pairs(model):
        if pair.kind == "activation" and pair.q is not None and pair.dq.graph is model.graph:
            found.setdefault(pair.tensor, pair)
    return found


def read_for(name: str, pairs: Mapping[str, Pair]) -> str:
    """The value that consumers of the tensor ``name`` read."""
    return (pairs[name].output.name or name) if name in pairs else name


def matched(what: str, names_a: list[str], names_b: list[str], warnings: list[str]) -> dict[str, str]:
    """Names of A → names of B: equal names, or by position when the names differ."""
    if set(names_a) == set(names_b):
        return {name: name for name in names_a}
    if len(names_a) != len(names_b):
        raise UsageError(
            f"the models have different {what}: {', '.join(names_a)} and {', '.join(names_b)}",
            hint="give two forms of one model",
        )
    warnings.append(f"{what} are matched by position: {', '.join(names_a)} with {', '.join(names_b)}")
    return dict(zip(names_a, names_b, strict=True))


def _names(values: Iterable[ir.Value]) -> list[str]:
    return [value.name for value in values if value.name]


def _input_names(model: ir.Model) -> list[str]:
    return [name for name in _names(model.graph.inputs) if name not in model.graph.initializers]


def _add(track: _Track, x: Any, y: Any, warnings: list[str]) -> None:
    """Take one sample in.

    Raises:
        ModelError: the two cannot be compared.
    """
    where = f"{'output' if track.is_output else 'tensor'} {track.name!r}"
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        raise ModelError("it is no tensor", where=where)
    if x.shape != y.shape:
        raise ModelError(f"shape {list(x.shape)} in A, {list(y.shape)} in B", where=where)
    if track.may_hide:
        x, y = seen(x, x), seen(x, y)
    if track.encoding is not None:
        scale = track.encoding.granularity.expand(track.encoding.scale_array(), x.shape)
        track.total.scale = np.asarray(scale, np.float64)
    track.total.add(x, y)
    if track.axis is None or not -x.ndim <= track.axis < x.ndim:
        return
    track.sliced = track.sliced or Accumulator(axis=track.axis)
    try:
        track.sliced.add(x, y)
    except ModelError as error:
        warnings.append(f"{where} has no slices: {error}")
        track.axis = track.sliced = None


def _compared(track: _Track) -> Compared:
    slices = tuple(track.sliced.per_slice()) if track.sliced is not None else ()
    return Compared(name=track.name, agreement=track.total.result(), slices=slices)
