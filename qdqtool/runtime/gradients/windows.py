"""How convolutions and pools walk over their input."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from qdq_passes.graph.uses import integer_of, integers_of, text_of


class Windows:
    """The windows of Conv, ConvTranspose or a pool.

    Args:
        node: the operator.
        wide: sizes of the spatial axes that windows lie on.
        narrow: how many windows there are along each.
        kernel: their sizes.

    Attributes:
        begins: padding before each axis; what lies there where the node says so by a mode, too.
        ends: padding behind it.
    """

    def __init__(self, node: ir.Node, wide: Sequence[int], narrow: Sequence[int], kernel: Sequence[int]) -> None:
        spatial, mode = len(wide), text_of(node, "auto_pad", "NOTSET")
        self.kernel, self.groups = list(kernel), integer_of(node, "group", 1)
        self.strides = list(integers_of(node, "strides")) or [1] * spatial
        self.dilations = list(integers_of(node, "dilations")) or [1] * spatial
        pads = list(integers_of(node, "pads")) or [0] * (2 * spatial)
        if mode.startswith("SAME") or integers_of(node, "output_shape"):
            more = list(integers_of(node, "output_padding")) or [0] * spatial
            spans = [span + m for span, m in zip(self._spans(narrow), more, strict=True)]
            totals = [max(span - size, 0) for span, size in zip(spans, wide, strict=True)]
            begins = [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]
            pads = [*begins, *(total - begin for total, begin in zip(totals, begins, strict=True))]
        self.begins, self.ends = pads[:spatial], pads[spatial:]
        reached = zip(wide, self._spans(narrow), self.begins, self.ends, strict=True)
        #: Numbers behind the last window along each axis.
        self.rest = [size - (span - begin - end) for size, span, begin, end in reached]

    @property
    def attributes(self) -> dict[str, object]:
        """As attributes of a convolution."""
        return {
            "strides": self.strides, "dilations": self.dilations, "pads": [*self.begins, *self.ends], "group": self.groups,
        }  # fmt: skip

    def _spans(self, narrow: Sequence[int]) -> list[int]:
        """Numbers from the first of the first window to the last of the last."""
        steps = zip(narrow, self.strides, self.kernel, self.dilations, strict=True)
        return [(count - 1) * stride + (size - 1) * dilation + 1 for count, stride, size, dilation in steps]
