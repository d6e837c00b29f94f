"""Resize in the reference: to the nearest element, which moves, or by interpolation, an exact sum of weights of 2^-11."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes.npu.formulas.resize import WEIGHT_BITS, Taps, resize_taps
from qdq_passes.npu.reference.movement import moved_integers
from qdq_passes.npu.reference.values import NotRepresentable, ReferenceNode, Sum, Value
from qdq_passes.numerics.arrays import Array


def resize(node: ReferenceNode) -> Sequence[Value]:
    """The operator of every opset from 10 on."""
    if node.node.attributes.get_string("mode", "nearest") == "nearest":
        return moved_integers(node)
    x = node.stored(0)
    taps = taps_of(node.node, node.opset, x.integers.shape, [node.array(i) for i in range(1, len(node.node.inputs))])
    acc = x.centered()
    for axis_taps in taps:
        along = (-1, *[1] * (acc.ndim - 1 - axis_taps.axis))
        weights = axis_taps.integers()
        acc = np.asarray(
            sum(
                np.take(acc, axis_taps.indices[:, tap], axis=axis_taps.axis) * weights[:, tap].reshape(along)
                for tap in range(weights.shape[1])
            )
        )
    if len(x.encoding.scale) != 1:
        raise NotRepresentable(f"data with {x.encoding.granularity.kind} scales are read")
    product = np.ldexp(np.array(x.encoding.scale, np.float64), -WEIGHT_BITS * len(taps))
    return [Sum(acc=acc, product=product)]


def taps_of(node: ir.Node, opset: int, shape: Sequence[int], others: Sequence[Array | None]) -> list[Taps]:
    """What ``node``, a Resize that interpolates, reads of an input of ``shape``; ``others`` are its inputs from the second on.

    Raises:
        NotRepresentable: it smooths.
    """
    attributes, old = node.attributes, opset < 11
    if attributes.get_int("antialias", 0):
        raise NotRepresentable("it smooths what it makes smaller")
    scales, sizes = [others[0], None] if old else [*others, None, None][1:3]
    return resize_taps(
        shape,
        mode=attributes.get_string("mode", "nearest") or "nearest",
        scales=None if scales is None or not scales.size else scales.astype(np.float32),
        sizes=None if sizes is None else [int(v) for v in sizes],
        axes=attributes.get_ints("axes") or (),
        policy=attributes.get_string("keep_aspect_ratio_policy", "stretch") or "stretch",
        coordinate_mode="asymmetric"
        if old
        else attributes.get_string("coordinate_transformation_mode", "half_pixel") or "",
        cubic_coefficient=attributes.get_float("cubic_coeff_a", -0.75),
        exclude_outside=bool(attributes.get_int("exclude_outside", 0)),
    )
