"""Plans of what is computed behind a sum in the same step: a clamp of the output, a slope below 0, the factor of a pool.

An activation is a clamp of integers, since rounding is monotone: Relu from the zero point up, Clip between the integers of its
bounds. Where a bound is missing nothing is clamped: there a result may wrap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.activations import clip_bounds
from qdq_passes.graph.uses import constant_array, float_of, is_standard
from qdq_passes.npu.formulas.functions import quantized, slope_axis
from qdq_passes.npu.program.operands import NotComputable, constant_floats, no_references
from qdq_passes.numerics.encoding import Encoding


@dataclass(frozen=True, eq=False, kw_only=True)
class Tail:
    """What stands behind a sum.

    Args:
        low: least output integer, None without a clamp.
        high: largest one.
        slope: float64 of float32, [C] or [1]: sums below 0 are multiplied by it as well.
        factor: float32 by which a pool or mean is multiplied.
    """

    low: int | None = None
    high: int | None = None
    slope: npt.NDArray[np.float64] | None = None
    factor: float = 1.0


def tail_of(nodes: tuple[ir.Node, ...], encoding: Encoding, *, channels: int | None = None) -> Tail:
    """The tail ``nodes`` before an output of ``encoding``.

    Args:
        nodes: the tail of a unit.
        encoding: of the output.
        channels: axis, counted from the end, along which a slope may differ; None where kernels have no slope at all.

    Raises:
        NotComputable: something in it has no kernel.
    """
    tail = Tail()
    for node in nodes:
        no_references(node)
        if is_standard(node, "Mul"):
            tail = replace(tail, factor=_factor(node))
        elif is_standard(node, "Relu"):
            tail = _clamped(tail, 0.0, None, encoding)
        elif is_standard(node, "Clip"):
            tail = _clamped(tail, *clip_bounds(node), encoding)
        elif is_standard(node, "LeakyRelu", "PRelu") and channels is not None:
            tail = replace(tail, slope=_slope(node, channels))
        else:
            raise NotComputable(f"{node.op_type} in one step with what is before it has no kernel; put a pair between")
    return tail


def _clamped(tail: Tail, low: float | None, high: float | None, encoding: Encoding) -> Tail:
    """``tail`` with a clamp between the integers of two bounds, halves to even; None and an infinity are no bound."""
    ends = [
        None if bound is None or np.isinf(bound) else int(quantized(np.array(bound, np.float32), encoding))
        for bound in (low, high)
    ]
    return replace(tail, low=ends[0], high=ends[1])


def _factor(node: ir.Node) -> float:
    arrays = [constant_array(value) for value in node.inputs]
    factors = [float(np.float32(array.item())) for array in arrays if array is not None and array.size == 1]
    if len(factors) != 1:
        raise NotComputable("its factor is not constant")
    return factors[0]


def _slope(node: ir.Node, channels: int) -> npt.NDArray[np.float64]:
    if node.op_type == "LeakyRelu":
        return np.array([np.float32(float_of(node, "alpha", 0.01))], np.float64)
    given = node.inputs[1]
    array = constant_floats(given) if given is not None else None
    if array is None:
        raise NotComputable("the slope of its PRelu is computed")
    if array.size != 1 and slope_axis(array.shape) != channels:
        raise NotComputable(f"the slope of its PRelu, of shape {list(array.shape)}, is not one per channel")
    return array.astype(np.float32).astype(np.float64).reshape(-1)
