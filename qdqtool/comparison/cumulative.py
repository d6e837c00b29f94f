"""Cumulative comparison: both models run on the same feeds, errors add up along the graph as they do in use.

Where a tensor is quantized, what its consumers read is compared: the output of its DequantizeLinear. What a Relu or Clip behind a
tensor cuts off is no difference, and outputs that are orders or indices are compared before what selects (`selected`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import label
from qdq_passes.numerics.agreement import Accumulator, worst_first
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import Pair, qdq_pairs

from qdqtool.comparison.kept import kept_by_readers
from qdqtool.comparison.masked import may_hide, seen
from qdqtool.comparison.report import Compared, Comparison
from qdqtool.comparison.selected import compared_before
from qdqtool.comparison.turns import peeked, turns_of
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.progress import Progress, after
from qdqtool.runtime.taps import Taps, float_tensors

#: How a warning begins of a tensor that is left out.
_LEFT_OUT = "not compared: "


@dataclass
class _Track:
    """One tensor followed through the samples: its name in the report, and what is read for it in A and in B; whether a mask may
    hide keys in it; whether its values say how many there are of them, as of the boxes that a detector keeps; the tensors that it
    is selected from; what its readers keep of it; whether it is shown by itself; the node that writes it in A."""

    name: str
    in_a: str
    in_b: str
    is_output: bool
    encoding: Encoding | None
    axis: int | None
    may_hide: bool = False
    may_vary: bool = False
    before: tuple[str, ...] = ()
    kept: tuple[float, float] | None = None
    is_shown: bool = True
    node: str = ""
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
    samples, kept, why = 0, list[_Track](), dict[str, str]()
    for at, turn in enumerate(turns):
        those = [tracks[i] for i in turn]
        opened = [
            Taps(model, names, threads=threads)
            for model, names in ((a, [t.in_a for t in those]), (b, [t.in_b for t in those]))
        ]
        ticks = progress if len(turns) == 1 or count is None else after(at * count, progress, len(turns) * count)
        samples = _run(opened[0], opened[1], inputs, those, feeds, why, warnings, ticks)
        kept += those
    if not samples:
        raise UsageError("there is no sample to compare on", hint="--data gives the samples")
    return _comparison(tracks, kept, why, warnings, samples, outputs_matter=outputs_matter)


def _comparison(
    tracks: list[_Track],
    kept: list[_Track],
    why: dict[str, str],
    warnings: list[str],
    samples: int,
    *,
    outputs_matter: bool,
) -> Comparison:
    """The figures of the tracks that were ``kept``, and of outputs that are compared at others of them.

    Raises:
        ModelError: ``outputs_matter`` and none can be compared.
    """
    found = {track.name: _compared(track) for track in kept}
    outputs = [_output(track, found) for track in tracks if track.is_output]
    told = {one.name for one in outputs if one.agreement.count}
    lost = tuple(
        (one.name, why.get(one.name, f"output {one.name!r} has no elements")) for one in outputs if one.name not in told
    )
    warnings += [
        f"{_LEFT_OUT}{text}"
        for text in (*dict(lost).values(), *(why[n] for n in why if n not in {o.name for o in outputs}))
    ]
    if outputs_matter and lost and not told:
        raise ModelError(
            f"no output can be compared: {'; '.join(text for _, text in lost)}",
            hint="compare with a metric of your own, or outputs before those: `qdqtool extract --outputs NAME`",
        )
    inside = [found[t.name] for t in kept if not t.is_output and t.is_shown]
    return Comparison(
        outputs=tuple(one for one in outputs if one.name in told),
        tensors=tuple(sorted(inside, key=lambda c: (worst_first(c.agreement.sqnr_db), c.name))),
        samples=samples,
        warnings=tuple(warnings),
        uncompared=lost,
    )


def _output(track: _Track, found: Mapping[str, Compared]) -> Compared:
    """The figures of an output: of the worst of the tensors that it is selected from, where there are such; none of elements
    where nothing could be compared."""
    own = found.get(track.name) or _compared(_Track(track.name, "", "", True, None, None))
    before = [found[name] for name in track.before if name in found]
    if not before:
        return own
    at = min(before, key=lambda one: worst_first(one.agreement.sqnr_db))
    return Compared(name=track.name, agreement=at.agreement, slices=at.slices, compared_at=at.name, node=at.node)


def has_same_types(a: ir.Model, b: ir.Model) -> bool:
    """Return whether inputs and outputs of the two have the same types, in order: models with integer ends cannot be compared."""
    return all(x.dtype == y.dtype for x, y in zip(_ends(a), _ends(b), strict=True))


def _ends(model: ir.Model) -> list[ir.Value]:
    """Return the inputs, without weights, and the outputs."""
    return [*(v for v in model.graph.inputs if v.name not in model.graph.initializers), *model.graph.outputs]


def _run(
    taps_a: Taps,
    taps_b: Taps,
    inputs: Mapping[str, str],
    tracks: list[_Track],
    feeds: Iterable[Mapping[str, Array]],
    why: dict[str, str],
    warnings: list[str],
    progress: Progress | None,
) -> int:
    """Take all samples into ``tracks``, of which those that cannot be compared go, and ``why`` says it; how many there were.

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
                why[track.name] = str(error)
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
    selected = compared_before(a, lambda: _shared(a, b, pairs_b))
    varying = {value.name for value in (*a.graph.outputs, *b.graph.outputs) if static_sizes(value) is None}
    tracks = [
        _Track(
            x, x, y, True, encodings.get(y), axis, may_vary=x in selected or not varying.isdisjoint((x, y)),
            before=selected.get(x, ()),
        )
        for x, y in outputs.items()
    ]  # fmt: skip
    before = [name for names in selected.values() for name in names if name not in outputs]
    if tensors is not None and not tensors and not before:
        return tracks
    shared = _shared(a, b, pairs_b)
    absent = sorted(set(tensors or ()) - set(shared))
    if absent:
        raise UsageError(f"not a float tensor of both models: {', '.join(absent)}", hint="tensors are matched by name")
    masked, kept, writers = may_hide(a), kept_by_readers(a), {v.name: label(n) for n in a.graph for v in n.outputs}
    same = {*outputs, *(name for name in _input_names(a) if name not in pairs_b)}  # shown above, or equal by definition
    shown = dict.fromkeys([n for n in shared if n not in same] if tensors is None else tensors)
    for name in dict.fromkeys((*shown, *before)):
        read_a, read_b = read_for(name, pairs_a), read_for(name, pairs_b)
        tracks.append(
            _Track(
                name, read_a, read_b, False, encodings.get(name), axis, name in masked,
                kept=kept.get(name), is_shown=name in shown, node=writers.get(name, ""),
            )
        )  # fmt: skip
    return tracks


def _shared(a: ir.Model, b: ir.Model, pairs_b: Mapping[str, Pair]) -> list[str]:
    """The float tensors of both models, in the order of ``a``."""
    in_b = set(float_tensors(b)) | set(pairs_b)
    return [name for name in float_tensors(a) if name in in_b]


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
    if track.kept is not None:
        x, y = np.clip(x, *track.kept), np.clip(y, *track.kept)
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
    return Compared(name=track.name, agreement=track.total.result(), slices=slices, node=track.node)
