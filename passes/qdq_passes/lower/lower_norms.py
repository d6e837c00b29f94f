"""lower-norms

S1 = Σ(x − z), S2 = Σ(x − z)², v = n·S2 − S1² and c = n·(x − z) − S1 in integers; k = s_x / n, r = float32(k / √(v·k² + ε));
y = round((c·r·γ + β) / s_y) + z_y in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qdq_passes.analysis.plans.norms import norm
from qdq_passes.analysis.plans.operands import step, zero
from qdq_passes.analysis.plans.tails import Tail
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerNorms(Lowering):
    """Turn normalizations between QDQ pairs into exact sums of integers and of their squares, and float32 behind them.

    Graph: ``DQ(x), DQ(γ), β → LayerNormalization → Q`` → ``x, gain, shift → ai.qdqtool::Norm``; RMSNormalization,
    InstanceNormalization, GroupNormalization and LpNormalization likewise. Gain and shift are new float32 constants
    ``<node>_gain`` and ``<node>_shift``.
    Requires: assign-targets.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "norms"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One normalization."""
        plan = norm(unit)
        encoding = plan.x.encoding
        assert encoding is not None
        attributes: Attributes = {
            **output_attributes(plan.output, Tail(), arithmetic, mode="float", sums=False),
            "x_zero_point": zero(encoding),
            "x_scale": step(encoding),
            "centered": int(plan.is_centered),
            "epsilon": plan.epsilon,
            **({"groups": plan.groups} if plan.groups else {"axis": plan.axis}),
        }
        shift = None if plan.shift is None else into.constant("shift", plan.shift)
        inputs = [into.integers(plan.x), into.constant("gain", plan.gain), shift]
        return into.done(into.node("Norm", inputs, dtype=plan.output.dtype, attributes=attributes_of(attributes)))
