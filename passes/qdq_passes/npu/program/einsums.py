"""Einsum of two operands, a product of matrices between moves: y = round(m·Σ(a − z_a)(b − z_b)·2^-k) + z_y over the labels that
the result lacks, with m·2^-k for s_a·s_b / s_y."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.einsums import Contraction, Dim, Turn, contraction
from qdq_passes.graph.operators.fused_products import fused_product
from qdq_passes.graph.uses import text_of
from qdq_passes.npu.program.edit import Replacement, Source, bytes_of
from qdq_passes.npu.program.operands import (
    DATA,
    WEIGHTS,
    NotComputable,
    encoded,
    has_wide,
    no_references,
    no_tail,
    operand_at,
    rank_of,
    shape_of,
    source,
    step,
    stored,
    target,
    zero,
)
from qdq_passes.npu.program.operator import Effort, ProgramOperator, static_shape
from qdq_passes.npu.program.scaling import output_attributes, scaling_inputs
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
        scaling: inputs behind the bias.
        output: encoding of the output.
    """

    left: Operand
    right: Operand
    form: Contraction
    zero_points: npt.NDArray[np.int64]
    columns: int | None
    scaling: Sequence[Source]
    output: Encoding


class Einsum(ProgramOperator[EinsumProduct]):
    """A product of matrices, turned before and behind."""

    family = "einsums"
    takes = ("Einsum",)
    standard = ("Reshape", "Transpose")

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> EinsumProduct:
        """The product, and how its operands are turned."""
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
        no_tail(unit)
        output, count = target(unit), form.product[-1]
        columns = count if isinstance(count, int) else None
        scales, zero_points = _per_column(encoding, form, right, equation)
        return EinsumProduct(
            left=left,
            right=right,
            form=form,
            zero_points=zero_points,
            columns=columns,
            scaling=scaling_inputs(step(encoded(left)) * scales, output, arithmetic),
            output=output,
        )

    def write(self, plan: EinsumProduct, into: Replacement) -> ir.Value:
        """``a → Transpose; b → Transpose; ai.qdqtool::MatMul``, with Reshapes where several axes are rows, columns or depth, and
        a Transpose behind where the result has another order."""
        attributes = {
            **output_attributes(plan.output, into.arithmetic, wide=has_wide(plan.left, plan.right)),
            "a_zero_point": zero(encoded(plan.left)),
            "b_zero_points": plan.zero_points.tolist(),
            "x_shift": 0,
        }
        left = _turned(plan.left, plan.form.left, "left", into)
        right = _turned(plan.right, plan.form.right, "right", into)
        bias = None if plan.columns is None else into.constant("bias", np.zeros(plan.columns, np.int32))
        inputs, dtype = [left, right, bias, *(into.taken(each) for each in plan.scaling)], plan.output.dtype
        found = into.node("MatMul", inputs, dtype=dtype, attributes=attributes, shape=ir.Shape(plan.form.product))
        result = plan.form.result
        if result.shape is not None:
            known = (
                [result.sizes[axis] for axis in np.argsort(result.permutation)] if result.permutation else result.sizes
            )
            found = into.reshaped(found, result.shape, "result_shape", dtype, known)
        if result.permutation is not None:
            found = into.transposed(found, result.permutation, dtype, ir.Shape(result.sizes))
        return found

    def work(self, node: ir.Node, written: int) -> Effort:
        """The product, by its labels."""
        return Effort(fused_product(node, static_shape))


def _turned(operand: Operand, turn: Turn, side: str, into: Replacement) -> ir.Value:
    """The integers of ``operand`` as one side of the product."""
    if operand.constant:
        data = bytes_of(operand)
        data = data if turn.permutation is None else np.transpose(data, turn.permutation)
        if turn.shape is not None:
            data = data.reshape([data.shape[i] if size == 0 else size for i, size in enumerate(turn.shape)])
        return into.constant(side, np.ascontiguousarray(data))
    value, dtype = into.integers(operand), encoded(operand).dtype
    if turn.permutation is not None:
        shape = value.shape
        known = ir.Shape([None if shape is None else shape[axis] for axis in turn.permutation])
        value = into.transposed(value, turn.permutation, dtype, known)
    return value if turn.shape is None else into.reshaped(value, turn.shape, f"{side}_shape", dtype, turn.sizes)


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
