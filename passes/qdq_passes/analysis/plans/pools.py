"""Plans of means: AveragePool, GlobalAveragePool, ReduceMean, and an average pool behind the Pad that belongs to it; of
ReduceSum, ReduceMax and ReduceMin.

acc = Σ(x − z_x), y = round(M·acc / n) + z_y with M = s_x·factor / s_y and n the elements averaged, 1 of a sum. The largest
integer is that of the largest number: it is brought to the encoding of the output."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.plans.operands import (
    NotComputable,
    no_references,
    rank_of,
    shape_of,
    sizes_of,
    source,
    step,
    target,
)
from qdq_passes.analysis.plans.products import multiplier
from qdq_passes.analysis.plans.tails import Tail, tail_of
from qdq_passes.analysis.plans.windows import Window, window_of
from qdq_passes.graph.operators.pads import padding_of, windows_start_inside
from qdq_passes.graph.operators.reductions import averaged_axes, kernel_of
from qdq_passes.graph.uses import integer_of, is_standard
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import Multiplier


@dataclass(frozen=True, eq=False, kw_only=True)
class Mean:
    """A mean over windows, or over axes.

    Args:
        x: the data.
        output: encoding of the output.
        tail: what is behind; its factor is part of ``multiplier``.
        multiplier: of the integer modes; None in the mode ``float``.
        window: of an AveragePool.
        ceil_mode: whether a window that reaches over the end counts.
        count_include_pad: whether padding is averaged too.
        axes: what is averaged over, where there is no window; 0 ≤ axis < rank.
        keepdims: whether these axes stay, with one element.
    """

    x: Operand
    output: Encoding
    tail: Tail
    multiplier: Multiplier | None
    window: Window | None = None
    ceil_mode: bool = False
    count_include_pad: bool = False
    axes: tuple[int, ...] = ()
    keepdims: bool = True


def mean(unit: Unit, arithmetic: Arithmetic) -> Mean:
    """The plan of an AveragePool, GlobalAveragePool, ReduceMean, ReduceSum, or Pad with an average pool behind.

    Raises:
        NotComputable: there is none.
    """
    padded = is_standard(unit.core, "Pad")
    pool, behind = (unit.tail[0], unit.tail[1:]) if padded else (unit.core, unit.tail)
    no_references(pool)
    x, output = source(unit), target(unit)
    assert x.encoding is not None
    tail = tail_of(behind, output)
    real = step(x.encoding) * float(np.float32(tail.factor)) / step(output)
    scale = None if arithmetic.requantize == "float" else multiplier(real, arithmetic)
    plan = Mean(x=x, output=output, tail=tail, multiplier=scale)
    if is_standard(pool, "AveragePool"):
        plan = _pool(plan, pool, x)
    else:
        plan = replace(plan, axes=_axes(pool, x), keepdims=bool(integer_of(pool, "keepdims", 1)))
    return _behind_pad(plan, unit.core, pool) if padded else plan


@dataclass(frozen=True, eq=False, kw_only=True)
class Extremes:
    """The largest or smallest over axes.

    Args:
        x: the data.
        output: encoding of the output.
        axes: what is reduced; 0 ≤ axis < rank.
        keepdims: whether these axes stay, with one element.
    """

    x: Operand
    output: Encoding
    axes: tuple[int, ...]
    keepdims: bool


def reduced_extremes(unit: Unit) -> Extremes:
    """The plan of a ReduceMax or ReduceMin.

    Raises:
        NotComputable: there is none.
    """
    no_references(unit.core)
    x, output = source(unit), target(unit)
    if unit.tail:
        raise NotComputable(
            f"{unit.tail[0].op_type} in one step with {unit.core.op_type} has no kernel; put a pair between"
        )
    return Extremes(x=x, output=output, axes=_axes(unit.core, x), keepdims=bool(integer_of(unit.core, "keepdims", 1)))


def _axes(node: ir.Node, x: Operand) -> tuple[int, ...]:
    axes = averaged_axes(node, rank_of(x))
    if axes is None or (not axes and is_standard(node, "GlobalAveragePool")):
        raise NotComputable("its axes are computed, or do not exist")
    shape = shape_of(x) or []
    if not is_standard(node, "ReduceSum") and any(shape[axis] == 0 for axis in axes):
        raise NotComputable(f"reduces no elements of {shape}")
    return tuple(axes)


def _pool(plan: Mean, pool: ir.Node, x: Operand) -> Mean:
    window = window_of(pool, kernel_of(pool), x)
    ceil_mode, include = (bool(integer_of(pool, name, 0)) for name in ("ceil_mode", "count_include_pad"))
    return replace(plan, window=window, ceil_mode=ceil_mode, count_include_pad=include)


def _behind_pad(plan: Mean, pad: ir.Node, pool: ir.Node) -> Mean:
    """``plan`` with the zeros of ``pad`` as padding that is averaged too."""
    window, rank = plan.window, rank_of(plan.x)
    padding = padding_of(pad, rank)
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
    if (own.any() and not plan.count_include_pad) or (added < 0).any():
        raise NotComputable("its Pad and the pool behind it average over different elements")
    pads = [int(size) for size in own + added]
    if plan.ceil_mode and not windows_start_inside(pool, sizes_of(plan.x, range(2, rank)), pads):
        raise NotComputable("a window of its pool starts behind the data")
    return replace(plan, window=replace(window, pads=tuple(pads)), count_include_pad=True)
