"""Padding that operators leave to ``auto_pad`` or ``output_shape``, in elements before and behind each spatial axis.

With input size i, stride s, dilation d, kernel k = d·(kernel − 1) + 1:

    SAME (Conv, pools)   total = max((⌈i/s⌉ − 1)·s + k − i, 0), the odd one behind for SAME_UPPER, before for SAME_LOWER
    VALID                total = 0
    ConvTranspose        total = s·(i − 1) + output_padding + k − o, o = s·i for SAME, else output_shape; the odd one behind
                         for SAME_UPPER, before otherwise

Source: ONNX's operator pages, checked against onnxruntime 1.31 on every combination of small sizes."""

from __future__ import annotations

from collections.abc import Sequence


def extent(kernel: int, dilation: int) -> int:
    """Elements from the first to the last that a kernel of ``kernel`` taps touches."""
    return dilation * (kernel - 1) + 1


def same_total(size: int | None, kernel: int, stride: int, dilation: int) -> int | None:
    """Padding of SAME in all along one axis, below 0 where a stride leaves elements out; None where an unknown size decides."""
    if stride == 1:
        return extent(kernel, dilation) - 1
    return None if size is None else (-(-size // stride) - 1) * stride + extent(kernel, dilation) - size


def transposed_total(size: int, kernel: int, stride: int, dilation: int, output_padding: int, wanted: int) -> int:
    """Padding in all along one axis of a ConvTranspose that writes ``wanted`` elements; below 0 where there are not as many."""
    return stride * (size - 1) + output_padding + extent(kernel, dilation) - wanted


def split_evenly(totals: Sequence[int], *, odd_behind: bool) -> list[int]:
    """Totals per axis as the attribute ``pads``: all that stand before, then all behind.

    >>> split_evenly([3, 2], odd_behind=True), split_evenly([3, 2], odd_behind=False)
    ([1, 1, 2, 1], [2, 1, 1, 1])
    """
    before = [total // 2 if odd_behind else total - total // 2 for total in totals]
    return [*before, *(total - first for total, first in zip(totals, before, strict=True))]
