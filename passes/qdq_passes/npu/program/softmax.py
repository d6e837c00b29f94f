"""Softmax: a table of exponentials, a sum, one division.

E[d] = round(exp(−d·s_x)·2^30), d = max(x) − x in 0 … 255 or 0 … 65535; y = round(m·E / (ΣE·2^k)) + z_y, m·2^-k for 1 / s_y."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.graph.uses import integer_of
from qdq_passes.npu.program.edit import Stored
from qdq_passes.npu.program.operands import (
    NotComputable,
    encoded,
    no_references,
    opset_of,
    rank_of,
    source,
    step,
    target,
)
from qdq_passes.npu.program.operator import OneOperator, Plan, arithmetic
from qdq_passes.npu.program.scaling import multiplier, one_multiplier, output_attributes
from qdq_passes.npu.program.tails import tail_of
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import is_wide

#: First opset whose Softmax works along one axis; before, along all from its axis on.
OPSET_OF_ONE_AXIS = 13


class Softmax(OneOperator):
    """A softmax along one axis."""

    family = "softmax"
    takes = ("Softmax",)
    rows = (arithmetic("Softmax", (2, 2), axis=int, multiplier=int, shift=int),)
    operations: ClassVar[Mapping[str, int]] = {
        "Softmax": 3,
        "LogSoftmax": 3,
    }  # the largest, exponential and sum, division

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``x, table → ai.qdqtool::Softmax``."""
        node, x, output = unit.core, source(unit), target(unit)
        no_references(node)
        if rank_of(x) == 0:
            raise NotComputable("has no axis to work along")
        axis = softmax_axis(node, lambda: rank_of(x))
        table = exponentials(step(encoded(x)), wide=is_wide(encoded(x).dtype))
        scaling = one_multiplier(multiplier(1.0 / step(output), arithmetic))
        how = output_attributes(output, arithmetic, tail_of(unit.tail, output), mode="integer", sums=False)
        attributes = {**how, "axis": axis, **scaling}
        return Plan(name="Softmax", inputs=[x, Stored("table", table)], attributes=attributes, output=output)


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
