"""The steps of `refine-positions`, each a pass of its own: rows named like their rules in `qdq_passes.refine.look.shifts`."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Named, skip
from qdq_passes.encode.edit.encoding_policy import Ranges
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.qdq_ops import is_quantize
from qdq_passes.graph.uses import label
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.edit.reencode import Edit, Target, nodes_of, reencode, settled, targets
from qdq_passes.qdq.look.grids import change_in_words, grid_text
from qdq_passes.qdq.look.pairs import encoding_of
from qdq_passes.refine._run import Step
from qdq_passes.refine.edit.own_pairs import OwnPair, can_be_split, insert_own_pairs
from qdq_passes.refine.look.position_groups import tensor_of
from qdq_passes.refine.look.scale_positions import Positions
from qdq_passes.refine.look.shifts import RULES
from qdq_passes.select.selectors import ALL

#: Times the step of an input that its other readers can spare: 3.5 dB.
COARSER = 1.5
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
        assert not isinstance(self.ranges, Named)
        if self.scales == "pow2":
            yield from super().run(model)
        else:
            yield from _copy(model, self.name(), self.source, self.ranges)


def _copy(model: ir.Model, name: str, source: Side, ranges: Ranges | None) -> Iterator[Change]:
    """Copy encodings over the operators of the rule ``name``; towards inputs from the end of the file, so that chains arrive in
    one round. What one operator has asked for, no other changes."""
    positions = Positions(model, any_scale=True, ranges=ranges)
    rule = next(rule for rule in RULES if rule.name == name)
    nodes = positions.nodes(rule.op_types)
    plan, changes = _Plan(positions, ()), list[Change]()
    while True:
        changes = [
            change for node in (nodes if source == "input" else reversed(nodes)) for change in plan.align(node, source)
        ]
        found = plan.harmed()
        if not found:
            break
        plan = _Plan(positions, {*plan.apart, *found})
    yield from changes
    yield from (skip(node, reason) for node, reason in positions.notes.items())
    edits = plan.edits(model)
    yield from insert_own_pairs(model, plan.own)
    yield from reencode(model, edits, Namer(model))


class _Plan:
    """Encodings that tensors are to get.

    Args:
        positions: the halves.
        apart: first halves of tensors that keep their encoding: who wants another gets a pair of its own.
    """

    def __init__(self, positions: Positions, apart: Collection[ir.Node]) -> None:
        self._positions, self.apart = positions, apart
        self._claims: dict[ir.Node, tuple[Encoding, str]] = {}
        self._takers: dict[ir.Node, set[ir.Node | None]] = {}
        #: Readers that get the encoding alone.
        self.own: list[OwnPair] = []

    def align(self, node: ir.Node, source: Side) -> Iterator[Change]:
        """Let one side of ``node`` have the encoding of the other, which both then keep."""
        positions = self._positions
        inputs = range(len(node.inputs)) if node.op_type == "Concat" else range(1)
        found = {index: half for index in inputs if (half := positions.input(node, index)) is not None}
        output = positions.output(node)
        if output is not None and found:
            giver, takers = (found[0], {-1: output}) if source == "input" else (output, found)
            self._claims.setdefault(self._first(giver), (self._at(giver), ""))
            for index, taker in takers.items():
                yield from self._copy(node, index, giver, taker)

    def _copy(self, node: ir.Node, index: int, giver: ir.Node, taker: ir.Node) -> Iterator[Change]:
        """Let ``taker``, input ``index`` of ``node`` (-1: its output), have the encoding of ``giver``."""
        have, wanted, first = self._at(taker), self._at(giver), self._first(taker)
        claim, tensor = self._claims.get(first), tensor_of(taker)
        if have.dtype != wanted.dtype:
            types = f"{have.dtype.name.lower()}, {tensor_of(giver)} {wanted.dtype.name.lower()}"
            yield skip(node, f"{tensor} is {types}")
        elif first in self.apart and have != wanted:
            if can_be_split(taker):
                self.own.append(OwnPair(node, index, taker, wanted, self._others(first, {node})))
            else:
                yield skip(node, f"{tensor} keeps {grid_text(have)}, as other operators read it too")
        elif claim is None:
            self._claims[first] = (wanted, f"the encoding of {tensor_of(giver)}, for {label(node)}")
            self._takers[first] = {node} if index >= 0 else set()
        elif claim[0] != wanted:
            yield skip(node, f"{tensor} keeps {grid_text(claim[0])}, as another operator wants it")
        elif first in self._takers and index >= 0:
            self._takers[first].add(node)

    def harmed(self) -> list[ir.Node]:
        """First halves of the inputs that an encoding is planned for by which other readers lose."""
        return [
            first
            for first, nodes in self._takers.items()
            if nodes
            and not self._positions.is_zero(first)
            and not _holds(self._claims[first][0], self._positions.encoding(first))
            and self._others(first, nodes)
        ]

    def _others(self, first: ir.Node, nodes: Collection[ir.Node | None]) -> list[ir.Node | None]:
        """What reads the tensor of ``first`` beside ``nodes``, and not in the encoding that these want."""
        wanted = self._claims[first][0] if first in self._claims else None
        readers = [reader for reader in self._positions.readers(first) if reader not in nodes]
        return [r for r in readers if r is None or not is_quantize(r) or encoding_of(r) != wanted]

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


def _holds(wanted: Encoding, have: Encoding) -> bool:
    """Whether ``wanted`` clips nothing of what ``have`` holds but half a step, and has a step that is hardly coarser."""
    (low, high), (least, most) = real_range(have), real_range(wanted)
    slack = wanted.scale[0] / 2
    is_wide = least.min() <= low.min() + slack and high.max() - slack <= most.max()
    return bool(is_wide) and wanted.scale[0] <= COARSER * have.scale[0]


_DOC = """{summary}

Graph: unchanged but for scales{graph} Where an input would lose more than a bit for its other readers, or clip, the \
operator reads it through a pair of its own: ``DQ → Q' → DQ'``. Data that is 0 throughout adopts any scale.
Requires: constant scales 2^-p, one a tensor, of 8 bits or of a bias, with zero point 0 or in the middle of an unsigned type.
Keeps: names of inputs and outputs, zero points; biases at s_x·s_w follow.
Skips: operators {lacking} no position (told where there is a pair); positions that the float type of a scale does not hold; \
bodies and functions.{skips}

Args:
    stored: ``requantize`` rounds what stored integers stand for to the new scale; ``keep`` leaves the integers, which then \
stand for something else, as the reference does. Float data of weights loses nothing: adjust before `fold-weight-qdq`.
    ranges: what calibration saw, for the prices: the histogram of a tensor, else values spread evenly over its range (~); and \
which tensors are 0 throughout.
    reference: the restrictions of the reference, and its generosity: all that reads a moved scale initializer moves \
along, whatever other readers lose{reference}
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
