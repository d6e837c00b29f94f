"""Symmetric integers with a scale per block of an axis, computed a piece at a time.

A weight w of shape [D0 … Dn], seen as [outer, K, inner] with K the axis of the blocks, has scales [outer, ⌈K/B⌉, inner]: block i
are the K-indices iB … (i+1)B − 1, fewer in the last one. In a block, with the integers −2^(b−1) … 2^(b−1) − 1 of b bits:

    range          s = max|w| / (2^(b−1) − 1)
    least squares  s = max|w| / 2^(b−1), then twice q = clip(round(w / s)), s = Σ w·q / Σ q²

Least squares uses all integers, −8 too, and gives up some of the largest weight for a finer grid. Measured on the trained llama
of sample_models, blocks of 32, perplexity 8.24: int4 by range 8.86, by least squares 8.75 (128: 8.95 and 8.84); the search of the
best of 17 divisors has 0.4 dB less noise and no better perplexity (8.81)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array, Numbers
from qdq_passes.numerics.encoding import FLOAT32_TINY, Encoding, integer_format, integer_range
from qdq_passes.numerics.granularity import Granularity
from qdq_passes.numerics.mapped import is_large_file, mapped, spans

#: Elements that are worked on together, so that temporaries stay in the cache.
TILE = 1 << 16
#: Rounds of least squares; a third changes the noise by less than 0.1 dB.
ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class BlockRule:
    """How blocks are encoded.

    Args:
        dtype: signed storage type.
        block_size: elements per scale.
        fitted: scales of least squares instead of the range.
        smallest: smallest scale.
        empty: scale of a block that is 0 everywhere.
    """

    dtype: ir.DataType
    block_size: int
    fitted: bool = False
    smallest: float = FLOAT32_TINY
    empty: float = 1.0

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UsageError(f"block size {self.block_size} is no number of elements", hint="for example 32 or 128")
        if not integer_format(self.dtype)[0]:
            raise UsageError(f"blocks are symmetric, {self.dtype.name.lower()} has no sign", hint="use int4 or int8")


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockedWeight:
    """A weight whose scales and integers are computed from its data when they are asked for.

    Args:
        tensor: the float weight, of rank 1 at least.
        axis: axis of the blocks, 0 … rank − 1.
        rule: how blocks are encoded.
    """

    tensor: ir.TensorProtocol
    axis: int
    rule: BlockRule

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return tuple(self.tensor.shape.numpy())

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """Shape of the scales, that of the weight with ⌈K/B⌉ for K."""
        return Granularity(self.axis, self.rule.block_size).scale_shape(self.shape)

    def encoding(self) -> Encoding:
        """The encoding; its scales stay uncomputed where the weight lies in a large file."""
        count = math.prod(self.scale_shape)
        is_later = is_large_file(self.tensor)
        scale = Numbers(count, self.scales, source=self) if is_later else Numbers.of(self.scales())
        return Encoding(
            dtype=self.rule.dtype,
            scale=scale,
            zero_point=Numbers.same(count, 0),
            shape=self.scale_shape,
            axis=self.axis,
            block_size=self.rule.block_size,
        )

    def scales(self) -> npt.NDArray[np.float32]:
        """All scales, flat, as float32: those numbers that the type of the weight holds."""
        found = np.empty(math.prod(self.scale_shape), np.float32)
        start = 0
        for scales, _ in self.pieces(integers=False):
            found[start : start + scales.size] = scales
            start += scales.size
        return found

    def pieces(self, *, integers: bool = True) -> Iterator[tuple[npt.NDArray[np.float32], Array | None]]:
        """(scales, integers) of one piece after the other, both flat and in C order; None instead of integers not asked for.

        Raises:
            ModelError: the file of the weight is gone.
        """
        shape, axis = self.shape, self.axis
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        with mapped(self.tensor) as (flat, let_go):
            for (start, stop), (first, last) in spans(outer, shape[axis], inner, step=self.rule.block_size):
                scales, made = _encode(flat[start:stop].reshape(-1, last - first, inner), self.rule, integers)
                let_go(start, stop)
                yield scales, made


def _encode(part: Array, rule: BlockRule, wanted: bool) -> tuple[Array, Array | None]:
    """Flat scales and integers of ``part`` [outer, K, inner]: of the whole blocks, and of the shorter one at the end."""
    outer, length, inner = part.shape
    whole = length // rule.block_size * rule.block_size
    found = [
        _encode_blocks(taken.reshape(outer, -1, size, inner), rule, wanted)
        for taken, size in ((part[:, :whole], rule.block_size), (part[:, whole:], length - whole))
        if taken.size
    ]
    scales = np.concatenate([each for each, _ in found], axis=1).reshape(-1)
    made = [each.reshape(outer, -1, inner) for _, each in found if each is not None]
    return scales, np.concatenate(made, axis=1).reshape(-1) if made else None


def _encode_blocks(blocks: Array, rule: BlockRule, wanted: bool) -> tuple[Array, Array | None]:
    """Scales [outer, blocks, inner] and integers of ``blocks`` [outer, blocks, B, inner]."""
    outer, count, size, inner = blocks.shape
    scales = np.empty((outer, count, inner), np.float32)
    integers = np.empty(blocks.shape, np.int8 if rule.dtype.bitwidth <= 8 else np.int16) if wanted else None
    if inner == 1:  # a block is contiguous: many are turned round, to lie side by side
        width = max(1, TILE // size)
        flat, flat_scales = blocks.reshape(-1, size), scales.reshape(-1)
        flat_integers = None if integers is None else integers.reshape(-1, size)
        for first in range(0, len(flat), width):
            rows = slice(first, first + width)
            found, made = _encode_tile(flat[rows].T[None], rule, wanted)
            flat_scales[rows] = found[0]
            if flat_integers is not None and made is not None:
                flat_integers[rows] = made[0].T
        return scales, integers
    width = min(inner, max(1, TILE // size))
    height = max(1, TILE // (size * width))
    for index, top, left in itertools.product(range(outer), range(0, count, height), range(0, inner, width)):
        down, across = slice(top, top + height), slice(left, left + width)
        scales[index, down, across], made = _encode_tile(blocks[index, down, :, across], rule, wanted)
        if integers is not None and made is not None:
            integers[index, down, :, across] = made
    return scales, integers


def _encode_tile(tile: Array, rule: BlockRule, wanted: bool) -> tuple[Array, Array | None]:
    """Scales [n, width] and, where wanted, integers [n, B, width] of ``tile`` [n, B, width]."""
    x = np.ascontiguousarray(tile, np.float32)
    qmin, qmax = integer_range(rule.dtype, symmetric=False)
    largest = np.maximum(x.max(axis=1), -x.min(axis=1))
    scale = np.where(largest > 0, largest / np.float32(-qmin if rule.fitted else qmax), np.float32(rule.empty))
    np.maximum(scale, np.float32(rule.smallest), out=scale)
    q, product = np.empty_like(x), np.empty_like(x)
    for _ in range(ROUNDS if rule.fitted else 0):
        _round(x, scale, qmin, qmax, q)
        with np.errstate(over="ignore"):  # weights near the end of float32: the scale stays that of the range
            above = np.multiply(x, q, out=product).sum(axis=1)
        below = np.multiply(q, q, out=product).sum(axis=1)
        np.divide(above, below, out=scale, where=(above > 0) & np.isfinite(above))
        np.maximum(scale, np.float32(rule.smallest), out=scale)
    scale = scale.astype(tile.dtype).astype(np.float32)
    if not wanted:
        return scale, None
    _round(x, scale, qmin, qmax, q)
    return scale, q.astype(np.int8 if rule.dtype.bitwidth <= 8 else np.int16)


def _round(x: Array, scale: Array, qmin: int, qmax: int, q: Array) -> None:
    """``q`` = clip(round(x / scale))."""
    np.divide(x, scale[:, None], out=q)
    np.rint(q, out=q)
    np.clip(q, qmin, qmax, out=q)
