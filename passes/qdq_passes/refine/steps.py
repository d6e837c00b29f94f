"""The steps of `refine-positions`, each a pass of its own: rows named like their rules in `qdq_passes.refine.look.shifts`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import label
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.edit.reencode import Edit, Target, nodes_of, reencode, settled, targets
from qdq_passes.qdq.look.grids import change_in_words, grid_text
from qdq_passes.refine._run import Step
from qdq_passes.refine.look.position_groups import tensor_of
from qdq_passes.refine.look.scale_positions import Positions
from qdq_passes.refine.look.shifts import RULES
from qdq_passes.select.selectors import ALL

#: Which side of an operator the encoding comes from.
Side = Literal["input", "output"]


@dataclass(frozen=True)
class AlignStep(Step):
    """A step that aligns: powers of two to the smallest position, other scales as `source` says."""

    #: Whose encoding the other side gets where scales are no powers of two.
    source: ClassVar[Side] = "output"
    scales: Literal["pow2", "any"] = "pow2"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Positions move, or encodings are copied."""
        yield from super().run(model) if self.scales == "pow2" else _copy(model, self.name(), self.source)


def _copy(model: ir.Model, name: str, source: Side) -> Iterator[Change]:
    """Copy encodings over the operators of the rule ``name``; towards inputs from the end of the file, so that chains arrive in
    one round. What one operator has asked for, no other changes."""
    positions = Positions(model, any_scale=True)
    rule = next(rule for rule in RULES if rule.name == name)
    nodes = positions.nodes(rule.op_types)
    plan = _Plan(positions)
    for node in nodes if source == "input" else reversed(nodes):
        inputs = range(len(node.inputs)) if name == "align-concat" else range(1)
        found = [half for index in inputs if (half := positions.input(node, index)) is not None]
        output = positions.output(node)
        if output is None or not found:
            continue
        giver, takers = (found[0], [output]) if source == "input" else (output, found)
        yield from plan.copy(node, giver, takers)
    yield from (skip(node, reason) for node, reason in positions.notes.items())
    yield from reencode(model, plan.edits(model), Namer(model))


class _Plan:
    """Encodings that tensors are to get."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._claims: dict[ir.Node, tuple[Encoding, str]] = {}

    def copy(self, node: ir.Node, giver: ir.Node, takers: list[ir.Node]) -> Iterator[Change]:
        """Let ``takers`` have the encoding of ``giver``; which both sides then keep."""
        wanted = self._at(giver)
        because = f"the encoding of {tensor_of(giver)}, for {label(node)}"
        self._claims.setdefault(self._first(giver), (wanted, ""))
        for taker in takers:
            have, claim = self._at(taker), self._claims.get(self._first(taker))
            if have.dtype != wanted.dtype:
                types = f"{have.dtype.name.lower()}, {tensor_of(giver)} {wanted.dtype.name.lower()}"
                yield skip(node, f"{tensor_of(taker)} is {types}")
            elif claim is None:
                self._claims[self._first(taker)] = (wanted, because)
            elif claim[0] != wanted:
                yield skip(node, f"{tensor_of(taker)} keeps {grid_text(claim[0])}, as another operator wants it")

    def edits(self, model: ir.Model) -> list[Edit]:
        """The claims that change something."""
        by_node: dict[ir.Node, Target] = {node: t for t in targets(model, ALL) for node in nodes_of(t)}
        found: dict[ir.Node, Edit] = {}
        for first, (wanted, because) in self._claims.items():
            for node in self._positions.together(first):
                target, old = by_node[node], self._positions.encoding(node)
                new = settled(target, wanted)
                if new != old:
                    text = f"{because}: {change_in_words(old, new)}"
                    found.setdefault(nodes_of(target)[0], Edit(target, old, new, text))
        return list(found.values())

    def _first(self, half: ir.Node) -> ir.Node:
        return self._positions.together(half)[0]

    def _at(self, half: ir.Node) -> Encoding:
        claim = self._claims.get(self._first(half))
        return claim[0] if claim is not None else self._positions.encoding(half)


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
globals().update({each.__name__: each for each in PASSES.values()})  # a pickle finds a class by its name in its module
