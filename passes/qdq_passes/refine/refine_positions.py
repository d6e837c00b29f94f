"""refine-positions

One step undoes what another needs: a Concat that moves changes the shifts of its neighbours. So all run until nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, get_args

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass
from qdq_passes.encode.edit.encoding_policy import Ranges
from qdq_passes.refine._run import refine
from qdq_passes.refine.edit.scales import Stored
from qdq_passes.refine.look.shifts import RULES

StepName = Literal[
    "align-concat", "align-pool", "align-pad", "align-slice", "adjust-shift-read", "adjust-shift-write", "adjust-shift-cut",
    "adjust-shift-bias", "adjust-hard-sigmoid", "adjust-swish",
]  # fmt: skip
#: All steps, in the order in which they run.
STEPS: tuple[StepName, ...] = get_args(StepName)


@dataclass(frozen=True)
class RefinePositions(Pass):
    """Move power-of-two scales to where an NPU of the Vitis line can shift between them.

    The steps, in this order, again and again until none changes anything: align-concat, align-pool, align-pad, align-slice,
    adjust-shift-read, adjust-shift-write, adjust-shift-cut, adjust-shift-bias, adjust-hard-sigmoid, adjust-swish. Every move
    tells its price, what the SQNR of the tensor loses (negative: gains). A move that a later one takes back is not told.

    Graph: unchanged but for scales, and stored integers with them. Where an input would lose more than a bit for its
    other readers, or clip, the operator reads it through a pair of its own: ``DQ → Q' → DQ'``. What is 0 throughout adopts any
    position.
    Requires: constant scales 2^-p, one a tensor, of 8 bits or of a bias, with zero point 0 or in the middle of an unsigned type.
    Keeps: names of inputs and outputs, zero points; biases at s_x·s_w follow.
    Skips: operators that lack a position which a step needs (told where there is a pair); positions that the float type of a
    scale does not hold; bodies and functions. What is outside of the limits after the last round is told too: two steps may
    contradict each other.

    Args:
        loops: most rounds.
        steps: those that run, always in the order above; what the others demand is not told either.
        stored: ``requantize`` rounds what stored integers stand for to the new scale, once; ``keep`` leaves the integers, which
            then stand for something else, as the reference does. Float data of weights loses nothing: refine before
            `fold-weight-qdq`.
        ranges: what calibration saw, for the prices: the histogram of a tensor, else values spread evenly over its range (~),
            that of its encoding where none is known. They also tell which tensors are 0 throughout.
        reference: the restrictions of the reference, and its generosity: all that reads a moved scale initializer moves along,
            whatever other readers lose; a Mul that adjust-shift-write moves asks for no other round; the output of a pool is
            never looked for behind both factor and activation; every Mul of an x that a hard sigmoid reads too is a swish.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="tensors get a coarser or finer grid")
    loops: int = 5
    steps: tuple[StepName, ...] = STEPS
    stored: Stored = "requantize"
    ranges: Named | Ranges | None = None
    reference: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """The rules, in order, on paper; then the model is written."""
        assert not isinstance(self.ranges, Named)
        rules = [rule for rule in RULES if rule.name in self.steps]
        yield from refine(
            model, rules, loops=self.loops, stored=self.stored, ranges=self.ranges, reference=self.reference
        )
