"""The windows of convolutions and pools in the reference: what an output reads, and where an input of a ConvTranspose writes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.reductions import extent, same_total, split_evenly, transposed_total
from qdq_passes.npu.reference.values import NotRepresentable
from qdq_passes.numerics.arrays import Array


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window over the spatial axes of [N, C, spatial…].

    Args:
        kernel: elements per axis.
        strides: likewise.
        dilations: likewise.
        before: padding before each axis.
        behind: padding behind.
        output: size of the output per axis.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]
    output: tuple[int, ...]

    def taps(self, x: Array, fill: float) -> Iterator[tuple[tuple[int, ...], Array]]:
        """For each place in the kernel what the outputs read there, [N, C, output…]; ``fill`` where it is padding."""
        reach = [s * (o - 1) + extent(k, d) for s, o, k, d in self._axes()]
        behind = [max(r - b - n, 0) for r, b, n in zip(reach, self.before, x.shape[2:], strict=True)]
        around = [(0, 0), (0, 0), *zip(self.before, behind, strict=True)]
        padded = np.pad(x, around, constant_values=fill)
        for place in itertools.product(*map(range, self.kernel)):
            first = [i * d for i, d in zip(place, self.dilations, strict=True)]
            steps = zip(first, self.output, self.strides, strict=True)
            yield place, padded[last(slice(f, f + s * (o - 1) + 1, s) for f, o, s in steps)]

    def _axes(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self.strides, self.output, self.kernel, self.dilations, strict=True)


def window_of(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a Conv or pool over spatial ``sizes``.

    In ceil_mode an output starts inside of the data or the padding before it, as onnxruntime has it since 1.18.
    """
    kernel = node.attributes.get_ints("kernel_shape") or kernel
    strides, dilations = (node.attributes.get_ints(name) or [1] * len(kernel) for name in ("strides", "dilations"))
    extents = [extent(k, d) for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    pads = (
        list(node.attributes.get_ints("pads") or [0] * 2 * len(kernel)) if auto == "NOTSET" else [0] * 2 * len(kernel)
    )
    if auto.startswith("SAME"):
        totals = [max(same_total(*axis) or 0, 0) for axis in zip(sizes, kernel, strides, dilations, strict=True)]
        pads = split_evenly(totals, odd_behind=auto == "SAME_UPPER")
    before, behind = pads[: len(kernel)], pads[len(kernel) :]
    output = []
    for size, first, last, stride, reach in zip(sizes, before, behind, strides, extents, strict=True):
        room = size + first + last - reach
        count = room // stride + 1
        if node.attributes.get_int("ceil_mode", 0) and room % stride and count * stride < size + first:
            count += 1
        output.append(count)
    return Window(
        kernel=tuple(kernel), strides=tuple(strides), dilations=tuple(dilations), before=tuple(before), behind=tuple(behind),
        output=tuple(output),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Where the elements of an input [N, C, spatial…] go in the output of a ConvTranspose.

    Args:
        kernel: elements per axis.
        strides: likewise.
        dilations: likewise.
        sizes: of the input.
        full: of the output before its padding is cut off.
        kept: an index of what is left.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    sizes: tuple[int, ...]
    full: tuple[int, ...]
    kept: tuple[Any, ...]

    def places(self) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        """For each place in the kernel, in its order, an index of the elements of the full output that it writes."""
        for place in itertools.product(*map(range, self.kernel)):
            first = [i * d for i, d in zip(place, self.dilations, strict=True)]
            steps = zip(first, self.sizes, self.strides, strict=True)
            yield place, last(slice(f, f + s * (n - 1) + 1, s) for f, n, s in steps)


def spread_of(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> Spread:
    """How a ConvTranspose spreads spatial ``sizes``.

    Raises:
        NotRepresentable: it writes more than its windows reach.
    """
    strides, dilations = (node.attributes.get_ints(name) or [1] * len(kernel) for name in ("strides", "dilations"))
    more = node.attributes.get_ints("output_padding") or [0] * len(kernel)
    steps = list(zip(sizes, kernel, strides, dilations, more, strict=True))
    before, behind = _transposed_pads(node, steps)
    full = tuple(transposed_total(*step, 0) for step in steps)
    return Spread(
        kernel=tuple(kernel), strides=tuple(strides), dilations=tuple(dilations), sizes=tuple(sizes), full=full,
        kept=last(slice(b, n - e) for b, n, e in zip(before, full, behind, strict=True)),
    )  # fmt: skip


def _transposed_pads(node: ir.Node, steps: Sequence[tuple[int, int, int, int, int]]) -> tuple[list[int], list[int]]:
    """Padding before and behind each axis of a ConvTranspose; ``steps``: size, kernel, stride, dilation, output padding."""
    auto, wanted = node.attributes.get_string("auto_pad", "NOTSET"), node.attributes.get_ints("output_shape")
    if not wanted and not auto.startswith("SAME"):
        pads = list(node.attributes.get_ints("pads") or []) if auto == "NOTSET" else []
        pads = pads or [0] * 2 * len(steps)
    else:
        ends = list(wanted[-len(steps) :]) if wanted else [size * stride for size, _, stride, _, _ in steps]
        totals = [transposed_total(*step, end) for step, end in zip(steps, ends, strict=True)]
        if min(totals) < 0:
            raise NotRepresentable("it writes more elements than its windows reach, of which runtimes do not agree")
        pads = split_evenly(totals, odd_behind=auto == "SAME_UPPER")
    return pads[: len(steps)], pads[len(steps) :]


def last(indices: Iterable[Any]) -> tuple[Any, ...]:
    """An index of the last axes."""
    return (..., *indices)
