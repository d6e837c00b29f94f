"""What it costs, in dB, to replace an operator by another on the values that it sees: SQNR = 10·log10(Σy² / Σ(y − y')²); and the
note of what it was."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.edit.encoding_policy import Ranges, histogram_of, range_of
from qdq_passes.graph.operators.qdq_ops import is_dequantize
from qdq_passes.numerics.price import POINTS, in_db, sqnr
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.pairs import encoding_of, pair_of

Numbers = npt.NDArray[np.float64]

#: In ``metadata_props`` of a node: the operator, or the slope, that it was before it was made to compute as the DPU does, so that
#: undo-dpu-edits need not guess: many slopes are rounded to one, and a Sigmoid becomes what a HardSigmoid is.
BEFORE_DPU = "qdqtool.before_dpu"


@dataclass(frozen=True, eq=False)
class _Points:
    """Values of a tensor.

    Args:
        at: values.
        counts: how often each occurs.
        is_estimate: whether they are spread evenly over a range because nothing more is known.
    """

    at: Numbers
    counts: Numbers
    is_estimate: bool


@dataclass(frozen=True)
class Price:
    """What a replacement costs.

    Args:
        sqnr_db: SQNR in dB; None where no value differs.
        is_estimate: whether it rests on a range alone.
    """

    sqnr_db: float | None
    is_estimate: bool

    def __str__(self) -> str:
        return ("~" if self.is_estimate and self.sqnr_db is not None else "") + in_db(self.sqnr_db)


def replacement_price(
    value: ir.Value | None, ranges: Ranges | None, old: Callable[[Numbers], Numbers], new: Callable[[Numbers], Numbers]
) -> Price | None:
    """What ``new`` costs instead of ``old`` on what an operator reads as ``value``; None where nothing is known of that.

    Args:
        value: the operator's input.
        ranges: what calibration saw.
        old: the function of the operator, element by element.
        new: that of its replacement.
    """
    points = _points_of(value, ranges)
    if points is None:
        return None
    y, z = old(points.at), new(points.at)
    signal, noise = (float(np.dot(points.counts, a * a)) for a in (y, y - z))
    return Price(sqnr(signal, noise), points.is_estimate)


def _points_of(value: ir.Value | None, ranges: Ranges | None) -> _Points | None:
    """What is known of the values of ``value``: its histogram, else its observed range, else that of its pair's encoding."""
    producer = value.producer() if value is not None else None
    pair = pair_of(producer) if producer is not None and is_dequantize(producer) else None
    names = [
        name for name in (value.name if value is not None else None, pair.tensor if pair is not None else None) if name
    ]
    for name in names:
        histogram = histogram_of(ranges, name) if ranges is not None else None
        if histogram is not None and histogram.total:
            pieces = histogram.pieces()
            return _Points((pieces.left + pieces.right) / 2, pieces.counts, False)
    for name in names:
        seen = range_of(ranges, name) if ranges is not None else None
        if seen is not None:
            return _evenly(*seen)
    encoding = encoding_of(producer) if pair is not None and producer is not None else None
    if encoding is None or not encoding.scale:
        return None
    lows, highs = real_range(encoding)
    low, high = float(lows.min()), float(highs.max())
    return _evenly(low, high) if math.isfinite(low) and math.isfinite(high) else None


def _evenly(low: float, high: float) -> _Points:
    return _Points(np.linspace(low, high, POINTS), np.ones(POINTS), True)


def mark(node: ir.Node, before: str) -> None:
    """Note on ``node`` what it was, unless an earlier edit did."""
    node.metadata_props.setdefault(BEFORE_DPU, before)


def marked(node: ir.Node) -> str | None:
    """What ``node`` was, where that is noted."""
    return node.metadata_props.get(BEFORE_DPU)


def unmark(node: ir.Node) -> None:
    """Drop the note: ``node`` is again what it was."""
    node.metadata_props.pop(BEFORE_DPU, None)
