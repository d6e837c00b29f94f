"""Ranges of the values to be quantized, and what to do about values that no integer grid can hold: attention masks.

A mask of −inf has no range; one of −3.4e38 has, but a grid that reaches there has steps so wide that every other value becomes
0. Both are named with the nodes to leave float, as options to paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.progress import Progress
from qdqtool.runtime.taps import Taps

#: Magnitude from which 8-bit steps are 256 and more: no activation that an 8-bit grid serves, but what masks are made of
#: (−65504, −1e9, −3.4e38).
HUGE = 2.0**15


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
    last: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        self.first.clear()
        for feed in self.feeds:
            if len(self.first) < self.keep:
                self.first.append({name: np.array(array) for name, array in feed.items()})
            self.last = feed
            yield feed


def collect_finite(
    model: ir.Model,
    feeds: Iterable[Mapping[str, Any]],
    method: str,
    names: Sequence[str],
    *,
    way_out: Callable[[Sequence[str]], str],
    threads: int = 1,
    progress: Progress | None = None,
) -> Ranges:
    """Ranges of the tensors ``names``; when some hold NaN or Inf, one error that names them all.

    Args:
        model: the float model.
        feeds: samples; read once.
        method: calibration method.
        names: tensors of the main graph.
        way_out: the hint for the tensors that have no range.
        threads: threads inside an operator.
        progress: called after each sample.

    Raises:
        ModelError: tensors hold NaN or Inf.
    """
    passing = Passing(feeds)
    try:
        return collect(model, passing, method, tensors=names, threads=threads, progress=progress)
    except ModelError as error:
        bad = _not_finite(model, names, passing.last)
        if not bad:
            raise
        shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        raise ModelError(
            "NaN or Inf in the values (an attention mask?) has no range", where=shown, hint=way_out(bad)
        ) from error


def _not_finite(model: ir.Model, names: Sequence[str], feed: Mapping[str, Any] | None) -> list[str]:
    if feed is None:
        return []
    return [name for name, array in Taps(model, names).run(feed).items() if not np.isfinite(array).all()]


def huge(names: Iterable[str], ranges: Ranges) -> list[str]:
    """Those of ``names`` whose range reaches `HUGE`."""
    return [name for name in names if name in ranges.tensors and ranges.tensors[name].magnitude >= HUGE]


def exclude_options(model: ir.Model, names: Iterable[str]) -> str:
    """The options that leave the tensors ``names`` float: their producers (readers, for an input), isolated."""
    values = {value.name: value for value in [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]}
    nodes: dict[str, None] = {}
    for value in (values[name] for name in names):
        producer = value.producer()
        nodes |= {node.name or node.op_type: None for node in ([producer] if producer else value.consumers())}
    return " ".join([*(f"--exclude {shlex.quote(_literal(name))}" for name in nodes), "--isolate"])


def _literal(name: str) -> str:
    """The selector that matches this node name alone."""
    if name.startswith(("!", "-")) or ":" in name:
        return f"re:^{re.escape(name)}$"
    return re.sub(r"([*?[])", r"[\1]", name).replace("&", r"\&")
