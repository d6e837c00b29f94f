"""Tensors computed from a float weight in a file while they are written: integers, and the scales of blocks.

A model of any size is quantized in the memory of a piece so. As a whole (`numpy`, `tobytes`) they are computed at every look."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from qdq_passes.numerics.arrays import Array, Numbers
from qdq_passes.numerics.blocks import BlockedWeight
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.mapped import is_large_file, mapped, spans
from qdq_passes.numerics.quantize import quantize

Pieces = Callable[[], Iterator[Array]]


class StreamedTensor(ir.LazyTensor):
    """A tensor that comes in flat pieces, in C order.

    Args:
        pieces: gives them, computed anew at each call.
        dtype: element type.
        shape: shape of the whole.
        name: name.
    """

    def __init__(self, pieces: Pieces, dtype: ir.DataType, shape: tuple[int, ...], name: str) -> None:
        super().__init__(self._whole, dtype, ir.Shape(shape), name=name)
        self._pieces = pieces

    def _whole(self) -> ir.TensorProtocol:
        flat = np.empty(self.size, self.dtype.numpy())
        start = 0
        for piece in self._pieces():
            flat[start : start + piece.size] = piece
            start += piece.size
        return ir.tensor(flat.reshape(self.shape.numpy()), dtype=self.dtype, name=self.name)

    def chunks(self) -> Iterator[memoryview]:
        """The raw bytes as a file has them, one piece after the other; two elements of 4 bits are one byte, the first one low."""
        if self.dtype.bitwidth >= 8:
            for piece in self._pieces():
                little = piece.astype(self.dtype.numpy().newbyteorder("<"), copy=False)
                yield np.ascontiguousarray(little).view(np.uint8).data
            return
        per_byte = 8 // self.dtype.bitwidth
        left = np.empty(0, np.uint8)
        for piece in self._pieces():
            bits = np.concatenate([left, piece.astype(np.int8, copy=False).view(np.uint8)])
            whole = bits.size // per_byte * per_byte
            left = bits[whole:]
            yield _packed(bits[:whole], self.dtype.bitwidth).data
        if left.size:
            yield _packed(np.append(left, np.zeros(-left.size % per_byte, np.uint8)), self.dtype.bitwidth).data


def _packed(bits: Array, width: int) -> Array:
    per_byte, mask = 8 // width, np.uint8((1 << width) - 1)
    packed = bits[::per_byte] & mask
    for place in range(1, per_byte):
        packed |= (bits[place::per_byte] & mask) << np.uint8(place * width)
    return packed


def streamed_integers(
    tensor: ir.TensorProtocol | None, encoding: Encoding, name: str, *, narrow: bool = False
) -> StreamedTensor | None:
    """The integers of ``tensor`` in ``encoding``, computed when they are written; None unless it lies in a large file.

    ``narrow`` leaves out the most negative integer, see `quantize`.
    """
    if tensor is None or not is_large_file(tensor):
        return None
    weight = blocked_weight(tensor, encoding)
    if encoding.block_size and (weight is None or narrow):
        return None
    pieces = _of_axis(tensor, encoding, narrow=narrow) if weight is None else _of_blocks(weight)
    return StreamedTensor(pieces, encoding.dtype, tuple(tensor.shape.numpy()), name)


def blocked_weight(tensor: ir.TensorProtocol | None, encoding: Encoding) -> BlockedWeight | None:
    """What computes the blocked ``encoding`` of ``tensor``, where it is not computed yet."""
    source = encoding.scale.source if isinstance(encoding.scale, Numbers) else None
    return source if isinstance(source, BlockedWeight) and source.tensor is tensor else None


def streamed_scales(weight: BlockedWeight, dtype: ir.DataType, name: str) -> StreamedTensor:
    """The scales of ``weight`` in the float type ``dtype``."""

    def pieces() -> Iterator[Array]:
        for scales, _ in weight.pieces(integers=False):
            yield scales.astype(dtype.numpy())

    return StreamedTensor(pieces, dtype, weight.scale_shape, name)


def streamed_zeros(encoding: Encoding, name: str) -> StreamedTensor:
    """The zero points of a symmetric ``encoding`` with many scales."""

    def pieces() -> Iterator[Array]:
        left = math.prod(encoding.shape)
        zeros = np.zeros(min(left, 1 << 20), np.int8)
        while left:
            yield zeros[:left]
            left -= min(left, zeros.size)

    return StreamedTensor(pieces, encoding.dtype, encoding.shape, name)


def _of_blocks(weight: BlockedWeight) -> Pieces:
    def pieces() -> Iterator[Array]:
        for _, integers in weight.pieces():
            assert integers is not None
            yield integers

    return pieces


def _of_axis(tensor: ir.TensorProtocol, encoding: Encoding, *, narrow: bool) -> Pieces:
    """Pieces of the integers of a per-tensor or per-axis ``encoding``: seen as [outer, channels, inner]."""
    shape = tuple(tensor.shape.numpy())
    axis = None if encoding.axis is None else encoding.axis % len(shape)
    outer, count, inner = 1, 1, math.prod(shape)
    if axis is not None:
        outer, count, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def pieces() -> Iterator[Array]:
        cuts = spans(outer, count, inner) if axis is not None else spans(math.prod(shape), 1, 1)
        with mapped(tensor) as (flat, let_go):
            for (start, stop), (first, last) in cuts:
                part, of_part = flat[start:stop], encoding
                if axis is not None:
                    part = part.reshape(-1, last - first, inner)
                    of_part = dataclasses.replace(
                        encoding, scale=encoding.scale[first:last], zero_point=encoding.zero_point[first:last],
                        shape=(last - first,), axis=1,
                    )  # fmt: skip
                made = quantize(part, of_part, symmetric_range=narrow)
                let_go(start, stop)
                yield made.reshape(-1)

    return pieces
