"""Calibration of a plan: which values it observes, their ranges, and what to do about values that no integer grid can hold:
attention masks.

A mask of −inf has no range; one of −3.4e38 has, but a grid that reaches there has steps so wide that every other value becomes
0. Both are named with the nodes to leave float, as options to paste."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.annotate_encodings import is_inside_group, touching
from qdq_passes.encode.look.demands import Demands
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.uses import label
from qdq_passes.select.globs import literal
from qdq_passes.select.selectors import Selector, select_nodes

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.observed import NotFiniteError
from qdqtool.calibrate.observer import Option, Range
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.files.progress import Progress
from qdqtool.quantization.decoder_passes import cache_names, has_infinite_masks, masks, unbounded
from qdqtool.quantization.plan import Plan
from qdqtool.runtime.session import compute
from qdqtool.workers.cluster import Workers

#: Magnitude from which 8-bit steps are 256 and more: no activation that an 8-bit grid serves, but what masks are made of
#: (−65504, −1e9, −3.4e38).
HUGE = 2.0**15
#: What makes the angles of rotary embeddings: they reach the length of the context, and a grid over them has no step for the
#: turn of one position (0.004 rad in 16 bit at 256 positions, 1 rad in 8 bit).
ANGLES = ("before:op:Cos", "before:op:Sin")

#: `quantize` measures its own SQNR on at most so many samples, and on fewer where these hold many values together: a figure for
#: the summary, `compare` is the full measurement.
SQNR_SAMPLES, SQNR_VALUES = 16, 1 << 24


def sqnr_samples(model: ir.Model) -> int:
    """Samples on which `quantize` measures its own SQNR, at least 1, by the shapes in ``model``; unknown dims count as 1."""
    values = 0
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        dims = value.shape.dims if value.shape is not None else ()
        values += math.prod(d for d in dims if isinstance(d, int))
    return max(1, min(SQNR_SAMPLES, SQNR_VALUES // max(values, 1)))


@dataclass
class Passing:
    """Feeds on their way to somebody else; copies of the first are kept, so that feeds that can be read only once serve twice.

    Args:
        feeds: the feeds.
        keep: how many to keep.
    """

    feeds: Iterable[Mapping[str, Any]]
    keep: int = 0
    first: list[Mapping[str, Any]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        self.first.clear()
        for feed in self.feeds:
            if len(self.first) < self.keep:
                self.first.append({name: np.array(array) for name, array in feed.items()})
            yield feed


@dataclass
class Calibrator:
    """onnxruntime as pipelines know it, ``@runtime``: computes a model, and observes values on samples for the pass `observe`.

    Args:
        ranges: what was found before, and then nothing is observed; else what `observe` found.
        statistics: histograms are kept whatever the method, so that reports know the noise of every activation.
        cache: folder of ranges found before, and of those of an interrupted run; None keeps none.
        workers: who runs the model; None: this process.
        threads: threads inside an operator.
        progress: called after each sample.
        way_out: what to do about tensors that have no range, by model and names; None: what `quantize` can do.
    """

    ranges: Ranges | None = None
    statistics: bool = False
    cache: str | os.PathLike[str] | None = None
    workers: Workers | None = None
    threads: int = 1
    progress: Progress | None = None
    way_out: Callable[[ir.Model, Sequence[str]], str] | None = None
    __call__ = staticmethod(compute)

    @property
    def found(self) -> Ranges:
        """The ranges, given or observed."""
        assert self.ranges is not None, "nothing was observed"
        return self.ranges

    def observe(
        self,
        model: ir.Model,
        data: Iterable[Mapping[str, Any]] | None,
        tensors: Sequence[str] | None,
        method: str,
        options: Mapping[str, Option],
    ) -> Mapping[str, Range]:
        """The ranges of ``tensors`` over ``data``; their record is in ``ranges``.

        Raises:
            UsageError: no data.
            ModelError: a tensor holds NaN or Inf; the message says how to leave it float.
        """
        if data is None:
            raise UsageError("no data to calibrate on", hint="give --data, or --ranges from `qdqtool calibrate`")
        try:
            self.ranges = collect(
                model, data, method, tensors=tensors, options=options, statistics=self.statistics, cache=self.cache,
                threads=self.threads, workers=self.workers, progress=self.progress,
            )  # fmt: skip
        except NotFiniteError as error:
            bad = error.tensors
            shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
            hint = (self.way_out or _without)(model, bad)
            raise ModelError(
                "NaN or Inf in the values (an attention mask?) has no range", where=shown, hint=hint
            ) from error
        return self.ranges.bound


def huge_ranges(model: ir.Model, plan: Plan, ranges: Ranges, names: Sequence[str]) -> Iterator[str]:
    """A warning of ranges whose grid has no step for small values."""
    candidates = unbounded(model, plan.materialise, ranges.bound, names)
    large = [name for name in candidates if name in ranges.tensors and ranges.tensors[name].magnitude >= HUGE]
    if large:
        reach = max(ranges.tensors[name].magnitude for name in large)
        are_masks = set(large) <= masks(model, ranges.bound)
        yield (
            f"{', '.join(large)}: the range reaches {reach:.2g} (an attention mask?), its grid has no step for small values; "
            f"{'hide by a bound that the grid holds without --no-bound-masks, or ' if are_masks else ''}"
            f"{left_float(model, large)}"
        )


def zero_inputs(model: ir.Model, ranges: Mapping[str, Range]) -> Iterator[str]:
    """A warning of graph inputs that were 0 throughout, as the samples of a cache or a state often are."""
    seen = ((value.name or "", ranges.get(value.name or "")) for value in model.graph.inputs)
    zeros = [name for name, found in seen if found is not None and found.magnitude == 0]
    if zeros:
        yield (
            f"inputs that are 0 in all samples: {', '.join(zeros)}; their ranges, and those of what depends on "
            "them, are guesses; give samples with a filled cache or state"
        )


def _without(model: ir.Model, names: Sequence[str]) -> str:
    """How to go on where ``names`` hold what has no range."""
    masks_too = "let masks hide by a finite number without --no-bound-masks, or " if has_infinite_masks(model) else ""
    return f"{masks_too}{left_float(model, names)}"


def left_float(model: ir.Model, names: Sequence[str]) -> str:
    """How ``names`` are left float."""
    return f"leave it float with {exclude_options(model, names)}"


def exclude_options(model: ir.Model, names: Iterable[str]) -> str:
    """The options that leave the tensors ``names`` float: their producers (readers, for an input), isolated."""
    values = {value.name: value for value in [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]}
    nodes: dict[str, None] = {}
    for value in (values[name] for name in names):
        producer = value.producer()
        nodes |= {label(node): None for node in ([producer] if producer else value.consumers())}
    return " ".join([*(f"--exclude {shlex.quote(literal(name))}" for name in nodes), "--isolate"])


def quantized_activations(model: ir.Model, plan: Plan, demands: Demands | None = None) -> list[ir.Value]:
    """The activations of the prepared ``model`` that ``plan`` will give an encoding, in the order in which they are demanded.

    Args:
        model: the model, the passes of ``plan.prepare`` behind it.
        plan: the plan.
        demands: what the nodes demand, where that is known.
    """
    annotate = plan.annotate
    excluded = annotate.excluded(model)
    wanted = select_nodes(model, annotate.only) - excluded
    demands = annotate.demands(model) if demands is None else demands
    isolated = excluded if annotate.isolate else set()
    return [
        v
        for v, _ in demands.items()
        if v.name
        and demands.role(v) == "activation"
        and not is_inside_group(v, demands.quantized_around(v), wanted)
        and not touching(v, isolated)
    ]


def observed_names(model: ir.Model, plan: Plan, activations: list[ir.Value] | None = None) -> list[str]:
    """The names of those whose range is to be observed: nothing said of them alone takes its place; and of the tensors of a
    decoder's cache where that is to be of integers."""
    policy = plan.annotate.policy(model)
    chosen = quantized_activations(model, plan) if activations is None else activations
    names = [v.name for v in chosen if v.name and policy.needs_range(v)]
    return list(dict.fromkeys((*names, *cache_names(model, plan.materialise))))


def without_angles(plan: Plan, model: ir.Model) -> Plan:
    """``plan``, the angles of rotary embeddings left float where ``model`` computes them of positions alone."""
    found = angles(model)
    return plan.excluding(*found) if found else plan


def angles(model: ir.Model) -> list[str]:
    """Selectors of the angles of rotary embeddings that ``model`` computes of positions alone."""
    tokens = select_nodes(model, Selector.of("role:embedding", "role:mlp"), allow_empty=True)
    return [text for text in ANGLES if _hits(model, text) and not _hits(model, text) & tokens]


def _hits(model: ir.Model, text: str) -> set[ir.Node]:
    return select_nodes(model, Selector.of(text), allow_empty=True)
