"""adjust-shift-read

The inputs of an Add or Sub are shifted to one position, by 7 bits at most: max p_i − min p_i ≤ 7."""

from __future__ import annotations

from dataclasses import dataclass

from qdq_passes.refine._run import Step


@dataclass(frozen=True)
class AdjustShiftRead(Step):
    """Bring the inputs of each Add and Sub within 7 positions: the largest becomes the smallest + 7.

    Graph: unchanged but for scales, and stored integers with them.
    Requires: constant scales 2^-p, one a tensor, of 8 bits or of a bias, with zero point 0 or in the middle of an unsigned
    type.
    Keeps: names of inputs and outputs, zero points; biases at s_x·s_w follow.
    Skips: operators of which an input has no position (told where there is a pair); positions that the float type of a
    scale does not hold; bodies and functions.

    Args:
        stored: ``requantize`` rounds what stored integers stand for to the new scale; ``keep`` leaves the integers, which
            then stand for something else, as the reference does. Float data of weights loses nothing: adjust before
            `fold-weight-qdq`.
        ranges: what calibration saw, for the prices: the histogram of a tensor, else values spread evenly over its range
            (~).
        reference: the restrictions of the reference, and its generosity: all that reads a moved scale initializer moves
            along.
    """
