"""Ranges of the values to be quantized, and what to do about values that no integer grid can hold: attention masks.

A mask of −inf has no range; one of −3.4e38 has, but a grid that reaches there has steps so wide that every other value becomes
0. Both are named with the nodes to leave float, as options to paste."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError
from qdq_passes.graph.uses import label
from qdq_passes.select.selectors import literal

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.observed import NotFiniteError
from qdqtool.calibrate.observer import Option
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.files.progress import Progress
from qdqtool.workers.cluster import Workers

#: Magnitude from which 8-bit steps are 256 and more: no activation that an 8-bit grid serves, but what masks are made of
#: (−65504, −1e9, −3.4e38).
HUGE = 2.0**15


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


def collect_finite(
    model: ir.Model,
    feeds: Iterable[Mapping[str, Any]],
    method: str,
    names: Sequence[str],
    *,
    way_out: Callable[[Sequence[str]], str],
    options: Mapping[str, Option] | None = None,
    statistics: bool = False,
    cache: str | os.PathLike[str] | None = None,
    threads: int = 1,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Ranges:
    """Ranges of the tensors ``names``; when some hold NaN or Inf, one error that names them all.

    Args:
        model: the float model.
        feeds: samples; read once.
        method: calibration method.
        names: tensors of the main graph.
        way_out: the hint for the tensors that have no range.
        options: options of the method.
        statistics: keep histograms whatever the method.
        cache: folder of ranges found before, and of those of an interrupted run.
        threads: threads inside an operator.
        workers: who runs the model; None: this process.
        progress: called after each sample.

    Raises:
        ModelError: tensors hold NaN or Inf.
    """
    try:
        return collect(
            model, feeds, method, tensors=names, options=options, statistics=statistics, cache=cache, threads=threads,
            workers=workers, progress=progress,
        )  # fmt: skip
    except NotFiniteError as error:
        bad = error.tensors
        shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        raise ModelError(
            "NaN or Inf in the values (an attention mask?) has no range", where=shown, hint=way_out(bad)
        ) from error


def huge(names: Iterable[str], ranges: Ranges) -> list[str]:
    """Those of ``names`` whose range reaches `HUGE`."""
    return [name for name in names if name in ranges.tensors and ranges.tensors[name].magnitude >= HUGE]


def exclude_options(model: ir.Model, names: Iterable[str]) -> str:
    """The options that leave the tensors ``names`` float: their producers (readers, for an input), isolated."""
    values = {value.name: value for value in [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]}
    nodes: dict[str, None] = {}
    for value in (values[name] for name in names):
        producer = value.producer()
        nodes |= {label(node): None for node in ([producer] if producer else value.consumers())}
    return " ".join([*(f"--exclude {shlex.quote(literal(name))}" for name in nodes), "--isolate"])
