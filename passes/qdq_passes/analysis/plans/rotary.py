"""Plans of RotaryEmbedding, that of onnx and that of com.microsoft.

y₁ = x₁·c − x₂·s, y₂ = x₂·c + x₁·s, each an exact sum of two products with a multiplier of its own, as an Addition is:
(x₁ − z_x)(c − z_c)·m_c ∓ (x₂ − z_x)(s − z_s)·m_s, with m·2^-k for s_x·s_c / s_y and s_x·s_s / s_y. What is beyond the turned part
of a head is requantized."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.analysis.plans.heads import CONTRIB, Heads, angles_at, heads_of
from qdq_passes.analysis.plans.operands import (
    MOST_OF_ADDENDS,
    NotComputable,
    as_float32,
    no_references,
    source,
    step,
    target,
)
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.requantize import Addition, addition


@dataclass(frozen=True, eq=False, kw_only=True)
class Rotary:
    """A RotaryEmbedding.

    Args:
        x: what is turned.
        cos: cosines.
        sin: sines.
        heads: the form of ``x``, and what chooses the angles.
        output: encoding of the output.
        sum: integers of the sum, of y₂; None in the mode ``float``.
    """

    x: Operand
    cos: Operand
    sin: Operand
    heads: Heads
    output: Encoding
    sum: Addition | None


def is_rotary(node: ir.Node) -> bool:
    """Whether ``node`` is a RotaryEmbedding of onnx or of com.microsoft."""
    return node.op_type == "RotaryEmbedding" and node.domain in ("", "ai.onnx", CONTRIB)


def rotary(unit: Unit, arithmetic: Arithmetic) -> Rotary:
    """The plan of a RotaryEmbedding.

    Raises:
        NotComputable: there is none.
    """
    node = unit.core
    no_references(node)
    cosines, sines, _ = angles_at(node)
    x, cos, sin = (source(unit, index) for index in (0, cosines, sines))
    output = target(unit)
    return Rotary(
        x=x, cos=cos, sin=sin, heads=heads_of(node, x, cos), output=output, sum=_sum(x, cos, sin, output, arithmetic)
    )


def _sum(x: Operand, cos: Operand, sin: Operand, output: Encoding, arithmetic: Arithmetic) -> Addition | None:
    assert x.encoding is not None
    assert cos.encoding is not None
    assert sin.encoding is not None
    out, of_cos, of_sin = step(output), *(step(x.encoding) * step(e) for e in (cos.encoding, sin.encoding))
    if arithmetic.requantize == "float":
        as_float32("product of scales", of_cos, of_sin, most=MOST_OF_ADDENDS)
        return None
    found = addition(of_cos / out, of_sin / out, arithmetic)
    if isinstance(found, str):
        raise NotComputable(found)
    return found
