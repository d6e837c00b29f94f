"""RotaryEmbedding, that of onnx and that of com.microsoft.

y₁ = x₁·c − x₂·s, y₂ = x₂·c + x₁·s, each an exact sum of two products with a multiplier of its own, as an Add is:
y₁ = round(((x₁ − z_x)(c − z_c)·m_c − (x₂ − z_x)(s − z_s)·m_s)·2^-k) + z_y, with m_c·2^-k for s_x·s_c / s_y and m_s·2^-k for
s_x·s_s / s_y. What is beyond the turned part of a head is requantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.program.edit import Attributes, Replacement
from qdq_passes.npu.program.elementwise import sum_of
from qdq_passes.npu.program.heads import CONTRIB, Heads, angles_at, heads_of
from qdq_passes.npu.program.operands import (
    MOST_OF_ADDENDS,
    as_float32,
    encoded,
    no_references,
    source,
    step,
    target,
    zero,
)
from qdq_passes.npu.program.operator import ProgramOperator, arithmetic
from qdq_passes.npu.program.scaling import output_attributes
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding


@dataclass(frozen=True, eq=False, kw_only=True)
class Rotary:
    """A RotaryEmbedding.

    Args:
        x: what is turned.
        cos: cosines.
        sin: sines.
        heads: the form of ``x``, and what chooses the angles.
        output: encoding of the output.
        scaling: attributes that bring both products to the scale of the output.
    """

    x: Operand
    cos: Operand
    sin: Operand
    heads: Heads
    output: Encoding
    scaling: Attributes


class RotaryEmbedding(ProgramOperator[Rotary]):
    """Pairs of elements of heads, turned by angles."""

    family = "rotary-embeddings"
    takes = ("RotaryEmbedding",)
    rows = (
        arithmetic(
            "RotaryEmbedding", (3, 3), x_zero_point=int, cos_zero_point=int, sin_zero_point=int, cos_multiplier=int,
            sin_multiplier=int, shift=int, cos_scale=float, sin_scale=float, interleaved=int, head_axis=int,
        ),
    )  # fmt: skip
    standard = ("Concat", "Gather", "Reshape", "Slice")
    operations: ClassVar[Mapping[str, int]] = {"RotaryEmbedding": 3}  # two products and their sum

    def accepts(self, unit: Unit) -> bool:
        """That of com.microsoft too."""
        return unit.core.op_type in self.takes and unit.core.domain in ("", "ai.onnx", CONTRIB)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Rotary:
        """What is turned, by which angles."""
        node = unit.core
        no_references(node)
        cosines, sines, _ = angles_at(node)
        x, cos, sin = (source(unit, index) for index in (0, cosines, sines))
        output, heads = target(unit), heads_of(node, x, cos)
        of_cos, of_sin = (step(encoded(x)) * step(encoded(angles)) for angles in (cos, sin))
        if arithmetic.requantize == "float":
            as_float32("product of scales", of_cos, of_sin, most=MOST_OF_ADDENDS)
            scaling: Attributes = {"cos_scale": of_cos, "sin_scale": of_sin}
        else:
            found = sum_of(of_cos / step(output), of_sin / step(output), arithmetic)
            scaling = {"cos_multiplier": found.first, "sin_multiplier": found.second, "shift": found.shift}
        return Rotary(x=x, cos=cos, sin=sin, heads=heads, output=output, scaling=scaling)

    def write(self, plan: Rotary, into: Replacement) -> ir.Value:
        """``cos, positions → Gather; sin, positions → Gather; x, … → ai.qdqtool::RotaryEmbedding``; x [B, S, heads·size] between
        two Reshapes; elements that are not turned go round it, through what requantizes them."""
        x, heads, dtype = into.integers(plan.x), plan.heads, plan.output.dtype
        batch = x.shape[0] if x.shape is not None else None
        around = [batch, heads.length, heads.count] if heads.is_flat else [batch, heads.count, heads.length]
        of_x = encoded(plan.x)
        if heads.is_flat:
            inner = [0, 0, heads.count, heads.size]
            x = into.reshaped(x, inner, "heads_shape", of_x.dtype, [*around, heads.size])
        parts = [x]
        if heads.rotated < heads.size:
            parts = [
                _sliced(x, begin, end, of_x.dtype, [*around, end - begin], into)
                for begin, end in ((0, heads.rotated), (heads.rotated, heads.size))
            ]
        angles = [_angles(operand, plan, into, what) for operand, what in ((plan.cos, "cos"), (plan.sin, "sin"))]
        attributes = {
            **output_attributes(plan.output, into.arithmetic, sums=False),
            "x_zero_point": zero(of_x),
            "cos_zero_point": zero(encoded(plan.cos)),
            "sin_zero_point": zero(encoded(plan.sin)),
            "interleaved": int(heads.is_interleaved),
            "head_axis": 2 if heads.is_flat else 1,
            **plan.scaling,
        }
        inputs = [parts[0], *angles]
        turned = into.node("RotaryEmbedding", inputs, dtype=dtype, attributes=attributes, like=parts[0])
        if len(parts) > 1:
            inputs, shape = [turned, into.requantized(parts[1], of_x, plan.output)], ir.Shape([*around, heads.size])
            turned = into.node("::Concat", inputs, dtype=dtype, attributes={"axis": -1}, shape=shape, helps=True)
        if heads.is_flat:
            width = heads.count * heads.size
            turned = into.reshaped(turned, [0, 0, width], "shape", dtype, [*around[:2], width])
        return turned


def _angles(operand: Operand, plan: Rotary, into: Replacement, what: str) -> ir.Value:
    """The integers of the cosines or sines at their positions."""
    table = into.integers(operand)
    rows = plan.heads.rows
    positions = plan.heads.positions if rows is None else into.constant(f"{what}_positions", rows)
    if positions is None:
        return table
    known, dtype = positions.shape, encoded(operand).dtype
    shape = None if known is None else ir.Shape([*known, plan.heads.rotated // 2])
    return into.node("::Gather", [table, positions], dtype=dtype, attributes={"axis": 0}, shape=shape, helps=True)


def _sliced(
    x: ir.Value,
    begin: int,
    end: int,
    dtype: ir.DataType,
    known: Sequence[int | ir.SymbolicDim | None],
    into: Replacement,
) -> ir.Value:
    """Elements [begin, end) of the last axis."""
    numbers = {"starts": begin, "ends": end, "axes": -1}
    constants = [into.constant(f"{name}_{begin}", np.array([number], np.int64)) for name, number in numbers.items()]
    return into.node("::Slice", [x, *constants], dtype=dtype, shape=ir.Shape(known), helps=True)
