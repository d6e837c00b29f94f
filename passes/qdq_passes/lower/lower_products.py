"""lower-products

y = clamp(round(m·(Σ(a − z_a)(b − z_b) + c)·2^-k) + z_y), with m·2^-k for s_a·s_b / s_y, an m and k per column of b.
In blocks of the depth: y = clamp(round((Σ_g float32(Σ_{k in g}(a − z_a)(b − z_b))·s_a·s_b[g] + c) / s_y) + z_y), in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.plans.blocked_products import BlockedProduct, blocked_product, is_blocked
from qdq_passes.analysis.plans.operands import zero
from qdq_passes.analysis.plans.products import matrix_product
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of, bytes_of
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes, scaling_inputs
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerProducts(Lowering):
    """Turn matrix products between QDQ pairs, with the activation behind them, into matrix products on integers.

    Graph: ``DQ(a), DQ(b), DQ(c) → Gemm → Relu → Q`` → ``a, b, c, multiplier, shift → ai.qdqtool::MatMul``; MatMul likewise. A
    transposed weight is turned at once, transposed data by a Transpose before. A weight with a scale per block of its depth makes
    it an ai.qdqtool::BlockedMatMul. Weights of 4 bits are stored in bytes.
    Requires: assign-targets.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "products"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One product."""
        if is_blocked(unit):
            return _blocked(blocked_product(unit, arithmetic), arithmetic, into)
        plan = matrix_product(unit, arithmetic)
        x_encoding = plan.x.encoding
        assert x_encoding is not None
        attributes: Attributes = {
            **output_attributes(plan.output, plan.tail, arithmetic, wide=plan.is_wide),
            "a_zero_point": zero(x_encoding),
            "b_zero_points": plan.w_zero_points.tolist(),
            "x_shift": plan.x_shift,
        }
        sides = [
            _transposed(operand, into) if turned else into.integers(operand)
            for operand, turned in zip((plan.x, plan.weight), plan.transposed, strict=True)
        ]
        bias = None if plan.bias is None else into.constant("bias", plan.bias.astype(np.int32))
        inputs = [*sides, bias, *scaling_inputs(plan.scaling, into)]
        return into.done(into.node("MatMul", inputs, dtype=plan.output.dtype, attributes=attributes_of(attributes)))


def _blocked(plan: BlockedProduct, arithmetic: Arithmetic, into: Replacement) -> Change:
    """One product with a scale per block."""
    assert plan.x.encoding is not None
    attributes: Attributes = {
        **output_attributes(plan.output, plan.tail, arithmetic, mode="float", sums=False),
        "a_zero_point": zero(plan.x.encoding),
        "block_size": plan.block_size,
    }
    inputs = [
        _transposed(plan.x, into) if plan.x_transposed else into.integers(plan.x),
        into.constant("weight", plan.weight),
        into.constant("scale", plan.scale),
        into.constant("zero_points", plan.zero_points),
        into.constant("bias", plan.bias),
    ]
    return into.done(into.node("BlockedMatMul", inputs, dtype=plan.output.dtype, attributes=attributes_of(attributes)))


def _transposed(operand: Operand, into: Replacement) -> ir.Value:
    """The transpose of a matrix: at once where its data are known."""
    if operand.constant:
        return into.constant("weight", np.ascontiguousarray(bytes_of(operand).T))
    assert operand.encoding is not None
    value = into.integers(operand)
    shape = None if value.shape is None else ir.Shape(list(value.shape)[::-1])
    permutation = [ir.AttrInt64s("perm", [1, 0])]
    return into.node(
        "::Transpose", [value], dtype=operand.encoding.dtype, attributes=permutation, shape=shape, helps=True
    )
