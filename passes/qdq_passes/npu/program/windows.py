"""Windows of convolutions and pools with every attribute written down."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.pads import AUTO_PAD, EXPLICIT
from qdq_passes.graph.operators.reductions import same_total, split_evenly, transposed_total
from qdq_passes.graph.uses import integer_of, integers_of, text_of
from qdq_passes.npu.program.operands import NotComputable, no_references, rank_of, sizes_of
from qdq_passes.npu.units.units import Operand

#: Spatial axes that kernels know: [N, C, L] and [N, C, H, W].
SPATIAL = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window over spatial axes; lists have an entry per axis, ``pads`` two (all fronts, then all backs).

    Args:
        kernel: elements of the window.
        strides: from one to the next.
        pads: elements of padding.
        dilations: from one element to the next.
        group: groups of channels; 1 for pools.
        output_padding: of a ConvTranspose.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1
    output_padding: tuple[int, ...] = ()

    def attributes(self) -> dict[str, int | float | str | Sequence[int]]:
        """What every operator with a window says of it."""
        return {"kernel_shape": self.kernel, "strides": self.strides, "pads": self.pads, "dilations": self.dilations}


def window_of(node: ir.Node, kernel: list[int], x: Operand) -> Window:
    """The window of the convolution or pool ``node`` over ``x``.

    Args:
        node: Conv, ConvTranspose, AveragePool or MaxPool.
        kernel: sizes of its window.
        x: its input [N, C, spatial axes…]; sizes are only needed where ``auto_pad`` or ``output_shape`` hang on them.

    Raises:
        NotComputable: attributes are not known, or kernels do not know so many axes.
    """
    no_references(node)
    if len(kernel) not in SPATIAL:
        raise NotComputable(f"has {len(kernel)} spatial axes; the simulator computes 1 and 2")
    ones = [1] * len(kernel)
    strides, dilations = (integers_of(node, name) or ones for name in ("strides", "dilations"))
    more = integers_of(node, "output_padding") or [0] * len(kernel)
    if not len(kernel) == len(strides) == len(dilations) == len(more):
        raise NotComputable("its attributes are of different numbers of axes")
    if min(*kernel, *strides, *dilations, *ones) < 1:
        raise NotComputable(f"has a window of {kernel} in steps of {strides} and {dilations}; 1 is the least of each")
    pads = _pads(node, kernel, strides, dilations, more, x)
    if len(pads) != 2 * len(kernel):
        raise NotComputable(f"has {len(pads)} pads for {len(kernel)} axes")
    if min(pads) < 0:
        raise NotComputable(f"has pads {pads}; the simulator cuts nothing off before a window")
    return Window(
        kernel=tuple(kernel),
        strides=tuple(strides),
        pads=tuple(pads),
        dilations=tuple(dilations),
        group=integer_of(node, "group", 1),
        output_padding=tuple(more),
    )


def _pads(
    node: ir.Node, kernel: list[int], strides: list[int], dilations: list[int], more: list[int], x: Operand
) -> list[int]:
    auto = text_of(node, AUTO_PAD, EXPLICIT)
    wanted = integers_of(node, "output_shape") if node.op_type == "ConvTranspose" else []
    if not wanted and auto in (EXPLICIT, "VALID"):
        return (integers_of(node, "pads") if auto == EXPLICIT else []) or [0] * 2 * len(kernel)
    if rank_of(x) != 2 + len(kernel) or (wanted and len(wanted) < len(kernel)):
        raise NotComputable("its attributes are of different numbers of axes")
    sizes = sizes_of(x, range(2, 2 + len(kernel)))
    along = list(zip(sizes, kernel, strides, dilations, strict=True))
    if node.op_type == "ConvTranspose":
        ends = wanted[-len(kernel) :] or [size * stride for size, stride in zip(sizes, strides, strict=True)]
        totals = [transposed_total(*a, extra, end) for a, extra, end in zip(along, more, ends, strict=True)]
        if min(totals) < 0:
            raise NotComputable("writes more elements than its windows reach, of which runtimes do not agree")
    else:
        totals = [max(same_total(*a) or 0, 0) for a in along]
    return split_evenly(totals, odd_behind=auto == "SAME_UPPER")
