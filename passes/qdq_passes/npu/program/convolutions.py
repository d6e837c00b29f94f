"""Conv and ConvTranspose, with the activation behind: y = clamp(round(m·(Σ(x − z_x)(w − z_w) + b)·2^-k) + z_y), with m·2^-k for
s_x·s_w / s_y, an m and k per channel.

    Conv           [N,C,H,W]·[M,C/g,k,k]   g products of (N·OH·OW) × (C/g·k·k) × (M/g)
    ConvTranspose  [N,C,H,W]·[C,M/g,k,k]   g products of (N·H·W) × (C/g) × (M/g·k·k)"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.operators.fused_products import Products
from qdq_passes.graph.uses import integer_of, integers_of, is_standard
from qdq_passes.npu.program.operands import WEIGHTS, NotComputable, operand_at, source, stored, stored_integers
from qdq_passes.npu.program.operator import AttributeTypes, Effort, OneOperator, Plan, arithmetic, static_shape
from qdq_passes.npu.program.sums import per_channel, sum_of_products
from qdq_passes.npu.program.windows import window_of
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic

_OWN: AttributeTypes = {
    "x_zero_point": int, "w_zero_points": list, "kernel_shape": list, "strides": list, "pads": list, "dilations": list,
    "group": int, "x_shift": int,
}  # fmt: skip


class Conv(OneOperator):
    """A convolution."""

    family = "convolutions"
    takes = ("Conv",)
    rows = (arithmetic("Conv", (4, 7), **_OWN),)
    #: Axis of the weight along which output channels lie, those of one group where ``axis`` is 1.
    axis: ClassVar[int] = 0

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``x, w, b, multiplier, shift → ai.qdqtool::Conv``."""
        node, x, weight = unit.core, source(unit), operand_at(unit, 1)
        encoding = stored(weight, types=WEIGHTS)
        if not weight.constant:
            raise NotComputable("its weight is computed")
        shape = stored_integers(weight).shape
        if len(shape) < 3 or 0 in shape:
            raise NotComputable(f"its weight has the shape {list(shape)}")
        window = window_of(node, integers_of(node, "kernel_shape") or list(shape[2:]), x)
        groups = integer_of(node, "group", 1) if self.axis else 1  # what an index of the weight has, each group has
        scales, zero_points = per_channel(encoding, self.axis, len(shape), shape[self.axis])
        scales = np.tile(scales, groups) if scales.size > 1 else scales
        zero_points = np.tile(zero_points, groups) if zero_points.size > 1 else zero_points
        return sum_of_products(
            unit, arithmetic, self.rows[0], x, weight, (scales, zero_points), channels=shape[self.axis] * groups,
            axis=1 - len(shape),
            own={**window.attributes(), "group": window.group, "output_padding": window.output_padding},
        )  # fmt: skip

    def work(self, node: ir.Node, written: int) -> Effort:
        """Products for each place of the output, or of the input."""
        if not is_standard(node, *self.takes):
            return Effort()
        x, w, y = (static_shape(value) or () for value in (*node.inputs[:2], node.outputs[0]))
        groups = integer_of(node, "group", 1)
        return Effort(self.products(groups, x, w, y), groups)

    def products(self, groups: int, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]) -> Products:
        """Of shapes of data, weight and output."""
        wide, depth, *kernel = w
        rows = x[0] * math.prod(y[2:])
        return Products(count=groups, rows=rows, depth=depth * math.prod(kernel), columns=wide // groups)


class ConvTranspose(Conv):
    """A convolution that spreads each element over a window of the output."""

    takes = ("ConvTranspose",)
    rows = (arithmetic("ConvTranspose", (4, 7), **_OWN, output_padding=list),)
    axis = 1

    def products(self, groups: int, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]) -> Products:
        """Of shapes of data, weight and output."""
        deep, wide, *kernel = w
        rows = x[0] * math.prod(x[2:])
        return Products(count=groups, rows=rows, depth=deep // groups, columns=wide * math.prod(kernel))
