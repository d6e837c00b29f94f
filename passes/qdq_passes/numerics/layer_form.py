"""Layers as matrices: y = W·x + b in each of G groups, W [G, R, K] of R outputs and K inputs.

    Conv            W [M, C/g, k…]     G = g, R = M/g, K = C/g·Πk; x is the patch under the kernel, zeros outside of the data
    ConvTranspose   W [C, M/g, k…]     likewise; where a stride leaves a tap without an input, x is 0 there Gemm, MatMul    W
    [K, N], [N, K]   G = 1, R = N; x is a row of X [.., M, K], or a column where W is the first operand MatMul          W [B…,
    K, N]       G = ΠB

A channel is what one number of an activation's channel axis scales: C of a convolution, K of a product. `LayerForm` knows how
the weight is laid out, not what is in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from qdq_passes.numerics.arrays import Array

#: A convolution, a transposed one, or a matrix product.
Kind = Literal["conv", "transposed", "product"]


@dataclass(frozen=True, kw_only=True)
class LayerForm:
    """How a layer multiplies.

    Args:
        kind: what it is.
        shape: shape of the weight.
        groups: groups of a convolution.
        strides: per spatial axis, like the four that follow; empty for products.
        dilations: distance of neighbouring taps.
        pads: begins, then ends.
        output_padding: rows added at the end of a transposed convolution's output.
        output_shape: sizes of a transposed convolution's output, instead of pads.
        auto_pad: ``NOTSET``, ``VALID``, ``SAME_UPPER`` or ``SAME_LOWER``.
        turned: a product's weight is [.., R, K], not [.., K, R].
        across: a product's data is [.., K, N], its columns are the samples.
        is_first: the weight is a product's first operand: outputs lie along the last axis but one.
        factor: what the product is multiplied by (alpha of Gemm).
    """

    kind: Kind
    shape: tuple[int, ...]
    groups: int = 1
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"
    turned: bool = False
    across: bool = False
    is_first: bool = False
    factor: float = 1.0

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps per spatial axis; empty for products."""
        return () if self.kind == "product" else self.shape[2:]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(G, R, K)."""
        taps = math.prod(self.kernel)
        if self.kind == "conv":
            return self.groups, self.shape[0] // self.groups, self.shape[1] * taps
        if self.kind == "transposed":
            return self.groups, self.shape[1], self.shape[0] // self.groups * taps
        if len(self.shape) == 1:
            return 1, 1, self.shape[0]
        outputs, inputs = self.shape[-2:] if self.turned else self.shape[:-3:-1]
        return math.prod(self.shape[:-2]), outputs, inputs

    @property
    def channels(self) -> tuple[int, int]:
        """(output channels, input channels)."""
        if self.kind == "conv":
            return self.shape[0], self.shape[1] * self.groups
        if self.kind == "transposed":
            return self.shape[1] * self.groups, self.shape[0]
        return self.sizes[1:]

    def data_axis(self, rank: int) -> int:
        """The channel axis of the data, which has ``rank`` dimensions."""
        if self.kind != "product":
            return 1
        return rank - 2 if self.across and rank > 1 else rank - 1

    def output_axis(self, rank: int) -> int:
        """The channel axis of what it writes, which has ``rank`` dimensions."""
        if self.kind != "product":
            return 1
        return rank - 2 if self.is_first and rank > 1 else rank - 1

    def rows(self, weight: Array) -> Array:
        """``weight`` as [G, R, K]; a view where it can be one."""
        if self.kind == "conv":
            return weight.reshape(self.sizes)
        if self.kind == "transposed":
            split = weight.reshape(self.groups, self.shape[0] // self.groups, self.shape[1], -1)
            return np.moveaxis(split, 2, 1).reshape(self.sizes)
        if weight.ndim == 1:
            return weight.reshape(self.sizes)
        return (weight if self.turned else np.swapaxes(weight, -1, -2)).reshape(self.sizes)

    def weight(self, rows: Array) -> Array:
        """The weight whose `rows` are ``rows``, contiguous."""
        if self.kind == "conv" or len(self.shape) == 1:
            laid = rows.reshape(self.shape)
        elif self.kind == "transposed":
            split = rows.reshape(self.groups, self.shape[1], self.shape[0] // self.groups, -1)
            laid = np.moveaxis(split, 1, 2).reshape(self.shape)
        elif self.turned:
            laid = rows.reshape(self.shape)
        else:
            laid = np.swapaxes(rows.reshape(*self.shape[:-2], self.shape[-1], self.shape[-2]), -1, -2)
        return np.ascontiguousarray(laid)

    def along_inputs(self, factor: Array) -> Array:
        """``factor`` [input channels] shaped to multiply the weight."""
        if self.kind == "conv":
            rows = np.repeat(factor.reshape(self.groups, -1), self.shape[0] // self.groups, axis=0)
            return rows.reshape(*rows.shape, *[1] * len(self.kernel))
        if self.kind == "transposed":
            return factor.reshape(-1, *[1] * (len(self.shape) - 1))
        return factor if self.turned or len(self.shape) == 1 else factor.reshape(-1, 1)

    def along_outputs(self, factor: Array) -> Array:
        """``factor`` [output channels] shaped to multiply the weight."""
        if self.kind == "conv":
            return factor.reshape(-1, *[1] * (len(self.shape) - 1))
        if self.kind == "transposed":
            rows = np.repeat(factor.reshape(self.groups, -1), self.shape[0] // self.groups, axis=0)
            return rows.reshape(*rows.shape, *[1] * len(self.kernel))
        if len(self.shape) == 1:
            return factor.reshape(())
        return factor.reshape(-1, 1) if self.turned else factor

    def magnitudes(self, weight: Array) -> npt.NDArray[np.float64]:
        """Largest |w| between each output and each input channel of a group: [groups, outputs/groups, inputs/groups]."""
        groups, outputs, _ = self.sizes if self.kind != "product" else (1, self.sizes[1], 0)
        rows = np.abs(self.rows(weight)).astype(np.float64)
        if self.kind == "product":
            return np.asarray(rows.max(axis=0, keepdims=True, initial=0.0))
        return np.asarray(rows.reshape(groups, outputs, self.channels[1] // groups, -1).max(axis=3, initial=0.0))
