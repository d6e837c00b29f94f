"""Grids: what a Q or DQ node applies, as arrays and in words; an `Encoding` that makes no Python number of every scale, so
that the hundred million scales of a blocked language model can be asked about."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qdq_ops import is_qdq, is_quantize, is_quantize_dequantize
from qdq_passes.graph.uses import constant_array, dtype_of, integer_of
from qdq_passes.numerics.encoding import Encoding, integer_format, integer_range, is_integer_type
from qdq_passes.qdq.look.pairs import encoding_of

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Grid:
    """The encoding of one node.

    Args:
        dtype: storage type.
        scale: scales, in the shape of the file.
        zero_point: zero points; a single one serves all scales.
        axis: axis the scales run along, as the node has it (may be negative); None per-tensor.
        block_size: elements of ``axis`` per scale, 0 unless blocked.
    """

    dtype: ir.DataType
    scale: Numbers
    zero_point: Numbers
    axis: int | None = None
    block_size: int = 0

    @property
    def is_per_tensor(self) -> bool:
        """Whether one scale serves the whole tensor."""
        return self.scale.size == 1

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return self.dtype.bitwidth

    @cached_property
    def is_pow2(self) -> bool:
        """Whether every scale is a power of two."""
        return bool(self.scale.size) and bool(np.all(np.frexp(self.scale)[0] == 0.5))

    @cached_property
    def is_middle(self) -> bool:
        """Whether every zero point is the middle of its type: 0, or 2^(bits-1) of an unsigned one."""
        return bool(np.all(self.zero_point == middle(self.dtype)))

    def matches(self, other: Grid) -> bool:
        """Whether both mean the same numbers."""
        return (
            self.dtype == other.dtype
            and self.scale.size == other.scale.size
            and (self.is_per_tensor or (self.axis, self.block_size) == (other.axis, other.block_size))
            and bool(np.all(self.scale.ravel() == other.scale.ravel()))
            and bool(np.all(_spread(self) == _spread(other)))
        )

    def fields(self) -> dict[str, str]:
        """Its parts in words, those that it has: dtype, scale, zero_point, position, axis, block_size, range."""
        words = {"dtype": self.dtype.name.lower(), "scale": _scales(self), "zero_point": _span(self.zero_point)}
        if self.is_pow2:
            words["position"] = _span(-np.log2(self.scale))
        if self.axis is not None:
            words["axis"] = str(self.axis)
        if self.block_size:
            words["block_size"] = str(self.block_size)
        if is_integer_type(self.dtype) and self.scale.size and self.zero_point.size in (1, self.scale.size):
            words["range"] = _range(self)
        return words

    def __str__(self) -> str:
        """``int8, scale 2^-4, zero point 0``; of many scales their count and their extremes."""
        where = "" if self.axis is None else f" on axis {self.axis}"
        where = f" in blocks of {self.block_size}{where}" if self.block_size else where
        scale = f"{self.scale.size} scales {_extremes(self)}" if self.scale.size != 1 else f"scale {_extremes(self)}"
        return f"{self.dtype.name.lower()}, {scale}{where}, zero point {_span(self.zero_point)}"


def grid_of(node: ir.Node) -> Grid | None:
    """The grid a Q, a DQ or a node that is both applies; None when scale or zero point are computed at run time, or empty."""
    if is_quantize_dequantize(node):
        encoding = encoding_of(node)
        if encoding is None:
            return None
        scale, zero = np.array(encoding.scale, np.float32), np.array(encoding.zero_point, np.float32)
        return Grid(dtype=encoding.dtype, scale=scale, zero_point=zero)
    given = (*node.inputs, None, None, None)[1:3]
    scales = constant_array(given[0]) if is_qdq(node) else None
    zeros = constant_array(given[1]) if given[1] is not None else np.zeros(1)
    if scales is None or zeros is None or scales.dtype.kind in "OSU" or not scales.size * zeros.size:
        return None
    block_size = integer_of(node, "block_size", 0)
    return Grid(
        dtype=_stored_type(node, given[1]),
        scale=scales.astype(np.float32),
        zero_point=zeros.astype(np.float32),
        axis=integer_of(node, "axis", 1) if scales.ndim and (scales.size != 1 or block_size) else None,
        block_size=block_size,
    )


def middle(dtype: ir.DataType) -> int:
    """The zero point of a symmetric encoding: 0, or 2^(bits-1) of an unsigned integer type."""
    if not is_integer_type(dtype) or integer_format(dtype)[0]:
        return 0
    return 1 << (integer_format(dtype)[1] - 1)


def _stored_type(node: ir.Node, zero: ir.Value | None) -> ir.DataType:
    """That of the zero point; without one what the Q is told to write, the type of the integers, or uint8."""
    found = dtype_of(zero) if zero is not None else None
    if found is not None:
        return found
    if is_quantize(node):
        code = integer_of(node, "output_dtype", 0)
        return ir.DataType(code) if code else node.outputs[0].dtype or ir.DataType.UINT8
    integers = node.inputs[0]
    producer = integers.producer() if integers is not None else None
    if producer is not None and is_quantize(producer):
        return _stored_type(producer, (*producer.inputs, None, None, None)[2])
    return (integers and dtype_of(integers)) or ir.DataType.UINT8


def _spread(grid: Grid) -> Numbers:
    """Zero points, one per scale."""
    zeros = grid.zero_point.ravel()
    return np.broadcast_to(zeros, grid.scale.size) if zeros.size == 1 else zeros


def _scales(grid: Grid) -> str:
    if grid.scale.size != 1:
        return f"{grid.scale.size} values, {_extremes(grid)}"
    number = _text(grid.scale.ravel()[0])
    return f"{_extremes(grid)} ({number})" if grid.is_pow2 else number


def _extremes(grid: Grid) -> str:
    """The scale, or the least and the largest."""
    if not grid.scale.size:
        return "none"
    ends = dict.fromkeys((grid.scale.min(), grid.scale.max()))
    return " to ".join(f"2^{int(np.log2(s))}" if grid.is_pow2 else _text(s) for s in ends)


def _span(numbers: Numbers) -> str:
    if not numbers.size:
        return "none"
    return " to ".join(dict.fromkeys((_text(numbers.min()), _text(numbers.max()))))


def _range(grid: Grid) -> str:
    """The least and the largest real number that can be stored."""
    qmin, qmax = integer_range(grid.dtype, symmetric=False)
    scale, zero = grid.scale.ravel().astype(np.float64), _spread(grid).astype(np.float64)
    return f"{((qmin - zero) * scale).min():g} to {((qmax - zero) * scale).max():g}"


def _text(number: np.generic) -> str:
    """The shortest decimal that reads back as the same float32; integers without a point."""
    value = float(number)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(np.float32(value))


def grid_text(encoding: Encoding) -> str:
    """``int8, scale 2^-4, zero point 0``; of many scales their count and their extremes."""
    scale, zero = np.array(encoding.scale, np.float32), np.array(encoding.zero_point, np.float32)
    return str(
        Grid(
            dtype=encoding.dtype, scale=scale, zero_point=zero, axis=encoding.axis, block_size=encoding.block_size,
        )
    )  # fmt: skip


def change_in_words(old: Encoding, new: Encoding) -> str:
    """``int8, scale 2^-4, zero point 0 → int16, scale 2^-12, zero point 0``."""
    return f"{grid_text(old)} → {grid_text(new)}"
