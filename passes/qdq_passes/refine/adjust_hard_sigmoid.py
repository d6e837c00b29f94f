"""adjust-hard-sigmoid

The DPU computes x·2731 / 2^14 + 1/2 on integers: 0 ≤ p_x ≤ 15, 7 ≤ p_y and 14 + p_x − p_y > 0."""

from __future__ import annotations

from dataclasses import dataclass

from qdq_passes.refine._run import Step


@dataclass(frozen=True)
class AdjustHardSigmoid(Step):
    """Move input and output of each HardSigmoid(1/6, 1/2) to where its shifts are within limits.

    Graph: unchanged but for scales. The output may stand behind the factor of the hard sigmoid (a Mul by a constant).
    Requires: constant scales 2^-p, one a tensor, of 8 bits or of a bias, with zero point 0 or in the middle of an unsigned
    type.
    Keeps: names of inputs and outputs, zero points; biases at s_x·s_w follow.
    Skips: operators of which input or output has no position (told where there is a pair); positions that the float type of
    a scale does not hold; bodies and functions. Other slopes and offsets.

    Args:
        stored: ``requantize`` rounds what stored integers stand for to the new scale; ``keep`` leaves the integers, which
            then stand for something else, as the reference does. Float data of weights loses nothing: adjust before
            `fold-weight-qdq`.
        ranges: what calibration saw, for the prices: the histogram of a tensor, else values spread evenly over its range
            (~).
        reference: the restrictions of the reference, and its generosity: all that reads a moved scale initializer moves
            along.
    """
