"""What lints judge: the operators of a model, the grid of each value they read and write, and the values observed there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.annotate import ENCODING
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_qdq, is_quantize
from qdq_passes.graph.uses import constant_array, is_constant
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import dequantizers, encoding_of, pair_of


class Interval(Protocol):
    """The values that a tensor takes."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Slices:
    """The values of each index of one axis, over all samples.

    Args:
        axis: the axis, counted from the front.
        low: smallest value per index, float64 [D_axis].
        high: largest value per index.
    """

    axis: int
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class LintContext:
    """Grids and values of one model. Its grids are those of its pairs; where it has none, those of annotate-encodings.

    Args:
        model: the model; only read. Bodies of control flow are not looked into.
        ranges: tensor name → values seen; the names are those of float values, as pairs carry them.
        slices: likewise, per axis.
    """

    model: ir.Model
    ranges: Mapping[str, Interval] = field(default_factory=dict)
    slices: Mapping[str, tuple[Slices, ...]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The operators of the main graph, without Q, DQ and Constant."""
        return tuple(n for n in self.model.graph if not (is_qdq(n) or n.op_type == "Constant"))

    def source(self, value: ir.Value | None) -> ir.Value | None:
        """The float value behind the pairs that write ``value``, itself where none does; stored integers are the end."""
        while value is not None and (before := value.producer()) is not None and is_dequantize(before):
            quantize = before.inputs[0].producer() if before.inputs[0] is not None else None
            if is_quantize(before):
                quantize = before
            if quantize is None or not is_quantize(quantize):
                return value
            value = quantize.inputs[0]
        return value

    def name(self, value: ir.Value) -> str:
        """The name of the tensor that ``value`` holds, as its pair carries it."""
        for node in (value.producer(), *(dq for q in _quantizers(value) for dq in dequantizers(q) or [q])):
            pair = pair_of(node) if node is not None else None
            if pair is not None:
                return pair.tensor
        return value.name or ""

    def grid_read(self, value: ir.Value | None) -> Encoding | None:
        """The grid that an operator reading ``value`` sees; None where it is float, or the scale is computed at run time."""
        before = value.producer() if value is not None else None
        if before is not None and is_dequantize(before):
            return encoding_of(before)
        return ENCODING.get(value) if value is not None else None

    def grid_written(self, value: ir.Value) -> Encoding | None:
        """The grid that ``value``, as an operator writes it, is brought to; None where it stays float."""
        quantizers = _quantizers(value)
        return encoding_of(quantizers[0]) if quantizers else ENCODING.get(value)

    def range_of(self, value: ir.Value | None) -> tuple[float, float] | None:
        """(low, high) of the float value behind ``value``: of constants their data, else what was seen; None where unknown."""
        source = self.source(value)
        if source is None:
            return None
        found = self.ranges.get(self.name(source))
        if found is not None:
            return found.low, found.high
        array = constant_array(source) if is_constant(source) else None
        if array is None or not array.size or not np.issubdtype(array.dtype, np.floating):
            return None
        return float(array.min()), float(array.max())


def _quantizers(value: ir.Value) -> list[ir.Node]:
    return [use.node for use in value.uses() if use.idx == 0 and is_quantize(use.node)]
