"""Sums of products: acc = Σ(x − z_x)(w − z_w) + b, then y = round(M·acc) + z_y with M = s_x·s_w / s_y, an M per channel.

See `qdq_passes.numerics.requantize`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes.npu.program.edit import Attributes, Stored
from qdq_passes.npu.program.operands import (
    NotComputable,
    constant_floats,
    encoded,
    given,
    has_wide,
    step,
    stored_integers,
    target,
    zero,
)
from qdq_passes.npu.program.operator import Plan, Row
from qdq_passes.npu.program.scaling import Reals, output_attributes, scaling_inputs
from qdq_passes.npu.program.tails import tail_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import AccumulatorBias, accumulator_bias


def sum_of_products(
    unit: Unit,
    arithmetic: Arithmetic,
    row: Row,
    x: Operand,
    weight: Operand,
    per_channel: tuple[Reals, npt.NDArray[np.int64]],
    *,
    channels: int | None,
    axis: int,
    own: Attributes | None = None,
    turned: tuple[bool, bool] = (False, False),
) -> Plan:
    """The plan of sums of ``x`` with ``weight``, whose scales and zero points are one or one per channel.

    A slope behind may differ along ``axis``, counted from the end. ``own`` are attributes that only convolutions have. A bias, in
    units of the sum, is given wherever the number of columns is known: onnxruntime 1.23 takes no custom operator with an input
    left out in the middle.

    Raises:
        NotComputable: there is none.
    """
    output, (scales, zero_points) = target(unit), per_channel
    tail = tail_of(unit.tail, output, channels=axis)
    if tail.slope is not None and tail.slope.size > 1 and (not weight.constant or tail.slope.size != channels):
        raise NotComputable("its slopes are one per column, and its columns are not known before the run")
    product = step(encoded(x)) * scales
    bias = _bias(unit, product, channels)
    if bias is None and isinstance(channels, int):
        bias = AccumulatorBias(np.zeros(channels, np.int64), 0)
    x_shift = 0 if bias is None else bias.x_shift
    of_x, of_w, *_ = row.attributes
    known = {of_x: zero(encoded(x)), of_w: zero_points.tolist(), "x_shift": x_shift, **(own or {})}
    return Plan(
        name=row.name,
        inputs=[
            x,
            weight,
            None if bias is None else Stored("bias", bias.value.astype(np.int32)),
            *scaling_inputs(product, output, arithmetic, x_shift=x_shift, slope=tail.slope),
        ],
        attributes={
            **output_attributes(output, arithmetic, tail, wide=has_wide(x, weight)),
            **{name: known[name] for name in row.attributes},
        },
        output=output,
        turned=turned,
        first=2 if own else 0,
    )


def per_channel(
    encoding: Encoding, axis: int | None, rank: int, count: int | None
) -> tuple[Reals, npt.NDArray[np.int64]]:
    """Scales and zero points of a weight of ``rank``, which may have ``count`` along ``axis``; zero points [1] where equal."""
    if len(encoding.scale) > 1 and (encoding.axis is None or encoding.axis % rank != axis):
        raise NotComputable(f"its weight has a scale per index of axis {encoding.axis}, not of axis {axis}")
    if len(encoding.scale) not in (1, count):
        raise NotComputable(f"its weight has {len(encoding.scale)} scales for {count} channels")
    zero_points = np.array(encoding.zero_point, np.int64)
    return np.array(encoding.scale, np.float64), zero_points[:1] if (
        zero_points == zero(encoding)
    ).all() else zero_points


def _bias(unit: Unit, product: Reals, channels: int | None) -> AccumulatorBias | None:
    """The bias per channel in units of the sum."""
    operand = given(unit, 2)
    if operand is None:
        return None
    data, scale, zero_point = _stored_bias(operand)
    shape, along = data.shape, [size for size in data.shape if size != 1]
    if channels is None or len(along) > 1 or (along and (along[0] != channels or shape[-1] != channels)):
        raise NotComputable(f"its bias of shape {list(shape)} is not one number per channel")
    if scale is not None and scale.size not in (1, channels):
        raise NotComputable(f"its bias has {scale.size} scales for {channels} channels")
    found = accumulator_bias(data.reshape(-1), product, scale=scale, zero_point=zero_point)
    if isinstance(found, str):
        raise NotComputable(found)
    return AccumulatorBias(np.broadcast_to(found.value, (channels,)), found.x_shift)


def _stored_bias(operand: Operand) -> tuple[npt.NDArray[Any], Reals | None, npt.NDArray[np.int64] | int]:
    """Data, scales and zero points of a bias; no scales where it is a float."""
    name = operand.value.name if operand.value is not None else ""
    if not operand.constant or operand.value is None:
        raise NotComputable(f"its bias {name} is computed")
    if operand.encoding is None:
        array = constant_floats(operand.value)
        if array is None or operand.dequantize is not None:
            raise NotComputable(f"the scale of its bias {name} is computed at run time")
        return array, None, 0
    if operand.encoding.block_size:
        raise NotComputable(f"its bias {name} has a scale per block")
    integers = stored_integers(operand)
    return (
        integers.astype(np.int64),
        np.array(operand.encoding.scale, np.float64),
        np.array(operand.encoding.zero_point, np.int64),
    )
