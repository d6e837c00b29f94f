"""Plans of sums of products: Conv, ConvTranspose, MatMul, Gemm.

acc = Σ(x − z_x)(w − z_w) + b, then y = round(M·acc) + z_y with M = s_x·s_w / s_y, see `qdq_passes.numerics.requantize`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes.analysis.plans.operands import (
    DATA,
    WEIGHTS,
    NotComputable,
    as_float32,
    constant_floats,
    given,
    has_wide,
    no_references,
    operand_at,
    rank_of,
    shape_of,
    source,
    step,
    stored,
    stored_integers,
    target,
    zero,
)
from qdq_passes.analysis.plans.tails import Tail, tail_of
from qdq_passes.analysis.plans.windows import Window, window_of
from qdq_passes.graph.uses import float_of, integer_of, integers_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import AccumulatorBias, Multiplier, accumulator_bias, multiplier_of, real_multiplier


@dataclass(frozen=True, eq=False, kw_only=True)
class Scaling:
    """What brings a sum to the output's scale, an entry per channel or one for all.

    Args:
        multiplier: of the integer modes; None in the mode ``float``.
        negative: likewise for sums below 0; None without a slope.
        scale: float32 s_x·s_w of the mode ``float``; None in the others.
        slope: float32 factor of sums below 0 there; None without.
    """

    multiplier: Multiplier | None = None
    negative: Multiplier | None = None
    scale: npt.NDArray[np.float32] | None = None
    slope: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Product:
    """A sum of products.

    Args:
        x: the data.
        weight: the weight, or the second data.
        w_zero_points: int64 [1] or [C].
        bias: int64 [C] within int32, in units of the sum, zeros without one: onnxruntime 1.23 takes no custom operator with an
            input left out in the middle; None where the number of columns is not known.
        x_shift: the sum is shifted to the left by it before the bias is added.
        scaling: see `Scaling`.
        output: encoding of the output.
        tail: what is behind.
        window: of a convolution, None of a matrix product.
        transposed: whether x, weight of a Gemm are transposed.
    """

    x: Operand
    weight: Operand
    w_zero_points: npt.NDArray[np.int64]
    bias: npt.NDArray[np.int64] | None
    x_shift: int
    scaling: Scaling
    output: Encoding
    tail: Tail
    window: Window | None = None
    transposed: tuple[bool, bool] = (False, False)

    @property
    def is_wide(self) -> bool:
        """Whether an operand has 16 bits, so that the sum is held by the wide accumulator."""
        return has_wide(self.x, self.weight)


def convolution(unit: Unit, arithmetic: Arithmetic) -> Product:
    """The plan of a Conv or ConvTranspose.

    Raises:
        NotComputable: there is none.
    """
    node, x, weight = unit.core, source(unit), operand_at(unit, 1)
    encoding = stored(weight, types=WEIGHTS)
    if not weight.constant:
        raise NotComputable("its weight is computed")
    shape = stored_integers(weight).shape
    if len(shape) < 3 or 0 in shape:
        raise NotComputable(f"its weight has the shape {list(shape)}")
    group, transposed = integer_of(node, "group", 1), node.op_type == "ConvTranspose"
    window = window_of(node, integers_of(node, "kernel_shape") or list(shape[2:]), x)
    channels = shape[1] * group if transposed else shape[0]
    axis = 1 if transposed else 0
    scales, zero_points = _per_channel(encoding, axis, len(shape), shape[axis])
    if transposed:  # what an index of the weight has, each group has
        scales = np.tile(scales, group) if scales.size > 1 else scales
        zero_points = np.tile(zero_points, group) if zero_points.size > 1 else zero_points
    return _product(
        unit, arithmetic, x, weight, scales, zero_points, channels=channels, axis=1 - len(shape), window=window
    )


def matrix_product(unit: Unit, arithmetic: Arithmetic) -> Product:
    """The plan of a MatMul or Gemm.

    Raises:
        NotComputable: there is none.
    """
    x, weight, transposed = matrices(unit)
    encoding, rank = stored(weight, types=WEIGHTS if weight.constant else DATA), rank_of(weight)
    axis = None if rank == 1 else 0 if transposed[1] else rank - 1
    shape = shape_of(weight)
    channels = shape[axis] if shape is not None and axis is not None else 1
    if channels == 0:
        raise NotComputable("its weight has no elements")
    scales, zero_points = _per_channel(encoding, axis, rank, channels)
    return _product(unit, arithmetic, x, weight, scales, zero_points, channels=channels, axis=-1, transposed=transposed)


def matrices(unit: Unit) -> tuple[Operand, Operand, tuple[bool, bool]]:
    """The data and the weight of a MatMul or Gemm, and whether each is transposed.

    Raises:
        NotComputable: the factors of a Gemm are not 1, or the data have no integers behind one scale.
    """
    node, x, weight = unit.core, source(unit), operand_at(unit, 1)
    no_references(node)
    if node.op_type != "Gemm":
        return x, weight, (False, False)
    factors = [float_of(node, name, 1.0) for name in ("alpha", "beta")]
    if factors[0] != 1 or (factors[1] != 1 and given(unit, 2) is not None):
        raise NotComputable(f"has alpha {factors[0]:g} and beta {factors[1]:g}; the simulator computes 1 and 1")
    return x, weight, (bool(integer_of(node, "transA", 0)), bool(integer_of(node, "transB", 0)))


def _product(
    unit: Unit,
    arithmetic: Arithmetic,
    x: Operand,
    weight: Operand,
    scales: Reals,
    zero_points: npt.NDArray[np.int64],
    *,
    channels: int | None,
    axis: int,
    window: Window | None = None,
    transposed: tuple[bool, bool] = (False, False),
) -> Product:
    assert x.encoding is not None
    output = target(unit)
    tail = tail_of(unit.tail, output, channels=axis)
    if tail.slope is not None and tail.slope.size > 1 and (not weight.constant or tail.slope.size != channels):
        raise NotComputable("its slopes are one per column, and its columns are not known before the run")
    product = step(x.encoding) * scales
    bias = _bias(unit, product, channels)
    x_shift = 0 if bias is None else bias.x_shift
    return Product(
        x=x,
        weight=weight,
        w_zero_points=zero_points,
        bias=bias.value if bias is not None else np.zeros(channels, np.int64) if isinstance(channels, int) else None,
        x_shift=x_shift,
        scaling=scaling_of(product, output, arithmetic, x_shift=x_shift, slope=tail.slope),
        output=output,
        tail=tail,
        window=window,
        transposed=transposed,
    )


def scaling_of(
    product: Reals, output: Encoding, arithmetic: Arithmetic, *, x_shift: int = 0, slope: Reals | None = None
) -> Scaling:
    """What brings sums of step ``product`` (float64 [C] or [1]), shifted to the left by ``x_shift``, to ``output``.

    Raises:
        NotComputable: the arithmetic has no such multiplier.
    """
    if arithmetic.requantize == "float":
        slopes = None if slope is None else slope.astype(np.float32)
        scales = as_float32("product of scales", *np.ldexp(product, -x_shift).reshape(-1))
        return Scaling(scale=np.array(scales, np.float32), slope=slopes)
    real = real_multiplier(product, step(output), x_shift=x_shift)
    below = None if slope is None else real_multiplier(product, step(output), x_shift=x_shift, slope=slope)
    return Scaling(
        multiplier=multiplier(real, arithmetic), negative=None if below is None else multiplier(below, arithmetic)
    )


def multiplier(real: Reals | float, arithmetic: Arithmetic) -> Multiplier:
    """`multiplier_of`.

    Raises:
        NotComputable: the arithmetic has none.
    """
    found = multiplier_of(real, arithmetic)
    if isinstance(found, str):
        raise NotComputable(found)
    return found


def _per_channel(
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
