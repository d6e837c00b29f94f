"""lower-convolutions

y = clamp(round(m·(Σ(x − z_x)(w − z_w) + b)·2^-k) + z_y), with m·2^-k for s_x·s_w / s_y, an m and k per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qdq_passes.analysis.plans.operands import zero
from qdq_passes.analysis.plans.products import convolution
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.lower._lowering import Attributes, Lowering, output_attributes, scaling_inputs
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerConvolutions(Lowering):
    """Turn convolutions between QDQ pairs, with the activation behind them, into convolutions on integers.

    Graph: ``DQ(x), DQ(w), DQ(b) → Conv → Relu → Q`` → ``x, w, b, multiplier, shift → ai.qdqtool::Conv``; ConvTranspose likewise.
    Bias, multipliers and shifts are new constants ``<node>_bias``, ``<node>_multiplier``, ``<node>_shift``.
    Requires: assign-targets; pads in numbers, or sizes that are known.
    Keeps: inputs, outputs and all names; numerics become the target's.
    Skips: what its annotation leaves to the CPU; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "convolutions"

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """One convolution."""
        plan = convolution(unit, arithmetic)
        window, x_encoding = plan.window, plan.x.encoding
        assert window is not None
        assert x_encoding is not None
        attributes: Attributes = {
            **output_attributes(plan.output, plan.tail, arithmetic, wide=plan.is_wide),
            "x_zero_point": zero(x_encoding),
            "w_zero_points": plan.w_zero_points.tolist(),
            "kernel_shape": list(window.kernel),
            "strides": list(window.strides),
            "pads": list(window.pads),
            "dilations": list(window.dilations),
            "group": window.group,
            "x_shift": plan.x_shift,
        }
        if unit.core.op_type == "ConvTranspose":
            attributes["output_padding"] = list(window.output_padding)
        bias = None if plan.bias is None else into.constant("bias", plan.bias.astype(np.int32))
        inputs = [into.integers(plan.x), into.integers(plan.weight), bias, *scaling_inputs(plan.scaling, into)]
        dtype = plan.output.dtype
        return into.done(into.node(unit.core.op_type, inputs, dtype=dtype, attributes=attributes_of(attributes)))
