"""adjust-shift-write

From the sum or product to the output: −7 ≤ min p_i − p_y ≤ 25 for Add, 0 ≤ Σ p_i − p_y ≤ 32 for Mul."""

from __future__ import annotations

from dataclasses import dataclass

from qdq_passes.refine._run import Step


@dataclass(frozen=True)
class AdjustShiftWrite(Step):
    """Move the output of each Add and Mul to where the shift from its inputs is within limits.

    Graph: unchanged but for scales. The output of an Add may stand behind an activation.
    Requires: constant scales 2^-p, one a tensor, of 8 bits or of a bias, with zero point 0 or in the middle of an unsigned
    type.
    Keeps: names of inputs and outputs, zero points; biases at s_x·s_w follow.
    Skips: operators of which an input or the output has no position (told where there is a pair); positions that the float
    type of a scale does not hold; bodies and functions.

    Args:
        stored: ``requantize`` rounds what stored integers stand for to the new scale; ``keep`` leaves the integers, which
            then stand for something else, as the reference does. Float data of weights loses nothing: adjust before
            `fold-weight-qdq`.
        ranges: what calibration saw, for the prices: the histogram of a tensor, else values spread evenly over its range
            (~).
        reference: the restrictions of the reference, and its generosity: all that reads a moved scale initializer moves
            along; a Mul that moves asks for no other round of `refine-positions`.
    """
