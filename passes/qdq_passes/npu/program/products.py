"""MatMul and Gemm, with the activation behind: y = clamp(round(m·(Σ(a − z_a)(b − z_b) + c)·2^-k) + z_y), with m·2^-k for
s_a·s_b / s_y, an m and k per column of b.

    MatMul, Gemm   [B,R,K]·[B,K,C]   B products of R × K × C; stored B: one of (B·R) × K × C"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes.graph.operators.fused_products import Products
from qdq_passes.graph.uses import float_of, integer_of, is_standard
from qdq_passes.npu.program.operands import (
    DATA,
    WEIGHTS,
    NotComputable,
    given,
    no_references,
    operand_at,
    rank_of,
    shape_of,
    source,
    stored,
)
from qdq_passes.npu.program.operator import Effort, OneOperator, Plan, arithmetic, static_shape
from qdq_passes.npu.program.sums import per_channel, sum_of_products
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic


class MatMul(OneOperator):
    """A matrix product, a Gemm too."""

    family = "products"
    takes = ("MatMul", "Gemm")
    rows = (arithmetic("MatMul", (4, 7), a_zero_point=int, b_zero_points=list, x_shift=int),)
    standard = ("Transpose",)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``a, b, c, multiplier, shift → ai.qdqtool::MatMul``, the weight turned at once, data by a Transpose before."""
        x, weight, turned = matrices(unit)
        encoding, rank = stored(weight, types=WEIGHTS if weight.constant else DATA), rank_of(weight)
        axis = None if rank == 1 else 0 if turned[1] else rank - 1
        shape = shape_of(weight)
        channels = shape[axis] if shape is not None and axis is not None else 1
        if channels == 0:
            raise NotComputable("its weight has no elements")
        per_column = per_channel(encoding, axis, rank, channels)
        return sum_of_products(
            unit, arithmetic, self.rows[0], x, weight, per_column, channels=channels, axis=-1, turned=turned
        )

    def work(self, node: ir.Node, written: int) -> Effort:
        """The product."""
        x, w = (static_shape(value) or () for value in node.inputs[:2])
        if is_standard(node, "MatMul"):
            return Effort(_matmul(x, w))
        if not is_standard(node, "Gemm"):
            return Effort()
        rows, depth = x[::-1] if integer_of(node, "transA", 0) else x
        return Effort(Products(count=1, rows=rows, depth=depth, columns=w[0 if integer_of(node, "transB", 0) else 1]))


def matrices(unit: Unit) -> tuple[Operand, Operand, tuple[bool, bool]]:
    """The data and the weight of a MatMul or Gemm, and whether each is transposed.

    Raises:
        NotComputable: the factors of a Gemm are not 1, or the data have no integers behind one scale.
    """
    node, x, weight = unit.core, source(unit), operand_at(unit, 1)
    no_references(node)
    if not is_standard(node, "Gemm"):
        return x, weight, (False, False)
    factors = [float_of(node, name, 1.0) for name in ("alpha", "beta")]
    if factors[0] != 1 or (factors[1] != 1 and given(unit, 2) is not None):
        raise NotComputable(f"has alpha {factors[0]:g} and beta {factors[1]:g}; the simulator computes 1 and 1")
    return x, weight, (bool(integer_of(node, "transA", 0)), bool(integer_of(node, "transB", 0)))


def _matmul(a: Sequence[int], b: Sequence[int]) -> Products:
    """numpy's matmul: vectors are a row, or a column; leading axes are broadcast."""
    rows = 1 if len(a) == 1 else a[-2]
    columns = 1 if len(b) == 1 else b[-1]
    if len(b) <= 2:  # one matrix for all: their rows are the rows of one product
        return Products(count=1, rows=math.prod(a[:-2]) * rows, depth=a[-1], columns=columns)
    count = math.prod(max(pair) for pair in zip(_padded(a[:-2], b[:-2]), _padded(b[:-2], a[:-2]), strict=True))
    return Products(count=count, rows=rows, depth=a[-1], columns=columns)


def _padded(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [*[1] * (len(b) - len(a)), *a]
