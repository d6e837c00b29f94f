"""Warnings of scales that passes moved away from what calibration chose, where that costs the tensor much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.encode.edit.encoding_policy import histogram_of
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.agreement import worst_first
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.histogram import Histogram
from qdq_passes.numerics.price import Level, fit_of, sqnr_of_range
from qdq_passes.qdq.look.grids import grid_text
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.comparison.kept import Interval, kept_by_readers
from qdqtool.quantization.quantizing import Quantization
from qdqtool.quantization.reports import SHOWN, TensorReport
from qdqtool.record.moves import EncodingWatch

#: What a tensor may lose by moves of its scale without a word, dB: two bits.
LOST_DB = 12.0
#: Tensors that stay above have nothing to lose that 8 bits hold, dB.
FINE_DB = 40.0


def costly_moves(done: Quantization) -> list[str]:
    """One line for each pass that moved scales by which tensors lose more than `LOST_DB`."""
    return moves_in(done.model, done.watch, done.tensors, done.ranges.bound)


def moves_in(
    model: ir.Model, watch: EncodingWatch, tensors: Sequence[TensorReport], ranges: Mapping[str, object]
) -> list[str]:
    """As `costly_moves`, of what ``watch`` saw passes do with ``model``.

    Args:
        model: the quantized model.
        watch: who moved encodings.
        tensors: reports of its tensors.
        ranges: observed ranges by tensor.
    """
    reports = {report.tensor: report for report in tensors}
    moved = {name: moves for name, moves in watch.moves(reports).items() if len(moves) > 1}
    if not moved:
        return []
    keeps = kept_by_readers(model)
    constants = {pair.tensor: constant_array(pair.source) for pair in qdq_pairs(model) if pair.tensor in moved}
    found = dict[str, list[tuple[float, str, str]]]()
    for name, moves in moved.items():
        first, last = moves[0].after, moves[-1].after
        if first is None or last is None:
            continue
        encodings = [Encoding.from_json(dict(each)) for each in (first, last)]
        report, histogram = reports[name], histogram_of(ranges, name)
        if report.kind == "activation":
            before, after = (_level(report, each, histogram, keeps.get(name)) for each in encodings)
        else:
            before, after = _of_constant(report, constants.get(name), *encodings)
        lost = (FINE_DB + LOST_DB if before is None else before) - worst_first(after)
        if lost > LOST_DB and worst_first(after) < FINE_DB:
            grids = " to ".join(map(grid_text, encodings))
            found.setdefault(moves[-1].by, []).append((-lost, name, grids))
    return [_told(by, sorted(lost)) for by, lost in found.items()]


def _told(by: str, lost: list[tuple[float, str, str]]) -> str:
    """Of the pass ``by``, whose moves cost the most first."""
    names = ", ".join(f"{name} loses {-db:.1f} dB" for db, name, _ in lost[:SHOWN])
    more = f" and {len(lost) - SHOWN} more lose more than {LOST_DB:g} dB" if len(lost) > SHOWN else ""
    return f"{by} changed scales at a cost in SQNR: {names}{more}; the scale of {lost[0][1]} went from {lost[0][2]}"


def _of_constant(report: TensorReport, data: Array | None, first: Encoding, last: Encoding) -> tuple[Level, Level]:
    """SQNR of a constant before and after; where its float data are gone, before as a finer scale would have it."""
    after = None if report.fit is None else report.fit.sqnr_db
    if data is not None and np.issubdtype(data.dtype, np.floating):
        return fit_of(data, first).sqnr_db, after
    coarser = max(last.scale) / max(first.scale)
    return (after if after is None or coarser < 1 else after + 20 * math.log10(coarser)), after


def _level(report: TensorReport, encoding: Encoding, histogram: Histogram | None, kept: Interval | None) -> Level:
    """SQNR of a tensor by ``encoding``: of its histogram, else estimated of values that are spread evenly over its range, or over
    what its readers keep of that."""
    low, high = report.low, report.high
    if low is None or high is None or len(encoding.scale) != 1:
        return None
    if histogram is not None and histogram.total and kept is None:
        return histogram.sqnr(encoding)
    if kept is not None:
        low, high = (min(max(end, kept[0]), kept[1]) for end in (low, high))
    return sqnr_of_range(low, high, encoding)
