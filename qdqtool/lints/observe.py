"""Observe what a model's tensors hold on samples, as a whole and by slices, for its lints; one session, a sample at a time.

Channels of an activation lie along the axis that the operator tells that made it, which may stand further up: Conv [N, C, …] 1,
MatMul and LayerNormalization […, C] the last; a Transpose between turns one into the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import is_constant, is_standard
from qdq_passes.pipeline.pipeline import Pipeline

from qdqtool.calibrate.observer import Range
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.progress import Progress
from qdqtool.lints.context import LintContext, Slices
from qdqtool.quantization.calibrating import Calibrator, left_float, observed_names
from qdqtool.quantization.plan import RANGES, Plan
from qdqtool.quantization.quantizing import prepare
from qdqtool.runtime.taps import Taps, float_tensors

CHANNELS_FIRST = ("BatchNormalization", "Conv", "ConvTranspose", "GroupNormalization", "InstanceNormalization")
CHANNELS_LAST = ("Gemm", "LayerNormalization", "MatMul", "RMSNormalization")
#: Operators that are walked through; beyond, nothing is known.
FARTHEST = 50


def context_of_float(
    model: ir.Model,
    plan: Plan,
    feeds: Iterable[Mapping[str, Any]] | None,
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> LintContext:
    """A float model on the grids that ``plan`` chooses for it, before anything is refined.

    Args:
        model: the float model; prepared and annotated in place.
        plan: the quantization it is looked at for.
        feeds: samples, read twice; None: weights alone are looked at.
        threads: threads inside an operator.
        progress: called after each sample of the second reading.

    Raises:
        ModelError: a tensor holds NaN or Inf.
    """
    plan, _ = prepare(model, plan)
    names = observed_names(model, plan)
    ranges = Ranges(method=plan.method, samples=0, tensors={name: Range(0.0, 0.0) for name in names})
    observed = ObservedValues()
    if feeds is not None and names:
        calibrator = Calibrator(threads=threads, way_out=left_float)
        calibrator.observe(plan.seen(model, names), feeds, names, plan.method, plan.method_options)
        ranges = calibrator.found
        observed = observe(
            model, {name: name for name in float_tensors(model)}, feeds, threads=threads, progress=progress
        )
    passes = plan.materialise.passes
    until = Pipeline(passes[: passes.index(plan.annotate) + 1])
    until.run(model, inputs={RANGES: ranges.bound})
    return LintContext(model=model, ranges=observed.ranges, slices=observed.slices)


def context_of_quantized(
    model: ir.Model,
    feeds: Iterable[Mapping[str, Any]] | None,
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> LintContext:
    """A model with pairs on its own grids, the values being those before each pair; ``feeds`` None: weights alone."""
    if feeds is None:
        return LintContext(model=model)
    context = LintContext(model=model)
    names = {
        context.name(v): v.name for node in context.nodes for v in (*node.outputs, *_sources(context, node)) if v.name
    }
    known = set(float_tensors(model))
    tapped = {name: source for name, source in names.items() if source in known}
    observed = observe(model, tapped, feeds, threads=threads, progress=progress)
    return LintContext(model=model, ranges=observed.ranges, slices=observed.slices)


@dataclass
class ObservedValues:
    """Ranges and slices observed so far, by their names in `LintContext`."""

    ranges: dict[str, Range] = field(default_factory=dict)
    slices: dict[str, tuple[Slices, ...]] = field(default_factory=dict)
    ragged: set[tuple[str, int]] = field(default_factory=set)

    def add(self, name: str, array: npt.NDArray[Any], value: ir.Value) -> None:
        """Take in one sample of ``value``; one that is not finite everywhere (a mask) counts for nothing."""
        if not array.size:
            return
        values = array.astype(np.float32, copy=False) if array.dtype.kind == "V" else array
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            self.ragged |= {(name, axis) for axis in range(values.ndim)}
            return
        self.ranges[name] = self.ranges.get(name, Range(low, high)).union(Range(low, high))
        before = {found.axis: found for found in self.slices.get(name, ())}
        self.slices[name] = tuple(
            made
            for axis in channel_axes(value, values.ndim)
            if (made := self._slice(name, values, axis, before.get(axis)))
        )

    def _slice(self, name: str, values: npt.NDArray[Any], axis: int, before: Slices | None) -> Slices | None:
        others = tuple(i for i in range(values.ndim) if i != axis)
        low, high = (np.asarray(end(axis=others), np.float64) for end in (values.min, values.max))
        if before is not None and len(before.low) != len(low):
            self.ragged.add((name, axis))
        if (name, axis) in self.ragged:
            return None
        if before is not None:
            low, high = np.minimum(low, before.low), np.maximum(high, before.high)
        return Slices(axis=axis, low=low, high=high)


def observe(
    model: ir.Model,
    names: Mapping[str, str],
    feeds: Iterable[Mapping[str, Any]],
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> ObservedValues:
    """What the values ``names`` (name in the result → name in ``model``) hold.

    Raises:
        UsageError: there is no sample.
    """
    observed, samples = ObservedValues(), 0
    total = feeds.count if isinstance(feeds, Feeds) else None
    taps = Taps(model, names.values(), threads=threads)
    known = {v.name: v for v in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs))}
    for feed in feeds:
        values = taps.run(feed)
        for name, tapped in names.items():
            observed.add(name, values[tapped], known[tapped])
        samples += 1
        if progress is not None:
            progress(samples, total)
    taps.session.close()
    if not samples:
        raise UsageError("there is no sample to look at", hint="--data gives the samples")
    return observed


def _sources(context: LintContext, node: ir.Node) -> list[ir.Value]:
    found = [context.source(value) for value in node.inputs]
    return [value for value in found if value is not None and not is_constant(value)]


def channel_axes(value: ir.Value, rank: int) -> tuple[int, ...]:
    """The axes of ``value`` that may be channels, counted from the front: one where its makers tell; else 1 of [N, C] and
    [N, C, H, W], both of [N, C, L] or [N, T, C]; none of vectors and scalars."""
    if rank < 2:
        return ()
    first = _is_channels_first(value)
    if first is None:
        return (1, 2) if rank == 3 else (1,)
    return (1,) if first else (rank - 1,)


def _is_channels_first(value: ir.Value) -> bool | None:
    turned = False
    current: ir.Value | None = value
    for _ in range(FARTHEST):
        node = current.producer() if current is not None else None
        if node is None:
            return None
        if is_standard(node, *CHANNELS_FIRST):
            return not turned
        if is_standard(node, *CHANNELS_LAST):
            return turned
        if is_standard(node, "Transpose"):
            turned = not turned
        current = next((v for v in node.inputs if v is not None and not is_constant(v)), None)
    return None
