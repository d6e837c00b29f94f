"""lower-einsums

y = round(m·Σ(a − z_a)(b − z_b)·2^-k) + z_y over the labels that the result lacks, with m·2^-k for s_a·s_b / s_y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.plans.einsums import einsum
from qdq_passes.analysis.plans.operands import zero
from qdq_passes.analysis.plans.tails import Tail
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of, bytes_of
from qdq_passes.graph.operators.einsums import Dim, Turn
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes, scaling_inputs
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerEinsums(Lowering):
    """Turn an Einsum of two operands between QDQ pairs into a product of matrices of integers, between moves.

    Graph: ``DQ(a), DQ(b) → Einsum("bqhd,bkhd->bhqk") → Q`` → ``a → Transpose; b → Transpose; ai.qdqtool::MatMul``, with Reshapes
    where several axes are rows, columns or depth, and a Transpose behind where the result has another order. Constants are turned
    at once.
    Requires: assign-targets; sizes of axes that are put together.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "einsums"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One product."""
        plan = einsum(unit, arithmetic)
        assert plan.left.encoding is not None
        attributes: Attributes = {
            **output_attributes(plan.output, Tail(), arithmetic, wide=plan.is_wide),
            "a_zero_point": zero(plan.left.encoding),
            "b_zero_points": plan.zero_points.tolist(),
            "x_shift": 0,
        }
        left = _turned(plan.left, plan.form.left, "left", into)
        right = _turned(plan.right, plan.form.right, "right", into)
        bias = None if plan.columns is None else into.constant("bias", np.zeros(plan.columns, np.int32))
        found = into.node(
            "MatMul", [left, right, bias, *scaling_inputs(plan.scaling, into)], dtype=plan.output.dtype,
            attributes=attributes_of(attributes), shape=ir.Shape(plan.form.product),
        )  # fmt: skip
        result = plan.form.result
        if result.shape is not None:
            known = (
                [result.sizes[axis] for axis in np.argsort(result.permutation)] if result.permutation else result.sizes
            )
            found = _reshaped(found, result.shape, tuple(known), "result", into)
        if result.permutation is not None:
            found = _transposed(found, result.permutation, result.sizes, into)
        return into.done(found)


def _turned(operand: Operand, turn: Turn, side: str, into: Replacement) -> ir.Value:
    """The integers of ``operand`` as one side of the product."""
    if operand.constant:
        data = bytes_of(operand)
        data = data if turn.permutation is None else np.transpose(data, turn.permutation)
        if turn.shape is not None:
            data = data.reshape([data.shape[i] if size == 0 else size for i, size in enumerate(turn.shape)])
        return into.constant(side, np.ascontiguousarray(data))
    value = into.integers(operand)
    if turn.permutation is not None:
        shape = value.shape
        known = tuple(None if shape is None else _dim(shape[axis]) for axis in turn.permutation)
        value = _transposed(value, turn.permutation, known, into)
    return value if turn.shape is None else _reshaped(value, turn.shape, turn.sizes, side, into)


def _dim(size: int | ir.SymbolicDim) -> Dim:
    return size if isinstance(size, int) else size.value


def _transposed(value: ir.Value, permutation: tuple[int, ...], known: tuple[Dim, ...], into: Replacement) -> ir.Value:
    assert value.dtype is not None
    attributes = [ir.AttrInt64s("perm", list(permutation))]
    return into.node(
        "::Transpose", [value], dtype=value.dtype, attributes=attributes, shape=ir.Shape(known), helps=True
    )


def _reshaped(
    value: ir.Value, shape: tuple[int, ...], known: tuple[Dim, ...], side: str, into: Replacement
) -> ir.Value:
    inputs = [value, into.constant(f"{side}_shape", np.array(shape, np.int64))]
    assert value.dtype is not None
    return into.node("::Reshape", inputs, dtype=value.dtype, shape=ir.Shape(known), helps=True)
