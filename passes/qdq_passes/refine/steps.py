"""The steps of `refine-positions`, each a pass of its own: rows named like their rules in `qdq_passes.refine.look.shifts`."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from qdq_passes.refine._align import AlignStep, Side
from qdq_passes.refine._run import Step

_DOC = """{summary}

Graph: unchanged but for scales{graph}
Requires: constant scales 2^-p, one a tensor, of 8 bits or of a bias, with zero point 0 or in the middle of an unsigned type.
Keeps: names of inputs and outputs, zero points; biases at s_x·s_w follow.
Skips: operators {lacking} no position (told where there is a pair); positions that the float type of a scale does not hold; \
bodies and functions.{skips}

Args:
    stored: ``requantize`` rounds what stored integers stand for to the new scale; ``keep`` leaves the integers, which then \
stand for something else, as the reference does. Float data of weights loses nothing: adjust before `fold-weight-qdq`.
    ranges: what calibration saw, for the prices: the histogram of a tensor, else values spread evenly over its range (~).
    reference: the restrictions of the reference, and its generosity: all that reads a moved scale initializer moves \
along{reference}
"""
_SCALES = """\
    scales: ``any`` copies scale and zero point from the {giver} to the {taker}, for scales that are no powers of two.
"""


def _adjusting(
    name: str, summary: str, *, lacking: str, graph: str = ".", skips: str = "", reference: str = "."
) -> type[Step]:
    """The pass ``name``, and what it says of itself beside what all say."""
    text = _DOC.format(summary=summary, lacking=lacking, graph=graph, skips=skips, reference=reference)
    return dataclass(frozen=True)(type(name, (Step,), {"__doc__": _wrapped(text), "__module__": __name__}))


def _aligning(
    name: str, summary: str, *, source: Side, lacking: str = "whose input or output has", graph: str = ".",
    skips: str = "", reference: str = ".", inputs: str = "input",
) -> type[AlignStep]:  # fmt: skip
    """The pass ``name``, which copies the encoding of ``source`` where scales are no powers of two."""
    giver, taker = (inputs, "output") if source == "input" else ("output", inputs)
    text = _DOC.format(summary=summary, lacking=lacking, graph=graph, skips=skips, reference=reference)
    doc = _wrapped(text + _SCALES.format(giver=giver, taker=taker))
    body = {"__doc__": doc, "__module__": __name__, "source": source}
    return dataclass(frozen=True)(type(name, (AlignStep,), body))


def _wrapped(text: str) -> str:
    """``text`` in lines of a docstring."""
    wrap = textwrap.TextWrapper(120, break_on_hyphens=False)
    found = []
    for line in text.splitlines():
        wrap.subsequent_indent = " " * 8 if line.startswith(" ") else ""
        found.append(wrap.fill(line))
    return "\n".join(found)


_STORED = ", and stored integers with them."
#: In the order in which `refine-positions` runs them; behind each why it is there.
PASSES = {
    "align-concat": _aligning(  # a Concat copies integers: its inputs and its output have one scale, the coarsest of them
        "AlignConcat",
        "Give the inputs and the output of each Concat one position, the smallest of them.",
        source="output", inputs="inputs", graph=_STORED, lacking="whose output has",
        skips=" An input without a position is left out.",
    ),
    "align-pool": _aligning(  # MaxPool picks integers, the shift of an average belongs to the factor behind it
        "AlignPool",
        "Give input and output of MaxPool, AveragePool and GlobalAveragePool one position, the smaller.",
        source="input",
        graph=". The output may stand behind the pool's factor (a Mul by a constant) and an activation, the input before a Pad.",
        reference="; the input of an average is looked for behind one operator of any type, its output never behind both factor "
        "and activation.",
    ),
    "align-pad": _aligning(  # a Pad copies integers: input and output have one scale, the coarser
        "AlignPad", "Give input and output of each Pad one position, the smaller.", source="output"
    ),
    "align-slice": _aligning(  # so does a Slice
        "AlignSlice", "Give input and output of each Slice one position, the smaller.", source="input"
    ),
    "adjust-shift-read": _adjusting(  # inputs are shifted to one position, by 7 bits at most: max p_i − min p_i ≤ 7
        "AdjustShiftRead",
        "Bring the inputs of each Add and Sub within 7 positions: the largest becomes the smallest + 7.",
        graph=_STORED, lacking="of which an input has",
    ),
    "adjust-shift-write": _adjusting(  # −7 ≤ min p_i − p_y ≤ 25 for Add, 0 ≤ Σ p_i − p_y ≤ 32 for Mul
        "AdjustShiftWrite",
        "Move the output of each Add and Mul to where the shift from its inputs is within limits.",
        graph=". The output of an Add may stand behind an activation.",
        lacking="of which an input or the output has",
        reference="; a Mul that moves asks for no other round of `refine-positions`.",
    ),
    "adjust-shift-cut": _adjusting(  # from the accumulator, at position p_w + p_x, to the output: 0 ≤ p_w + p_x − p_y ≤ 16
        "AdjustShiftCut",
        "Move the weight of each Conv and Gemm to where the shift from accumulator to output is within limits.",
        graph=f"{_STORED} The output may stand behind an activation.",
        lacking="of which input, weight or output has",
    ),
    "adjust-shift-bias": _adjusting(
        # from the accumulator to the bias: min(0, c − 16) ≤ p_w + p_x − p_b ≤ 15, c = p_w + p_x − p_y; from 0 before a LeakyRelu
        "AdjustShiftBias",
        "Move the bias of each Conv and Gemm to where the shift into the accumulator is within limits.",
        graph=f"{_STORED} A bias that several layers share moves for all.",
        lacking="of which input, weight, bias or output has",
        skips=" A bias at s_x·s_w, whose shift is 0.",
    ),
    "adjust-hard-sigmoid": _adjusting(
        # the DPU computes x·2731 / 2^14 + 1/2 on integers: 0 ≤ p_x ≤ 15, 7 ≤ p_y and 14 + p_x − p_y > 0
        "AdjustHardSigmoid",
        "Move input and output of each HardSigmoid(1/6, 1/2) to where its shifts are within limits.",
        graph=". The output may stand behind the factor of the hard sigmoid (a Mul by a constant).",
        lacking="of which input or output has",
        skips=" Other slopes and offsets.",
    ),
    "adjust-swish": _adjusting(  # from the product x·hardsigmoid(x) to the output: 0 ≤ p_1 + p_2 − p_y ≤ 15
        "AdjustSwish",
        "Move the output of each Mul of x by the HardSigmoid(1/6, 1/2) of x to where the shift is within limits.",
        lacking="of which an input or the output has",
        reference="; any Mul counts of which one input is read by a hard sigmoid as well.",
    ),
}  # fmt: skip
