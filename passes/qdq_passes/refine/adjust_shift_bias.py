"""adjust-shift-bias

From the accumulator to the bias: min(0, c − 16) ≤ p_w + p_x − p_b ≤ 15 with c = p_w + p_x − p_y; from 0 before a LeakyRelu."""

from __future__ import annotations

from dataclasses import dataclass

from qdq_passes.refine._run import Step


@dataclass(frozen=True)
class AdjustShiftBias(Step):
    """Move the bias of each Conv and Gemm to where the shift into the accumulator is within limits.

    Graph: unchanged but for scales, and stored integers with them. A bias that several layers share moves for all.
    Requires: constant scales 2^-p, one a tensor, of 8 bits or of a bias, with zero point 0 or in the middle of an unsigned
    type.
    Keeps: names of inputs and outputs, zero points; biases at s_x·s_w follow.
    Skips: operators of which input, weight, bias or output has no position (told where there is a pair); positions that the
    float type of a scale does not hold; bodies and functions. A bias at s_x·s_w, whose shift is 0.

    Args:
        stored: ``requantize`` rounds what stored integers stand for to the new scale; ``keep`` leaves the integers, which
            then stand for something else, as the reference does. Float data of weights loses nothing: adjust before
            `fold-weight-qdq`.
        ranges: what calibration saw, for the prices: the histogram of a tensor, else values spread evenly over its range
            (~).
        reference: the restrictions of the reference, and its generosity: all that reads a moved scale initializer moves
            along.
    """
