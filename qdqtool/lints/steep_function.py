"""Functions so steep that the rounding of what they read outweighs the rounding of what they write.

With f at input step a and output step b, over the values x that were seen:

    g = max |f(x + a/2) − f(x − a/2)| / b        output LSB that one input LSB moves

Uniform rounding has the power LSB²/12, so that the input's is g² times the output's: at g = 4 12 dB more, or two bits."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import place
from qdq_passes.graph.uses import constant_array, is_standard
from qdq_passes.npu.formulas.functions import function_of
from qdq_passes.npu.traps.rule import Trap, trap
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.reencode import real_range
from qdq_passes.select.globs import literal

from qdqtool.lints.context import LintContext
from qdqtool.lints.rule import Lint, step_text

Floats = npt.NDArray[np.float32]
Curve = Callable[[Floats], Floats]

#: Points of the calibrated range at which the slope is taken, beside the values of the input's grid where these are fewer.
POINTS = 4096
#: Piecewise linear with slopes of at most 1, or moving nothing but the origin: their two grids agree by construction.
FLAT = ("Abs", "Add", "Clip", "Identity", "LeakyRelu", "Max", "Min", "Mul", "Neg", "PRelu", "Relu", "Sub")


@dataclass(frozen=True)
class SteepFunction(Lint):
    """A function at which one step of the input grid is several of the output grid.

    Args:
        steps: warn from so many output LSB per input LSB on.
    """

    steps: float = 4.0

    def find(self, context: LintContext) -> Iterator[Trap]:
        """Operators of one computed value: unary functions, a Pow by a constant, Softmax and the divisor of a Div."""
        for node in context.nodes:
            curve = None if is_standard(node, *FLAT) else _curve(node, context)
            if curve is None:
                continue
            index, function = curve
            value = node.inputs[index]
            read, written = context.grid_read(value), context.grid_written(node.outputs[0])
            interval = context.range_of(value)
            if interval is None or read is None or written is None or not (_is_plain(read) and _is_plain(written)):
                continue
            moved, at = steepest(function, _within(interval, read), read.scale[0], written)
            if moved >= self.steps:
                message = (
                    f"one input LSB ({step_text(read.scale[0])}) moves the output by {moved:.3g} LSB "
                    f"({step_text(written.scale[0])}) near {at:.3g}: {node.op_type} of {interval[0]:.3g} to {interval[1]:.3g}"
                )
                name = literal(place(node))
                yield trap(
                    node,
                    message,
                    f"quantize with --exclude {shlex.quote(name)} --isolate, or with --int16 {shlex.quote(f'in:{name}')}",
                )


def steepest(curve: Curve, interval: tuple[float, float], step: float, written: Encoding) -> tuple[float, float]:
    """(largest movement in output LSB of an input that moves by one ``step`` within ``interval``, where it is).

    What lies beyond the output's grid saturates there, as it does in QuantizeLinear; NaN counts as no movement.
    """
    low, high = interval
    x = np.unique(
        np.concatenate([np.linspace(low, high, POINTS), np.arange(low, min(high, low + POINTS * step), step)])
    )
    (bottom,), (top,) = (np.ravel(end) for end in real_range(written))
    with np.errstate(all="ignore"):
        ends = [np.clip(x + side * step / 2, low, high).astype(np.float32) for side in (-1, 1)]
        y = [np.clip(curve(end).astype(np.float64), bottom, top) for end in ends]
        moved = np.nan_to_num(np.abs(y[1] - y[0]) / written.scale[0], nan=0.0)
    at = int(moved.argmax())
    return float(moved[at]), float(x[at])


def _curve(node: ir.Node, context: LintContext) -> tuple[int, Curve] | None:
    """(index of the input, the function of it); None where ``node`` is no function of one value."""
    if is_standard(node, "Softmax"):
        return 0, _softmax(context.range_of(node.inputs[0]))
    if is_standard(node, "LogSoftmax", "HardSigmoid", "HardSwish"):
        return None  # slopes of at most 1 over at most the range of the input
    function = function_of(node, lambda value: constant_array(context.source(value)))
    if function is not None and not isinstance(function, str):
        return function.input, function.evaluate
    if is_standard(node, "Div") and (dividend := context.range_of(node.inputs[0])) is not None:
        reach = np.float32(max(map(abs, dividend)))
        return 1, lambda y: np.asarray(np.divide(reach, y))
    return None


def _softmax(interval: tuple[float, float] | None) -> Curve:
    """p of an element against one other in the middle of the range: p' = p·(1 − p), at most 1/4."""
    middle = 0.0 if interval is None else sum(interval) / 2

    def evaluate(x: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-(x.astype(np.float64) - middle)))).astype(np.float32)

    return evaluate


def _within(interval: tuple[float, float], grid: Encoding) -> tuple[float, float]:
    """``interval`` as far as the grid reaches."""
    ends: list[Any] = [float(np.ravel(end)[0]) for end in real_range(grid)]
    return max(interval[0], ends[0]), max(min(interval[1], ends[1]), max(interval[0], ends[0]))


def _is_plain(grid: Encoding) -> bool:
    """Whether ``grid`` is one of integers with one scale."""
    return is_integer_type(grid.dtype) and len(grid.scale) == 1
