"""What a layer multiplies its weight with: of its data X, the vectors x of `qdq_passes.numerics.layer_form`, in strips.

A patch of a convolution with kernel k, dilation d, stride s and padding p at output position o is x[o·s − p + t·d], t =
0…k−1. Output position o of a transposed convolution takes from tap t the input (o + p − t·d)/s, where that is a whole number
inside the data: that is a patch of stride 1, read backwards, of the data with s − 1 zeros between neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.layer_form import LayerForm

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
