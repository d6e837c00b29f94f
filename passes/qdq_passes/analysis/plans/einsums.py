"""Plans of an Einsum of two operands: the product of matrices that it is, between moves; acc and y as of MatMul."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdq_passes.analysis.plans.operands import (
    DATA,
    WEIGHTS,
    NotComputable,
    has_wide,
    no_references,
    operand_at,
    rank_of,
    shape_of,
    source,
    step,
    stored,
    target,
    zero,
)
from qdq_passes.analysis.plans.products import Scaling, scaling_of
from qdq_passes.graph.operators.einsums import Contraction, Dim, contraction
from qdq_passes.graph.uses import text_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding


@dataclass(frozen=True, eq=False, kw_only=True)
class EinsumProduct:
    """An Einsum.

    Args:
        left: first operand.
        right: second operand, which may have a scale per index of an axis of columns.
        form: its product of matrices.
        zero_points: int64 [1] or [columns], of the second operand.
        columns: how many there are; None where that is not known.
        scaling: see `Scaling`.
        output: encoding of the output.
    """

    left: Operand
    right: Operand
    form: Contraction
    zero_points: npt.NDArray[np.int64]
    columns: int | None
    scaling: Scaling
    output: Encoding

    @property
    def is_wide(self) -> bool:
        """Whether an operand has 16 bits."""
        return has_wide(self.left, self.right)


def einsum(unit: Unit, arithmetic: Arithmetic) -> EinsumProduct:
    """The plan of an Einsum.

    Raises:
        NotComputable: there is none.
    """
    node = unit.core
    no_references(node)
    if len(unit.operands) != 2:
        raise NotComputable(f"has {len(unit.operands)} operands, and a product of matrices has 2")
    left, right = operand_at(unit, 0), operand_at(unit, 1)
    source(unit, 0, types=WEIGHTS if left.constant else DATA)
    encoding = stored(right, types=WEIGHTS if right.constant else DATA)
    equation = text_of(node, "equation", "")
    form = contraction(equation, _dims(left), _dims(right))
    if isinstance(form, str):
        raise NotComputable(form)
    if unit.tail:
        raise NotComputable(f"{unit.tail[0].op_type} in one step with Einsum has no kernel; put a pair between")
    output, count = target(unit), form.product[-1]
    columns = count if isinstance(count, int) else None
    scales, zero_points = _per_column(encoding, form, right, equation)
    assert left.encoding is not None
    return EinsumProduct(
        left=left,
        right=right,
        form=form,
        zero_points=zero_points,
        columns=columns,
        scaling=scaling_of(step(left.encoding) * scales, output, arithmetic),
        output=output,
    )


def _dims(operand: Operand) -> list[Dim]:
    rank_of(operand)  # which tells that the rank is not known
    shape = shape_of(operand)
    assert shape is not None
    return list(shape)


def _per_column(
    encoding: Encoding, form: Contraction, right: Operand, equation: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Scales and zero points of the second operand, one for all or one per column of the product."""
    scales, zero_points = np.array(encoding.scale, np.float64), np.array(encoding.zero_point, np.int64)
    if len(scales) == 1:
        return scales, zero_points[:1]
    label = form.labels[(encoding.axis or 0) % len(form.labels)]
    shape = shape_of(right) or []
    sizes = {name: size for name, size in zip(form.labels, shape, strict=True) if name in form.columns}
    if label not in form.columns or "." in equation or form.batch or None in sizes.values():
        raise NotComputable(f"{encoding.granularity.kind} scales along an axis that is no column of the product")
    along = [sizes[name] if name == label else 1 for name in form.columns]
    whole = [size for name in form.columns if (size := sizes[name]) is not None]
    spread = np.broadcast_to(scales.reshape(along), whole).ravel()  # type: ignore[arg-type]
    if (zero_points == zero(encoding)).all():
        return spread, zero_points[:1]
    return spread, np.broadcast_to(zero_points.reshape(along), whole).ravel()  # type: ignore[arg-type]
