"""Run a model over sample feeds and observe its tensors: one session, one sample's tensors in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError, UsageError

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.observer import Array, Observer, Option, extremes, observers
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feed_hash import EMPTY, add_feed
from qdqtool.io.feed_spec import is_float
from qdqtool.io.feeds import Feeds
from qdqtool.io.progress import Progress
from qdqtool.runtime.taps import Taps, float_tensors


def collect(
    model: ir.Model,
    feeds: Iterable[Mapping[str, Array]],
    method: str = "minmax",
    *,
    tensors: Iterable[str] | None = None,
    options: Mapping[str, Option] | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> Ranges:
    """Ranges of the float tensors of ``model`` (not changed) over ``feeds``.

    Args:
        model: the float model.
        feeds: `Feeds`, or any iterable of dicts of arrays by input name; read once.
        method: calibration method, see `qdqtool.calibrate.methods`.
        tensors: names of float graph inputs and node outputs of the main graph; default: all.
        options: options of the method.
        threads: threads inside an operator.
        progress: called after each sample.

    Raises:
        UsageError: no such method or tensor, a tensor is not float, or there is no sample.
        ModelError: a tensor holds NaN or Inf.
    """
    make = observers(method, options)
    taps = Taps(model, float_tensors(model) if tensors is None else tensors, threads=threads)
    total = feeds.count if isinstance(feeds, Feeds) else None
    seen: dict[str, Observer] = {}
    samples, data = 0, EMPTY
    for feed in feeds:
        for name, values in taps.run(feed).items():
            if values.size:
                if name not in seen:
                    seen[name] = make()
                _observe(seen[name], name, values, samples)
        data = add_feed(data, feed)
        samples += 1
        if progress is not None:
            progress(samples, total)
    if not samples:
        raise UsageError("there is no sample to calibrate on", hint="--data gives the samples")
    return Ranges.of(
        {name: seen[name] for name in taps.names if name in seen},
        unobserved=[name for name in taps.names if name not in seen],
        method=method,
        options=options or {},
        samples=samples,
        model_sha256=model_sha256(model),
        data_sha256=data,
    )


def _observe(observer: Observer, name: str, values: Array, sample: int) -> None:
    if not is_float(values.dtype):
        raise UsageError(f"tensor {name!r} is {values.dtype}, not float", hint="only float tensors are calibrated")
    if values.dtype.kind == "V":  # bfloat16 and the like: arithmetic of numpy is for its own types
        values = values.astype(np.float32)
    low, high = extremes(values)
    if not (np.isfinite(low) and np.isfinite(high)):
        count = int(np.count_nonzero(~np.isfinite(values)))
        raise ModelError(
            f"{count} of {values.size} values are NaN or Inf in sample {sample}",
            where=f"tensor {name!r}",
            hint="leave it float with --exclude, or look for the sample that causes it",
        )
    observer.observe(values, low, high)
