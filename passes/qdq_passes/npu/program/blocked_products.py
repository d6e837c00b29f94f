"""Matrix products whose weight has a scale per block of its depth.

t = Σ_g float32(Σ_{k in g}(x − z_x)(w − z_w[g, n]))·scale[g, n] + b, in float32 and in order, see `npu.reference.sums`;
then y = round(t / s_y) + z_y, whatever the arithmetic requantizes with: no multiplier is shared by sums of different scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.npu.program.edit import Stored
from qdq_passes.npu.program.operands import (
    NotComputable,
    constant_floats,
    encoded,
    given,
    step,
    stored,
    stored_integers,
    target,
    zero,
)
from qdq_passes.npu.program.operator import OneOperator, Plan, arithmetic
from qdq_passes.npu.program.products import MatMul, matrices
from qdq_passes.npu.program.scaling import output_attributes
from qdq_passes.npu.program.tails import tail_of
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import integer_range

Floats = npt.NDArray[np.float32]

#: Types of blocked weights.
BLOCKED = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class BlockedMatMul(OneOperator):
    """A MatMul or Gemm by a constant matrix in blocks."""

    family = "products"
    turn = 0
    takes = MatMul.takes
    rows = (arithmetic("BlockedMatMul", (4, 5), a_zero_point=int, block_size=int),)

    def accepts(self, unit: Unit) -> bool:
        """Whether the second operand has a scale per block."""
        weight = given(unit, 1)
        blocked = weight is not None and weight.encoding is not None and weight.encoding.block_size > 0
        return blocked and super().accepts(unit)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``a, weight, scale, zero_points, bias → ai.qdqtool::BlockedMatMul``, weights of 4 bits in bytes."""
        x, weight, (x_transposed, flipped) = matrices(unit)
        encoding = stored(weight, types=BLOCKED, blocked=True)
        if not weight.constant:
            raise NotComputable("its weight is computed")
        integers = stored_integers(weight)
        shape, axis = integers.shape, int(flipped)
        if len(shape) != 2 or 0 in shape or (encoding.axis or 0) % 2 != axis:
            raise NotComputable("the blocks of its weight do not lie along the depth of a matrix")
        if encoding.granularity.scale_shape(shape) != encoding.shape:
            raise NotComputable(f"its weight of shape {list(shape)} has scales of shape {list(encoding.shape)}")
        output = target(unit)
        in_bytes = np.int8 if encoding.dtype in (ir.DataType.INT4, ir.DataType.INT8) else np.uint8
        scale = (step(encoded(x)) * np.array(encoding.scale, np.float64).reshape(encoding.shape)).astype(np.float32)
        zero_points = np.array(encoding.zero_point, np.int64).reshape(encoding.shape).astype(in_bytes)
        low, high = integer_range(encoded(x).dtype, symmetric=False)
        if not shape[axis] * (high - low) * 255.0 * float(np.abs(scale).max(initial=0)) < _FLOAT32_MAX:
            raise NotComputable("its sums do not stay within float32")
        bias, tail = _bias(unit, shape[1 - axis]), tail_of(unit.tail, output)
        return Plan(
            name="BlockedMatMul",
            inputs=[
                x,
                Stored("weight", _depth_first(integers.astype(in_bytes), flipped)),
                Stored("scale", np.asarray(_depth_first(scale, flipped), np.float32)),
                Stored("zero_points", _depth_first(zero_points, flipped)),
                Stored("bias", bias),
            ],
            attributes={
                **output_attributes(output, arithmetic, tail, mode="float", sums=False),
                "a_zero_point": zero(encoded(x)),
                "block_size": encoding.block_size,
            },
            output=output,
            turned=(x_transposed,),
        )


def _depth_first(matrix: npt.NDArray[Any], flipped: bool) -> npt.NDArray[Any]:
    """``matrix`` with the depth along axis 0."""
    return np.ascontiguousarray(matrix.T if flipped else matrix)


def _bias(unit: Unit, channels: int) -> Floats:
    """The bias as float32 [C]."""
    operand = given(unit, 2)
    if operand is None:
        return np.zeros(channels, np.float32)
    array = None if operand.value is None or not operand.constant else constant_floats(operand.value)
    if array is None:
        raise NotComputable("its bias is computed")
    if array.size not in (1, channels) or (array.size > 1 and array.shape[-1] != channels):
        raise NotComputable(f"its bias of shape {list(array.shape)} is not one number per channel")
    if not np.isfinite(array).all():
        raise NotComputable("its bias is not finite")
    return np.broadcast_to(array.astype(np.float32).reshape(-1), (channels,))
