"""align-pad

A Pad copies integers: input and output have one scale, the coarser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qdq_passes.refine._align import AlignStep, Side


@dataclass(frozen=True)
class AlignPad(AlignStep):
    """Give input and output of each Pad one position, the smaller.

    Graph: unchanged but for scales.
    Requires: constant scales 2^-p, one a tensor, of 8 bits or of a bias, with zero point 0 or in the middle of an unsigned
    type.
    Keeps: names of inputs and outputs, zero points; biases at s_x·s_w follow.
    Skips: operators whose input or output has no position (told where there is a pair); positions that the float type of a
    scale does not hold; bodies and functions.

    Args:
        stored: ``requantize`` rounds what stored integers stand for to the new scale; ``keep`` leaves the integers, which
            then stand for something else, as the reference does. Float data of weights loses nothing: adjust before
            `fold-weight-qdq`.
        ranges: what calibration saw, for the prices: the histogram of a tensor, else values spread evenly over its range
            (~).
        reference: the restrictions of the reference, and its generosity: all that reads a moved scale initializer moves
            along.
        scales: ``any`` copies scale and zero point from the output to the input, for scales that are no powers of two.
    """

    source: ClassVar[Side] = "output"
