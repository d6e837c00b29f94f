"""Means, sums and extremes: over windows, over axes, and of an average pool with the Pad before it.

Means: acc = Σ(x − z_x), y = clamp(round(M·acc / n) + z_y) with M = s_x·factor / s_y and n the elements averaged, no reciprocal
rounded; a sum is a mean with n = 1. The largest integer is that of the largest number, brought to the encoding of the output."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.operators.pads import padding_of, windows_start_inside
from qdq_passes.graph.operators.reductions import averaged_axes, kernel_of
from qdq_passes.graph.uses import integer_of, integers_of, is_standard
from qdq_passes.npu.program.edit import Attributes
from qdq_passes.npu.program.movement import move_of
from qdq_passes.npu.program.operands import (
    NotComputable,
    encoded,
    has_wide,
    no_other_output,
    no_references,
    no_tail,
    opset_of,
    rank_of,
    shape_of,
    sizes_of,
    source,
    step,
    target,
    zero,
)
from qdq_passes.npu.program.operator import AttributeTypes, Effort, Names, OneOperator, Plan, Row, arithmetic, count
from qdq_passes.npu.program.scaling import multiplier, one_multiplier, output_attributes
from qdq_passes.npu.program.tails import tail_of
from qdq_passes.npu.program.windows import Window, window_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import is_wide

#: First opset whose MaxPool takes 8-bit integers.
OPSET_OF_INTEGER_POOL = 12

_SCALING: AttributeTypes = {"multiplier": int, "shift": int, "scale": float, "factor": float}
_WINDOW: AttributeTypes = {"kernel_shape": list, "strides": list, "pads": list, "dilations": list, "ceil_mode": int}
_AXES: AttributeTypes = {"axes": list, "keepdims": int}


class ReduceMean(OneOperator):
    """A mean over axes."""

    family = "pools"
    takes: ClassVar[Names] = ("GlobalAveragePool", "ReduceMean")
    rows = (arithmetic("ReduceMean", (1, 1), x_zero_point=int, **_AXES, **_SCALING),)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``x → ai.qdqtool::ReduceMean``."""
        pool, behind = self.parts(unit)
        no_references(pool)
        x, output = source(unit), target(unit)
        tail, of_x = tail_of(behind, output), encoded(x)
        scaling: Attributes = {"scale": step(of_x), "factor": tail.factor}
        if arithmetic.requantize != "float":
            real = step(of_x) * float(np.float32(tail.factor)) / step(output)
            scaling = one_multiplier(multiplier(real, arithmetic))
        how = {**output_attributes(output, arithmetic, tail, wide=has_wide(x)), "x_zero_point": zero(of_x), **scaling}
        attributes = {**how, **self.over(unit, pool, x)}
        return Plan(name=self.rows[0].name, inputs=[x], attributes=attributes, output=output)

    def parts(self, unit: Unit) -> tuple[ir.Node, tuple[ir.Node, ...]]:
        """What averages, and what is behind it."""
        return unit.core, unit.tail

    def over(self, unit: Unit, pool: ir.Node, x: Operand) -> Attributes:
        """Attributes that say what ``pool`` averages of ``x``.

        Raises:
            NotComputable: it is not known.
        """
        return {"axes": axes_of(pool, x), "keepdims": int(bool(integer_of(pool, "keepdims", 1)))}

    def work(self, node: ir.Node, written: int) -> Effort:
        """All elements are looked at."""
        return Effort(element_ops=count(node.inputs[0]))


class ReduceSum(ReduceMean):
    """A sum over axes."""

    takes = ("ReduceSum",)
    rows = (arithmetic("ReduceSum", (1, 1), x_zero_point=int, **_AXES, **_SCALING),)


class AveragePool(ReduceMean):
    """A mean over windows."""

    takes = ("AveragePool",)
    rows = (arithmetic("AveragePool", (1, 1), x_zero_point=int, **_WINDOW, count_include_pad=int, **_SCALING),)
    costs_like = ("LpPool",)

    def over(self, unit: Unit, pool: ir.Node, x: Operand) -> Attributes:
        """The window."""
        window = window_of(pool, kernel_of(pool), x)
        modes = {name: int(bool(integer_of(pool, name, 0))) for name in ("ceil_mode", "count_include_pad")}
        return {**window.attributes(), **modes}

    def work(self, node: ir.Node, written: int) -> Effort:
        """A window for each element written."""
        return window_work(node)


class PaddedPool(ReduceMean):
    """An average pool, or a mean, in one step with the Pad before it: its zeros are padding that is averaged too."""

    turn = 0
    takes = ()
    rows = AveragePool.rows

    def accepts(self, unit: Unit) -> bool:
        """A Pad with something behind; alone it only moves."""
        return is_standard(unit.core, "Pad") and bool(unit.tail)

    def parts(self, unit: Unit) -> tuple[ir.Node, tuple[ir.Node, ...]]:
        """The pool is the first behind the Pad."""
        return unit.tail[0], unit.tail[1:]

    def over(self, unit: Unit, pool: ir.Node, x: Operand) -> Attributes:
        """The window, and the pads of both."""
        window: Window | None = None
        if is_standard(pool, "AveragePool"):
            window = window_of(pool, kernel_of(pool), x)
        else:
            axes_of(pool, x)
        rank = rank_of(x)
        padding = padding_of(unit.core, rank)
        if isinstance(padding, str):
            raise NotComputable(f"Pad: {padding}")
        if (
            window is None
            or padding.mode != "constant"
            or padding.value != 0
            or any(padding.before[:2] + padding.after[:2])
        ):
            raise NotComputable("its Pad adds other than zeros around windows")
        own = np.array(window.pads)
        added = np.array([*padding.before[2:], *padding.after[2:]])
        if (own.any() and not integer_of(pool, "count_include_pad", 0)) or (added < 0).any():
            raise NotComputable("its Pad and the pool behind it average over different elements")
        pads, ceil_mode = [int(size) for size in own + added], bool(integer_of(pool, "ceil_mode", 0))
        if ceil_mode and not windows_start_inside(pool, sizes_of(x, range(2, rank)), pads):
            raise NotComputable("a window of its pool starts behind the data")
        whole = replace(window, pads=tuple(pads))
        return {**whole.attributes(), "ceil_mode": int(ceil_mode), "count_include_pad": 1}


class ReduceExtreme(OneOperator):
    """The largest or smallest over axes, in the encoding of the data."""

    family = "pools"
    takes = ("ReduceMax", "ReduceMin")
    rows = (Row("ReduceMax", (1, 1), _AXES), Row("ReduceMin", (1, 1), _AXES))

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``x → ai.qdqtool::ReduceMax``, and what requantizes behind."""
        node = unit.core
        no_references(node)
        x, output = source(unit), target(unit)
        no_tail(unit)
        over: Attributes = {"axes": axes_of(node, x), "keepdims": int(bool(integer_of(node, "keepdims", 1)))}
        return Plan(name=node.op_type, inputs=[x], attributes=over, output=output, written=encoded(x))

    def work(self, node: ir.Node, written: int) -> Effort:
        """All elements are looked at."""
        return Effort(element_ops=count(node.inputs[0]))


class MaxPool(OneOperator):
    """The largest of windows, a GlobalMaxPool that of all there is; that of ai.qdqtool on 16 bits."""

    family = "pools"
    takes = ("MaxPool", "GlobalMaxPool")
    rows = (Row("MaxPool", (1, 1), _WINDOW),)
    standard = ("MaxPool",)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``x → MaxPool``, and what requantizes behind."""
        node, x = unit.core, source(unit)
        moved = move_of(unit)
        opset, wide = opset_of(node), is_wide(moved.moves.dtype)
        if opset < OPSET_OF_INTEGER_POOL and not wide:
            raise NotComputable(f"MaxPool of opset {opset} takes no integers; run convert-opset")
        no_other_output(node)
        whole = is_standard(node, "GlobalMaxPool")
        kernel = sizes_of(x, range(2, rank_of(x))) if whole else integers_of(node, "kernel_shape")
        attributes = {**window_of(node, kernel, x).attributes(), "ceil_mode": integer_of(node, "ceil_mode", 0)}
        name = "MaxPool" if wide else "::MaxPool"
        return Plan(name=name, inputs=[x], attributes=attributes, output=moved.outputs[0], written=moved.moves)

    def work(self, node: ir.Node, written: int) -> Effort:
        """A window for each element written; what is global is not counted."""
        return Effort() if is_standard(node, "GlobalMaxPool") else window_work(node)


def axes_of(node: ir.Node, x: Operand) -> tuple[int, ...]:
    """The axes that ``node`` reduces; 0 ≤ axis < rank.

    Raises:
        NotComputable: they are not known, or have no elements to compare or average.
    """
    axes = averaged_axes(node, rank_of(x))
    if axes is None or (not axes and is_standard(node, "GlobalAveragePool")):
        raise NotComputable("its axes are computed, or do not exist")
    shape = shape_of(x) or []
    if not is_standard(node, "ReduceSum") and any(shape[axis] == 0 for axis in axes):
        raise NotComputable(f"reduces no elements of {shape}")
    return tuple(axes)


def window_work(node: ir.Node) -> Effort:
    """A window of ``kernel_shape`` for each element written."""
    return Effort(element_ops=math.prod(kernel_of(node)) * count(node.outputs[0]))
