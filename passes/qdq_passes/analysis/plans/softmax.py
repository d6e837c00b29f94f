"""Plans of Softmax: a table of exponentials, a sum, one division.

E[d] = round(exp(−d·s_x)·2^30), d = max(x) − x in 0 … 255 or 0 … 65535; y = round(M·E / ΣE) + z_y with M = 1 / s_y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.analysis.plans.operands import NotComputable, no_references, opset_of, rank_of, source, step, target
from qdq_passes.analysis.plans.products import multiplier
from qdq_passes.analysis.plans.tails import Tail, tail_of
from qdq_passes.graph.uses import integer_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding, is_wide
from qdq_passes.numerics.requantize import Multiplier

#: First opset whose Softmax works along one axis; before, along all from its axis on.
OPSET_OF_ONE_AXIS = 13


@dataclass(frozen=True, eq=False, kw_only=True)
class Softmax:
    """A softmax along one axis.

    Args:
        x: the data.
        table: 0 … 2^30; int64 [256] of 8 bits, of 16 bits int32 up to the first 0, which is that of all that follow.
        multiplier: of M.
        axis: the axis, as the operator gives it.
        output: encoding of the output.
        tail: what is behind.
    """

    x: Operand
    table: npt.NDArray[np.int64] | npt.NDArray[np.int32]
    multiplier: Multiplier
    axis: int
    output: Encoding
    tail: Tail


def softmax(unit: Unit, arithmetic: Arithmetic) -> Softmax:
    """The plan of a Softmax.

    Raises:
        NotComputable: there is none.
    """
    node, x, output = unit.core, source(unit), target(unit)
    no_references(node)
    assert x.encoding is not None
    if rank_of(x) == 0:
        raise NotComputable("has no axis to work along")
    axis = softmax_axis(node, lambda: rank_of(x))
    return Softmax(
        x=x,
        table=exponentials(step(x.encoding), wide=is_wide(x.encoding.dtype)),
        multiplier=multiplier(1.0 / step(output), arithmetic),
        axis=axis,
        output=output,
        tail=tail_of(unit.tail, output),
    )


def exponentials(scale: float, *, wide: bool = False) -> npt.NDArray[np.int64] | npt.NDArray[np.int32]:
    """round(exp(−d·scale)·2^30) for d = 0 … 255, ties to even, exp in float64; where ``wide`` for d = 0 … 65535, up to the
    first 0."""
    found = np.rint(np.exp(-np.arange(65536 if wide else 256) * np.float64(scale)) * 2.0**30).astype(np.int64)
    return found[: np.count_nonzero(found) + 1].astype(np.int32) if wide else found


def softmax_axis(node: ir.Node, rank: Callable[[], int]) -> int:
    """The axis along which a Softmax of data of ``rank`` works.

    Raises:
        NotComputable: it works along several, as before opset 13, or the rank is not known.
    """
    opset = opset_of(node)
    axis = integer_of(node, "axis", -1 if opset >= OPSET_OF_ONE_AXIS else 1)
    if opset < OPSET_OF_ONE_AXIS and axis not in (-1, rank() - 1):
        raise NotComputable(f"works along all axes from {axis} on in opset {opset}; run convert-opset")
    return axis
