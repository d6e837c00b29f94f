"""Pads: what a Pad node adds on each side, and what a convolution or pool adds itself."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import constant_array, integers_of, text_of

#: Attribute of convolutions and pools, and its value where ``pads`` holds.
AUTO_PAD, EXPLICIT = "auto_pad", "NOTSET"


@dataclass(frozen=True)
class Padding:
    """What a Pad adds (elements per axis; negative: takes away).

    Args:
        before: in front of each axis of its input.
        after: behind each axis.
        mode: ``constant``, ``reflect``, ``edge`` or ``wrap``.
        value: what it pads with in mode ``constant``; None where that is computed.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str
    value: float | None

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is added or taken away."""
        return not any(self.before + self.after)


def padding_of(pad: ir.Node, rank: int) -> Padding | str:
    """What the Pad ``pad`` adds to an input of ``rank`` dimensions, or why that is not known.

    Pads and value are attributes before opset 11, inputs since; axes since opset 18.
    """
    if any(attribute.is_ref() for attribute in pad.attributes.values()):
        return "has attributes of its function"
    mode, inputs = text_of(pad, "mode", "constant"), [*pad.inputs, None, None, None]
    if "pads" in pad.attributes:
        sizes, axes = integers_of(pad, "pads"), list(range(rank))
        value: float | None = pad.attributes["value"].as_float() if "value" in pad.attributes else 0.0
    else:
        arrays = [constant_array(v) for v in inputs[1:4]]
        if arrays[0] is None or (inputs[3] is not None and arrays[2] is None):
            return "its pads are not constant"
        sizes = [int(size) for size in arrays[0].ravel()]
        axes = list(range(rank)) if arrays[2] is None else [int(axis) % rank for axis in arrays[2].ravel()]
        value = 0.0 if inputs[2] is None else None if arrays[1] is None else float(arrays[1].reshape(-1)[0])
    if len(sizes) != 2 * len(axes):
        return f"has {len(sizes)} pads for {len(axes)} axes"
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = sizes[place], sizes[place + len(axes)]
    return Padding(tuple(before), tuple(after), mode, value)


def own_pads(node: ir.Node, spatial: int) -> list[int] | str:
    """Pads of a convolution or pool with ``spatial`` axes: fronts, then backs [2·spatial]; or why they are not written down."""
    auto = text_of(node, AUTO_PAD, EXPLICIT)
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return f"{node.name} has attributes of its function"
    if auto not in (EXPLICIT, "VALID"):
        return f"{node.name} has auto_pad {auto}"
    pads = integers_of(node, "pads") if auto == EXPLICIT else []
    return pads or [0] * (2 * spatial)


def added_pads(padding: Padding, own: list[int]) -> list[int] | str:
    """Pads of a convolution or pool that pads as ``padding`` and then ``own`` do, both with zeros; or why it cannot.

    Args:
        padding: of a tensor [N, C, spatial axes…].
        own: see `own_pads`.
    """
    if padding.mode != "constant":
        return f"its mode is {padding.mode}"
    if padding.value != 0:
        return "its value is not constant" if padding.value is None else f"its value is {padding.value:g}"
    if any(padding.before[:2] + padding.after[:2]):
        return "pads batch or channels"
    sizes = np.array([*padding.before[2:], *padding.after[2:]])
    return "takes elements away" if (sizes < 0).any() else [int(size) for size in sizes + own]


def windows_start_inside(pool: ir.Node, sizes: list[int], pads: list[int]) -> bool:
    """Whether each window of ``pool`` with ``ceil_mode`` starts before the pads at the back.

    Where it pads itself, a window that starts there is left out (onnx, MaxPool and AveragePool); behind a Pad it is not.

    Args:
        pool: the pool; its kernel is an attribute.
        sizes: of its input along the spatial axes, without pads.
        pads: fronts, then backs.
    """
    kernel, count = integers_of(pool, "kernel_shape"), len(sizes)
    strides, dilations = (integers_of(pool, name) or [1] * count for name in ("strides", "dilations"))
    for axis, size in enumerate(sizes):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        rest = size + pads[axis] + pads[axis + count] - window
        last_start = -(-rest // strides[axis]) * strides[axis]
        if last_start >= size + pads[axis]:
            return False
    return True
