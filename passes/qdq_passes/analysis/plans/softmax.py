"""Plans of Softmax: a table of exponentials, a sum, one division.

E[d] = round(exp(−d·s_x)·2^30), d = max(x) − x in 0 … 255; y = round(M·E / ΣE) + z_y with M = 1 / s_y."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.analysis.attributes import integer_of
from qdq_passes.analysis.plans.operands import NotComputable, no_references, rank_of, source, step, target
from qdq_passes.analysis.plans.products import multiplier
from qdq_passes.analysis.plans.tails import Tail, tail_of
from qdq_passes.analysis.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import Multiplier

#: First opset whose Softmax works along one axis; before, along all from its axis on.
OPSET_OF_ONE_AXIS = 13


@dataclass(frozen=True, eq=False, kw_only=True)
class Softmax:
    """A softmax along one axis.

    Args:
        x: the data.
        table: int64 [256], 0 … 2^30.
        multiplier: of M.
        axis: the axis, as the operator gives it.
        output: encoding of the output.
        tail: what is behind.
    """

    x: Operand
    table: npt.NDArray[np.int64]
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
    graph = node.graph
    opset = graph.opset_imports.get("", 0) if isinstance(graph, ir.Graph) else 0
    axis = integer_of(node, "axis", -1 if opset >= OPSET_OF_ONE_AXIS else 1)
    if opset < OPSET_OF_ONE_AXIS and axis not in (-1, rank_of(x) - 1):
        raise NotComputable(f"works along all axes from {axis} on in opset {opset}; run convert-opset")
    return Softmax(
        x=x,
        table=exponentials(step(x.encoding)),
        multiplier=multiplier(1.0 / step(output), arithmetic),
        axis=axis,
        output=output,
        tail=tail_of(unit.tail, output),
    )


def exponentials(scale: float) -> npt.NDArray[np.int64]:
    """round(exp(−d·scale)·2^30) for d = 0 … 255, ties to even, exp in float64."""
    return np.rint(np.exp(-np.arange(256) * np.float64(scale)) * 2.0**30).astype(np.int64)
