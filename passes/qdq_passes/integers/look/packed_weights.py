"""Weights that com.microsoft operators hold as packed bits with a scale per block: MatMulNBits and GatherBlockQuantized.

MatMulNBits: B [N, ceil(K / block), block·bits / 8] uint8, scales [N, ceil(K / block)], low bits first; w = (q − z)·s with z
packed alike, given as floats, or 2^(bits−1). GatherBlockQuantized: uint8 data packed along its last axis, or int4/uint4.
Source: onnxruntime's ContribOperators.md, and its CPU kernels run on every combination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qoperators import MICROSOFT
from qdq_passes.graph.uses import constant_array, dtype_of, input_at, integer_of, known_array
from qdq_passes.numerics.encoding import Encoding, integer_range

#: Bits per integer that are packed without a remainder.
BITS = (2, 4, 8)


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight as it is meant: integers [K, N] (or of the table's shape) and the parameters of their blocks.

    Args:
        stored: the value that holds the packed bits.
        shape: shape of the integers.
        unpacked: makes the unsigned integers; they are large, and who lists weights does not need them.
        turned: whether a block counts from the other end of the range; None when none does.
        empty: whether a block has the scale 0, so that its integers do not matter; None when none has.
        scales: one per block, of the rank of the integers, positive: where they were not (onnxruntime's quantizer makes such),
            integers and zero points are counted from the other end of their range, (q − z)·s = (z − q)·−s.
        zero_points: one per block, integers or floats.
        axis: axis of the blocks.
        block_size: elements of the axis per scale.
        bits: bits per integer.
        signed: whether the integers are signed: where all zero points were 2^(bits−1), which is taken off.
    """

    stored: ir.Value
    shape: tuple[int, ...]
    unpacked: Callable[[], npt.NDArray[Any]]
    turned: npt.NDArray[Any] | None
    empty: npt.NDArray[Any] | None
    scales: npt.NDArray[Any]
    zero_points: npt.NDArray[Any]
    axis: int
    block_size: int
    bits: int
    signed: bool

    def integers(self) -> npt.NDArray[Any]:
        """The integers, unpacked, of type uint8 or int8."""
        integers, middle = self.unpacked(), 2 ** (self.bits - 1)
        if self.turned is not None:
            each = _expand(self.turned, self.shape, self.axis, self.block_size)
            integers = np.where(each, 2**self.bits - 1 - integers, integers).astype(np.uint8)
        if self.empty is not None:
            integers = np.where(_expand(self.empty, self.shape, self.axis, self.block_size), middle, integers)
        return (integers.astype(np.int16) - middle).astype(np.int8) if self.signed else integers

    @property
    def has_integer_zero_points(self) -> bool:
        """Whether DequantizeLinear can hold the zero points: they are integers within the range of the type."""
        low, high = integer_range(self.dtype, symmetric=False)
        numbers = self.zero_points.astype(np.float64)
        return bool(((numbers == np.rint(numbers)) & (numbers >= low) & (numbers <= high)).all())

    @property
    def dtype(self) -> ir.DataType:
        """Type of the integers: int4, uint4…"""
        return ir.DataType[f"{'INT' if self.signed else 'UINT'}{self.bits}"]

    @property
    def encoding(self) -> Encoding:
        """The encoding of the integers: scales of shape [ceil(K / block), N] along axis 0 for a MatMulNBits."""
        zero_points = self.zero_points.astype(np.float64).ravel().tolist()
        return Encoding(
            dtype=self.dtype,
            scale=tuple(self.scales.astype(np.float64).ravel().tolist()),
            zero_point=tuple(int(z) if z.is_integer() else z for z in zero_points),
            shape=self.scales.shape,
            axis=self.axis,
            block_size=self.block_size,
        )

    def dequantized(self) -> npt.NDArray[Any]:
        """The float weight, of the scales' type; each (q − z)·s is rounded once, to float32 before a shorter type."""
        wide = np.float64 if self.scales.dtype == np.float64 else np.float32
        scales, zero_points = (
            _expand(a.astype(wide), self.shape, self.axis, self.block_size) for a in (self.scales, self.zero_points)
        )
        real: npt.NDArray[Any] = ((self.integers().astype(wide) - zero_points) * scales).astype(self.scales.dtype)
        return real


def is_packed(node: ir.Node) -> bool:
    """Whether ``node`` is a MatMulNBits or a GatherBlockQuantized."""
    return node.domain == MICROSOFT and node.op_type in ("MatMulNBits", "GatherBlockQuantized")


def packed_weight(node: ir.Node) -> PackedWeight | str:
    """The weight of a MatMulNBits or a GatherBlockQuantized, or the reason why it cannot be told."""
    index = 1 if node.op_type == "MatMulNBits" else 0
    data, scales = input_at(node, index), input_at(node, 2)
    zero_points = input_at(node, 3)
    if data is None or scales is None or constant_array(data) is None or constant_array(scales) is None:
        return "its weight or scales are not constant"
    if zero_points is not None and constant_array(zero_points) is None:
        return "its zero points are not constant"
    return _matmul(node, data) if index else _table(node, data)


def _matmul(node: ir.Node, data: ir.Value) -> PackedWeight | str:
    k, n, block = (integer_of(node, name, 0) for name in ("K", "N", "block_size"))
    groups = input_at(node, 4)
    order = constant_array(groups)
    if groups is not None and (order is None or not np.array_equal(order.ravel(), np.arange(k) // max(block, 1))):
        return "its rows are reordered by g_idx"
    bits = integer_of(node, "bits", 4)
    if integer_of(node, "weight_prepacked", 0):
        return "its weight is packed in the layout of one device"
    if bits not in BITS:
        return f"{bits} bits are not packed in whole bytes"
    packed, scales = known_array(data), known_array(node.inputs[2])
    blocks = -(-k // max(block, 1))
    if not block or packed.size != n * blocks * block * bits // 8 or scales.size != n * blocks:
        return f"its weight of shape {list(packed.shape)} is not what K={k}, N={n}, block_size={block} say"
    given_points = input_at(node, 3)
    zero_points = np.full((n, blocks), 2 ** (bits - 1)) if given_points is None else known_array(given_points)
    if given_points is not None and zero_points.dtype == np.uint8 and zero_points.size == n * -(-blocks * bits // 8):
        zero_points = unpack(zero_points.reshape(n, -1), bits)[:, :blocks]
    if zero_points.size != n * blocks:
        return f"its zero points of shape {list(zero_points.shape)} are not {blocks} for each of N={n} columns"
    zero_points = np.ascontiguousarray(zero_points.reshape(n, blocks).T)
    scales = np.ascontiguousarray(scales.reshape(n, blocks).T)

    def unpacked() -> npt.NDArray[Any]:
        return np.ascontiguousarray(unpack(packed.reshape(n, -1), bits)[:, :k].T)

    return _normal(data, (k, n), unpacked, scales, zero_points, 0, block, bits)


def _normal(
    stored: ir.Value,
    shape: tuple[int, ...],
    unpacked: Callable[[], npt.NDArray[Any]],
    scales: npt.NDArray[Any],
    zero_points: npt.NDArray[Any],
    axis: int,
    block: int,
    bits: int,
) -> PackedWeight:
    """The weight of unsigned integers: with positive scales, and with signed integers where zero points are 2^(bits−1)."""
    highest, middle = 2**bits - 1, 2 ** (bits - 1)
    turned, empty = scales < 0, scales == 0
    if turned.any() or empty.any():
        zero_points = np.where(empty, middle, np.where(turned, highest - zero_points, zero_points))
        scales = np.where(empty, np.ones_like(scales), np.abs(scales))
    signed = bool((zero_points == middle).all())
    return PackedWeight(
        stored=stored, shape=shape, unpacked=unpacked, turned=turned if turned.any() else None,
        empty=empty if empty.any() else None, scales=scales, axis=axis, block_size=block, bits=bits, signed=signed,
        zero_points=np.zeros_like(zero_points) if signed else zero_points,
    )  # fmt: skip


def _expand(of_blocks: npt.NDArray[Any], shape: tuple[int, ...], axis: int, block: int) -> npt.NDArray[Any]:
    """What holds for blocks, for each element of ``shape``."""
    return np.take(np.repeat(of_blocks, block, axis=axis), range(shape[axis]), axis=axis)


def _table(node: ir.Node, data: ir.Value) -> PackedWeight | str:
    bits, block = integer_of(node, "bits", 4), integer_of(node, "block_size", 128)
    array, scales, dtype = known_array(data), known_array(node.inputs[2]), dtype_of(data)
    points = input_at(node, 3)
    zero_points = known_array(points) if points is not None else None
    if dtype not in (ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4):
        return f"its table is {'of unknown type' if dtype is None else dtype.name.lower()}"
    if dtype == ir.DataType.UINT8:
        if bits not in BITS:
            return f"{bits} bits are not packed in whole bytes"
        array, default = unpack(array, bits), 2 ** (bits - 1)
        zero_points = unpack(zero_points, bits)[..., : scales.shape[-1]] if zero_points is not None else None
    else:
        bits, shift = 4, 8 if dtype == ir.DataType.INT4 else 0
        array, default = (array.astype(np.int16) + shift).astype(np.uint8), shift
        zero_points = zero_points.astype(np.int16) + shift if zero_points is not None else None
    axis = integer_of(node, "quantize_axis", 1) % max(array.ndim, 1)
    wanted = tuple(-(-d // block) if i == axis else d for i, d in enumerate(array.shape))
    if scales.shape != wanted:
        return f"its scales have shape {list(scales.shape)} where blocks of {block} on axis {axis} need {list(wanted)}"
    zero_points = np.full(wanted, default) if zero_points is None else zero_points.astype(np.int64).reshape(wanted)
    return _normal(data, array.shape, lambda: array, scales, zero_points, axis, block, bits)


def unpack(packed: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """Integers [..., 8 / bits · n] of packed bytes [..., n], low bits first."""
    if bits == 8:
        return packed.astype(np.uint8, copy=False)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8(2**bits - 1)
    return spread.reshape(*packed.shape[:-1], -1)
