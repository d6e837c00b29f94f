"""From which length on a decoder treats its tokens otherwise: rotations with other frequencies for long texts.

A token in the cache keeps what it was rotated by, so that a text that is run in pieces gives other logits than in one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdq_passes.decoder.look.entries import side_entries
from qdq_passes.decoder.look.host import Host, Sizes, fixed_sizes
from qdq_passes.numerics.arrays import Array


def first_of_another_length(host: Host, given: ir.Value, context: int) -> int | None:
    """The least position below ``context`` that changes what is computed of positions 0 and 1 in the same run; None without.

    Args:
        host: of a decoder whose positions all come from ``given``.
        given: the input of positions.
        context: tokens at most.
    """
    values = list(dict.fromkeys(v for node, index in side_entries(host) if (v := node.inputs[index]) is not None))
    if fixed_sizes(host) != (0, 0) or not values or context < 4:
        return None

    def beside(position: int) -> list[Array | None]:
        found = host.probe(Sizes(past=4, new=3), positions=np.array([[0, 1, position]]), wanted=values)
        return [found.arrays.get(value) for value in values]

    near = beside(2)

    def differs(position: int) -> bool:
        return any(_first_two_differ(a, b) for a, b in zip(near, beside(position), strict=True))

    if not differs(context - 1):
        return None
    low, high = 2, context - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(middle) else (middle, high)
    return high


def _first_two_differ(a: Array | None, b: Array | None) -> bool:
    """Whether what is made of three positions differs for the first two, along the one axis that has three."""
    if a is None or b is None or a.shape != b.shape or a.shape.count(3) != 1:
        return False
    axis = a.shape.index(3)
    return not np.array_equal(
        np.take(a, [0, 1], axis=axis), np.take(b, [0, 1], axis=axis), equal_nan=a.dtype.kind == "f"
    )
