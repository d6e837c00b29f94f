"""Layers as matrices: y = W·x + b in each of G groups, W [G, R, K] of R outputs and K inputs.

    Conv            W [M, C/g, k…]     G = g, R = M/g, K = C/g·Πk; x is the patch under the kernel, zeros outside of the data
    ConvTranspose   W [C, M/g, k…]     likewise; where a stride leaves a tap without an input, x is 0 there
    Gemm, MatMul    W [K, N], [N, K]   G = 1, R = N; x is a row of X [.., M, K], or a column where W is the first operand
    MatMul          W [B…, K, N]       G = ΠB

A channel is what one number of an activation's channel axis scales: C of a convolution, K of a product. `LayerForm` knows how
the weight is laid out, not what is in it.

The vectors x come from the data X in strips. A patch of a convolution with kernel k, dilation d, stride s and padding p at
output position o is x[o·s − p + t·d], t = 0…k−1. Output position o of a transposed convolution takes from tap t the input (o
+ p − t·d)/s, where that is a whole number inside the data: that is a patch of stride 1, read backwards, of the data with s −
1 zeros between neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from qdq_passes._lazy_dataclass import dataclass
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


#: Numbers in one strip: 16 MiB as float32.
STRIP = 1 << 22


def columns(form: LayerForm, data: Array, *, strip: int = STRIP) -> Iterator[Array]:
    """The vectors of ``data``, strip after strip as [G, n, K], contiguous; float64 of float64 data, else float32.

    Args:
        form: the layer.
        data: its input, as the operator takes it.
        strip: numbers in one strip at most, at least one row of a convolution's output.
    """
    if data.dtype not in (np.float32, np.float64):
        data = data.astype(np.float32)
    if form.kind == "product":
        yield from _of_product(form, data, strip)
    elif form.kind == "conv":
        begins, ends = _conv_pads(form, data.shape[2:])
        yield from _patches(form, data, begins, ends, form.strides, strip, backwards=False)
    else:
        spread, begins, ends = _spread(form, data)
        yield from _patches(form, spread, begins, ends, (1,) * len(form.kernel), strip, backwards=True)


def outputs(form: LayerForm, data: Array) -> Array:
    """What the layer writes, ``data``, as [G, n, R]: one row for each vector of `columns`, in their order."""
    groups, rows, _ = form.sizes
    if form.kind == "product":
        return np.ascontiguousarray((np.swapaxes(data, -1, -2) if form.is_first else data).reshape(groups, -1, rows))
    split = data.reshape(data.shape[0], groups, rows, -1)
    return np.ascontiguousarray(split.transpose(1, 0, 3, 2).reshape(groups, -1, rows))


def magnitudes(form: LayerForm, data: Array) -> npt.NDArray[np.float64]:
    """Largest |x| of each input channel of ``data``."""
    axis = form.data_axis(data.ndim)
    others = tuple(i for i in range(data.ndim) if i != axis)
    wide = data if data.dtype in (np.float32, np.float64) else data.astype(np.float32)
    return np.asarray(np.abs(wide).max(axis=others, initial=0.0), np.float64).reshape(-1)


def _of_product(form: LayerForm, data: Array, strip: int) -> Iterator[Array]:
    rows = data.reshape(1, -1) if data.ndim == 1 else np.swapaxes(data, -1, -2) if form.across else data
    batch, (groups, _, width) = form.shape[:-2], form.sizes
    if len(form.shape) > 2:
        full = np.broadcast_shapes(rows.shape[:-2], batch)
        rows = np.broadcast_to(rows, full + rows.shape[-2:])
        first = len(full) - len(batch)
        own = [first + i for i, size in enumerate(batch) if size > 1]
        rows = np.moveaxis(rows, own, range(len(own)))
    flat = rows.reshape(groups, -1, width)
    step = max(1, strip // max(groups * width, 1))
    for start in range(0, flat.shape[1], step):
        yield np.ascontiguousarray(flat[:, start : start + step])


def _patches(
    form: LayerForm,
    data: Array,
    begins: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int],
    strip: int,
    *,
    backwards: bool,
) -> Iterator[Array]:
    groups, _, width = form.sizes
    data = _padded(data, begins, ends)
    reach = [(k - 1) * d + 1 for k, d in zip(form.kernel, form.dilations, strict=True)]
    axes = tuple(range(2, data.ndim))
    if any(size < r for size, r in zip(data.shape[2:], reach, strict=True)):
        return
    windows = np.lib.stride_tricks.sliding_window_view(data, reach, axis=axes)  # [N, C, positions…, reach…]
    every = [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in form.dilations]
    windows = windows[(slice(None), slice(None), *every)]
    if backwards:
        windows = np.flip(windows, axis=tuple(range(-len(reach), 0)))
    images, count, spatial = windows.shape[0], windows.shape[1], len(reach)
    in_row = math.prod(windows.shape[3 : 2 + spatial]) * width * groups
    step = max(1, strip // max(in_row, 1))
    order = (1, *range(3, 3 + spatial), 2, *range(3 + spatial, 3 + 2 * spatial))
    for image in range(images):
        for start in range(0, windows.shape[2], step):
            part = windows[image : image + 1, :, start : start + step]
            split = part.reshape(1, groups, count // groups, *part.shape[2:])
            yield np.ascontiguousarray(split.transpose(0, *order).reshape(groups, -1, width))


def _padded(data: Array, begins: Sequence[int], ends: Sequence[int]) -> Array:
    """``data`` with zeros around it; what a negative padding names is cut off."""
    cut = [slice(max(-b, 0), n - max(-e, 0)) for n, b, e in zip(data.shape[2:], begins, ends, strict=True)]
    around = [(0, 0), (0, 0), *[(max(b, 0), max(e, 0)) for b, e in zip(begins, ends, strict=True)]]
    return np.pad(data[(slice(None), slice(None), *cut)], around)


def _conv_pads(form: LayerForm, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    spatial = len(sizes)
    if form.auto_pad in ("NOTSET", ""):
        return list(form.pads[:spatial]), list(form.pads[spatial:])
    if form.auto_pad == "VALID":
        return [0] * spatial, [0] * spatial
    totals = [
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, s, k, d in zip(sizes, form.strides, form.kernel, form.dilations, strict=True)
    ]
    return _halves(totals, more_at_end=form.auto_pad == "SAME_UPPER")


def _halves(totals: Sequence[int], *, more_at_end: bool) -> tuple[list[int], list[int]]:
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (less, more) if more_at_end else (more, less)


def _spread(form: LayerForm, data: Array) -> tuple[Array, list[int], list[int]]:
    """The data of a transposed convolution with zeros between neighbours, and its padding: before and behind."""
    sizes, spatial = data.shape[2:], len(form.kernel)
    spread = np.zeros(
        (*data.shape[:2], *[(n - 1) * s + 1 for n, s in zip(sizes, form.strides, strict=True)]), data.dtype
    )
    spread[(slice(None), slice(None), *[slice(None, None, s) for s in form.strides])] = data
    reach = [(k - 1) * d + 1 for k, d in zip(form.kernel, form.dilations, strict=True)]
    whole = [(n - 1) * s + r + o for n, s, r, o in zip(sizes, form.strides, reach, form.output_padding, strict=True)]
    if form.output_shape:
        wanted = list(form.output_shape[-spatial:])
    elif form.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(sizes, form.strides, strict=True)]
    else:
        wanted = []
    if wanted:
        totals = [w - o for w, o in zip(whole, wanted, strict=True)]
        begins, ends = _halves(totals, more_at_end=form.auto_pad == "SAME_UPPER")
    else:
        valid = form.auto_pad == "VALID"
        begins = [0] * spatial if valid else list(form.pads[:spatial])
        ends = [0] * spatial if valid else list(form.pads[spatial:])
    outputs = [w - b - e for w, b, e in zip(whole, begins, ends, strict=True)]
    before = [r - 1 - b for r, b in zip(reach, begins, strict=True)]
    behind = [o + r - 1 - n - b for o, r, n, b in zip(outputs, reach, spread.shape[2:], before, strict=True)]
    return spread, before, behind
