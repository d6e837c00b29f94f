"""Encodings of the tensors of a model, whatever file they come from: one entry per tensor name."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.numerics.encoding import Encoding

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Role = Literal["activation", "param"]


@dataclass(frozen=True)
class Float:
    """The tensor stays float, as ``dtype``: float16, bfloat16 or float32."""

    dtype: ir.DataType


@dataclass(frozen=True, kw_only=True)
class Unplaced:
    """Scales per channel, or per channel and block, from a file that does not say along which axis.

    Args:
        dtype: storage type.
        scale: one per channel; with blocks channel-major, C order.
        zero_point: as many.
        block_size: elements per block; 0 without blocks.
    """

    dtype: ir.DataType
    scale: tuple[float, ...]
    zero_point: tuple[int | float, ...]
    block_size: int = 0


@dataclass(frozen=True, kw_only=True)
class Lpbq:
    """Low power blockwise quantization: the scale of a block is a small integer times the scale of its channel.

    Args:
        dtype: storage type of the integers, the compressed one (int4).
        bits: bits of the integers on the channel's own grid, the decompressed ones (8).
        channel_scale: float scale per channel.
        block_scale: integer factor per block, C order of ``shape``; channel-major while that is unknown.
        block_size: elements per block.
        shape: shape of the factors; empty while it is unknown (see `Unplaced`).
        axis: axis the blocks run along; None while it is unknown.
    """

    dtype: ir.DataType
    bits: int
    channel_scale: tuple[float, ...]
    block_scale: tuple[int, ...]
    block_size: int
    shape: tuple[int, ...] = ()
    axis: int | None = None

    def __post_init__(self) -> None:
        if not self.channel_scale or len(self.block_scale) % len(self.channel_scale):
            raise ModelError(f"{len(self.block_scale)} block scales for {len(self.channel_scale)} channels")
        if self.axis is not None:
            if math.prod(self.shape) != len(self.block_scale) or not -len(self.shape) <= self.axis < len(self.shape):
                raise ModelError(f"{len(self.block_scale)} block scales for shape {list(self.shape)}, axis {self.axis}")
            if len(self.block_scale) != len(self.channel_scale) * self.shape[self.axis]:
                raise ModelError(f"{len(self.channel_scale)} channel scales for shape {list(self.shape)}")

    @property
    def encoding(self) -> Encoding:
        """The blocked encoding it amounts to; each scale is rounded to float32 once, as a DequantizeLinear of the factors would.

        Raises:
            ModelError: the axis is not known yet.
        """
        if self.axis is None:
            raise ModelError("the axis of its blocks is not known")
        channels = tuple(1 if i == self.axis % len(self.shape) else d for i, d in enumerate(self.shape))
        channel = np.array(self.channel_scale, np.float32).reshape(channels)
        scale = channel * np.array(self.block_scale, np.float32).reshape(self.shape)
        return Encoding(
            dtype=self.dtype,
            scale=tuple(scale.astype(np.float64).ravel().tolist()),
            zero_point=(0,) * scale.size,
            shape=self.shape,
            axis=self.axis,
            block_size=self.block_size,
        )


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a file asks of an encoding without giving the scale.

    Args:
        dtype: storage type, None for the reader's default.
        symmetric: zero point 0 (or the middle); None for the reader's default.
        reduce_range: leave out the outer half of the grid's range.
        low: smallest real value per channel; empty when the range is to be observed.
        high: largest, as many.
        axis: axis of the channels, None per-tensor.
    """

    dtype: ir.DataType | None = None
    symmetric: bool | None = None
    reduce_range: bool | None = None
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    axis: int | None = None


@dataclass(frozen=True, kw_only=True)
class Convert:
    """The tensor is quantized once more behind its first pair, for some of its readers.

    Args:
        holds: the second encoding.
        readers: names of the nodes that read it; None for all.
    """

    holds: Encoding | Wish
    readers: tuple[str, ...] | None = None


Content = Encoding | Lpbq | Unplaced | Wish | Float


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a file says of one tensor.

    Args:
        name: name of the tensor.
        holds: its encoding, in whichever form.
        role: section of the file it stood in; None where there is only one.
        convert: a second encoding for some readers.
        extra: fields that are not known here, kept for the writer.
        raw: the entry as it stood in the file, so that writing the same format gives it back.
    """

    name: str
    holds: Content
    role: Role | None = None
    convert: Convert | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)
    raw: Json = None


@dataclass(frozen=True, kw_only=True)
class Encodings:
    """The contents of an encodings file.

    Args:
        format: name of the format it was read from, or is made for.
        entries: one per tensor, in the order of the file.
        extra: top-level fields that are not known here.
        hints: what only qdqtool writes and reads: see `qdqtool.encodings.hints`.
    """

    format: str
    entries: tuple[Entry, ...]
    extra: Mapping[str, Json] = field(default_factory=dict)
    hints: Mapping[str, Json] = field(default_factory=dict)

    @functools.cached_property
    def by_name(self) -> dict[str, Entry]:
        """Entries by tensor name."""
        return {entry.name: entry for entry in self.entries}
