"""The verb `compare`: cumulative, node by node, or with what a board dumped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, overload

import onnx_ir as ir
from qdq_passes.errors import UsageError

from qdqtool.api.texts import with_texts
from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.comparison.cumulative import compare_models
from qdqtool.comparison.dump_files import Layout
from qdqtool.comparison.dumps import DIVERGES_DB, DumpComparison, compare_dumps
from qdqtool.comparison.local import compare_local
from qdqtool.comparison.report import Comparison, LocalComparison
from qdqtool.io.feeds.feeds import FeedSpec, open_feeds
from qdqtool.io.feeds.images import ImageOptions
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.dumps import dumps_in
from qdqtool.io.files.progress import StageProgress, Warn, pass_on, stage
from qdqtool.io.models.load import load
from qdqtool.io.models.working import ModelOrPath

Mode = Literal["cumulative", "local"]
#: Named input of pipelines that recover accuracy.
STATISTICS = "statistics"
RangesOrPath = Ranges | str | os.PathLike[str]
StatisticsOrPath = Statistics | str | os.PathLike[str]


@overload
def compare(
    a: ModelOrPath,
    b: ModelOrPath,
    data: FeedSpec,
    *,
    mode: Literal["cumulative"] = "cumulative",
    dumps: None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    per_slice: int | None = None,
    tensors: Sequence[str] | None = None,
    jobs: int = 1,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> Comparison: ...


@overload
def compare(
    a: ModelOrPath,
    b: ModelOrPath,
    data: FeedSpec,
    *,
    mode: Literal["local"],
    ranges: RangesOrPath | None = None,
    statistics: StatisticsOrPath | None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> LocalComparison: ...


@overload
def compare(
    a: ModelOrPath,
    b: ModelOrPath | None,
    data: FeedSpec,
    *,
    dumps: str | os.PathLike[str],
    dumps_layout: Layout = "auto",
    min_sqnr: float | None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> DumpComparison: ...


def compare(
    a: ModelOrPath,
    b: ModelOrPath | None,
    data: FeedSpec,
    *,
    mode: Mode = "cumulative",
    dumps: str | os.PathLike[str] | None = None,
    dumps_layout: Layout = "auto",
    min_sqnr: float | None = None,
    ranges: RangesOrPath | None = None,
    statistics: StatisticsOrPath | None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    per_slice: int | None = None,
    tensors: Sequence[str] | None = None,
    jobs: int = 1,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> Comparison | LocalComparison | DumpComparison:
    """Compare model ``b`` with the reference ``a`` on ``data``: SQNR, maximal difference, cosine, share of equal elements.

    Args:
        a: reference.
        b: tested model; tensors are matched by name, a quantized one by its dequantized value. None only with ``dumps``.
        data: samples in any form of ``--data``.
        mode: ``cumulative``: both run whole; ``local``: each node of ``b`` on the float inputs that ``a`` has there, with its
            error by causes.
        dumps: folder of tensors that a board dumped: these are compared instead.
        dumps_layout: ``nhwc`` where dumps have their channels last.
        min_sqnr: dB below which a dumped tensor diverges.
        ranges: for ``local``, the ranges that ``b`` was quantized with: tells what moving scales after calibration cost.
        statistics: for ``local``, the statistics that ``b`` was smoothed with, from ``--save-statistics``.
        samples: take the first so many.
        seed: seed of random data.
        image: how images become inputs.
        tokenizer: a tokenizer.json, or a folder with one, for a text as ``data``; by default beside ``a``.
        per_slice: axis along which to compare every index by itself as well.
        tensors: inner tensors to compare; None: all that both have; empty: outputs only.
        jobs: threads inside an operator; the figures are those of so many threads, to the last bit.
        progress: called with (stage, done, total).
        warn: called with each warning.

    Raises:
        UsageError: options that do not go together, or models that have nothing in common.
    """
    _refuse_mixed(mode, dumps, per_slice, tensors, {"--ranges": ranges, "--statistics": statistics})
    first = a if isinstance(a, ir.Model) else load(a)
    second = b if b is None or isinstance(b, ir.Model) else load(b)
    data = with_texts(data, first, a, tokenizer=tokenizer, samples=samples)
    feeds = open_feeds(data, input_specs(first), samples=samples, seed=seed, image=image)
    ticks = stage(progress, "comparing", feeds.count)
    found: Comparison | LocalComparison | DumpComparison
    if dumps is not None:
        found = compare_dumps(
            first, second, dumps_in(dumps), feeds, layout=dumps_layout, threads=jobs, progress=ticks,
            diverges_below=DIVERGES_DB if min_sqnr is None else min_sqnr,
        )  # fmt: skip
    elif second is None:
        raise UsageError("there is nothing to compare with", hint="give B, or --dumps DIR")
    elif mode == "local":
        given = Ranges.read(ranges) if isinstance(ranges, str | os.PathLike) else ranges
        sums = Statistics.read(statistics) if isinstance(statistics, str | os.PathLike) else statistics
        inputs = None if sums is None else {STATISTICS: sums.layers}
        found = compare_local(first, second, feeds, ranges=given, inputs=inputs, threads=jobs, progress=ticks)
    else:
        found = compare_models(first, second, feeds, per_slice=per_slice, tensors=tensors, threads=jobs, progress=ticks)
    pass_on([*feeds.warnings, *found.warnings], warn)
    return found


def _refuse_mixed(
    mode: Mode, dumps: object, per_slice: object, tensors: Sequence[str] | None, of_local: Mapping[str, object]
) -> None:
    """Refuse options that say nothing together.

    Raises:
        UsageError: the first such.
    """
    if dumps is not None and mode == "local":
        raise UsageError("--dumps compares whole runs", hint="drop --mode local")
    if (dumps is not None or mode == "local") and per_slice is not None:
        raise UsageError("--per-slice is for whole models", hint="drop --dumps and --mode local")
    if (dumps is not None or mode == "local") and tensors:
        raise UsageError("--tensor is for whole models", hint="drop --dumps and --mode local")
    for option, given in of_local.items():
        if given is not None and mode != "local":
            raise UsageError(f"{option} says how B was quantized, of use node by node", hint="give --mode local")
