"""The verb `compare`."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qdqtool.api.ticking import Warn, pass_on, stage
from qdqtool.comparison.cumulative import compare_models
from qdqtool.comparison.report import Comparison
from qdqtool.io.feed_spec import input_specs
from qdqtool.io.feeds import FeedSpec, open_feeds
from qdqtool.io.images import ImageOptions
from qdqtool.io.load import load
from qdqtool.io.progress import StageProgress
from qdqtool.io.working import ModelOrPath


def compare(
    a: ModelOrPath,
    b: ModelOrPath,
    data: FeedSpec,
    *,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    per_slice: int | None = None,
    tensors: Sequence[str] | None = None,
    jobs: int = 1,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> Comparison:
    """Compare model ``b`` with the reference ``a`` on ``data``: SQNR, maximal difference, cosine, share of equal elements.

    Args:
        a: reference.
        b: tested model; tensors are matched by name, a quantized one by its dequantized value.
        data: samples in any form of ``--data``.
        samples: take the first so many.
        seed: seed of random data.
        image: how images become inputs.
        per_slice: axis along which to compare every index by itself as well.
        tensors: inner tensors to compare; None: all that both have; empty: outputs only.
        jobs: threads inside an operator; the figures are those of so many threads, to the last bit.
        progress: called with (stage, done, total).
        warn: called with each warning.
    """
    first = a if isinstance(a, ir.Model) else load(a)
    second = b if isinstance(b, ir.Model) else load(b)
    feeds = open_feeds(data, input_specs(first), samples=samples, seed=seed, image=image)
    found = compare_models(
        first, second, feeds, per_slice=per_slice, tensors=tensors, threads=jobs,
        progress=stage(progress, "comparing", feeds.count),
    )  # fmt: skip
    pass_on([*feeds.warnings, *found.warnings], warn)
    return found
