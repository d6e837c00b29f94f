"""What the DPU of the Vitis line demands of positions: it rescales by shifts, each of which has so many bits.

Integers at positions p1 and p2 multiply to one at p1 + p2, which is shifted right by the difference to the position of the
output. Source of rules and numbers: the refinement of AMD Quark 0.13 for NPU-CNN, read and reproduced on its results; the order
of `RULES` is the order in which it adjusts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.activations import AVERAGE_POOLS, is_dpu_hard_sigmoid
from qdq_passes.graph.operators.qdq_ops import float_source
from qdq_passes.graph.uses import is_standard
from qdq_passes.refine.look.scale_positions import Positions, factor_input

Halves = Sequence[ir.Node]


class Places(Protocol):
    """Where an operator's tensors stand: `Positions` of a graph, or those of a single unit."""

    reference: bool

    def input(self, node: ir.Node, index: int, *, beyond: bool = False) -> ir.Node | None:
        """The half of input ``index`` of ``node``, if it has a position."""
        ...

    def output(self, node: ir.Node) -> ir.Node | None:
        """The half of its output, if it has a position."""
        ...

    def follows(self, bias: ir.Node) -> bool:
        """Whether ``bias`` is the half of a bias at s_x·s_w."""
        ...

    def is_zero(self, half: ir.Node) -> bool:
        """Whether the tensor of ``half`` is 0 throughout, so that it can have any position."""
        ...

    def __getitem__(self, half: ir.Node) -> int:
        """The position of ``half``."""
        ...


@dataclass(frozen=True, kw_only=True)
class ShiftLimits:
    """How far an NPU shifts, in bits; ranges are (lowest, highest), both allowed.

    Args:
        read: between the inputs of an Add or Sub.
        add: from the coarsest input of an Add to its output.
        mul: from the sum of the positions of both inputs of a Mul to its output.
        cut: from the accumulator of a Conv or Gemm (input + weight) to its output.
        bias: highest, from the accumulator to the bias.
        bias_width: the lowest for the bias is min(0, cut − bias_width): 24 bits of accumulator without 8 of data; 0 before a
            LeakyRelu.
        hard_sigmoid_input: position of the input of a HardSigmoid.
        hard_sigmoid_output: lowest position of its output.
        hard_sigmoid: the input may be this many bits less than one finer than the output: hard_sigmoid + input − output > 0.
        swish: from the sum of both factors of x·hardsigmoid(x) to the product.
    """

    read: int = 7
    add: tuple[int, int] = (-7, 25)
    mul: tuple[int, int] = (0, 32)
    cut: tuple[int, int] = (0, 16)
    bias: int = 15
    bias_width: int = 16
    hard_sigmoid_input: tuple[int, int] = (0, 15)
    hard_sigmoid_output: int = 7
    hard_sigmoid: int = 14
    swish: tuple[int, int] = (0, 15)


@dataclass(frozen=True, eq=False)
class Violation:
    """An operator whose positions the NPU cannot shift between.

    Args:
        rule: the pass that repairs it.
        node: the operator.
        because: what is wrong, in numbers.
        wanted: (Q or DQ node, position) that repair it, in the order in which the reference writes them.
    """

    rule: str
    node: ir.Node
    because: str
    wanted: tuple[tuple[ir.Node, int], ...]


@dataclass(frozen=True)
class Rule:
    """One demand on operators of some types.

    Args:
        name: name of the pass that adjusts it.
        op_types: the operators it is about.
        check: (positions, node, limits) → what is wrong and what repairs it; None where nothing is, or where a position that it
            needs is missing.
    """

    name: str
    op_types: tuple[str, ...]
    check: Callable[[Places, ir.Node, ShiftLimits], tuple[str, list[tuple[ir.Node, int]]] | None]

    def violation(self, positions: Places, node: ir.Node, limits: ShiftLimits) -> Violation | None:
        """What is wrong with ``node``, or None."""
        found = self.check(positions, node, limits)
        return None if found is None else Violation(self.name, node, found[0], tuple(found[1]))


def violations(model: ir.Model, limits: ShiftLimits | None = None) -> list[Violation]:
    """Everything in the main graph of ``model`` that an NPU with ``limits`` cannot shift; by rule, then in file order."""
    return violations_at(Positions(model), limits or ShiftLimits())


def violations_at(positions: Positions, limits: ShiftLimits) -> list[Violation]:
    """`violations` of the planned ``positions``."""
    every = ((rule, node) for rule in RULES for node in positions.nodes(rule.op_types))
    return [v for rule, node in every if (v := rule.violation(positions, node, limits)) is not None]


Found = tuple[str, list[tuple[ir.Node, int]]] | None


def _outside(label: str, value: int, limits: tuple[int, int]) -> tuple[str, int] | None:
    """(what is wrong, the limit that is nearest) where ``value`` is outside of ``limits``."""
    low, high = limits
    if low <= value <= high:
        return None
    return f"{label} is {value}, limits [{low}, {high}]", min(max(value, low), high)


def _align(positions: Places, node: ir.Node, _: ShiftLimits) -> Found:
    """Input and output at one position, the smaller."""
    x, y = positions.input(node, 0, beyond=node.op_type in AVERAGE_POOLS), positions.output(node)
    return None if x is None or y is None else _at_smallest(positions, [x, y])


def _align_concat(positions: Places, node: ir.Node, _: ShiftLimits) -> Found:
    """All inputs that have a position, and the output."""
    y = positions.output(node)
    if y is None:
        return None
    inputs = [x for i in range(len(node.inputs)) if (x := positions.input(node, i)) is not None]
    return _at_smallest(positions, [*inputs, y])


def _at_smallest(positions: Places, halves: Halves) -> Found:
    smallest = min(positions[half] for half in _telling(positions, halves))
    moving = [(half, smallest) for half in halves if positions[half] != smallest]
    return (f"inputs and output at the smallest, {smallest}", moving) if moving else None


def _telling(positions: Places, halves: Halves) -> Halves:
    """Those of ``halves`` whose position matters: not those of zeros, unless all are."""
    return [half for half in halves if not positions.is_zero(half)] or halves


def _inputs(positions: Places, node: ir.Node) -> list[ir.Node] | None:
    """The halves of all inputs; None unless every one has a position."""
    found = [x for i in range(len(node.inputs)) if (x := positions.input(node, i)) is not None]
    return found if found and len(found) == len(node.inputs) else None


def _shift_read(positions: Places, node: ir.Node, limits: ShiftLimits) -> Found:
    inputs = _inputs(positions, node)
    if inputs is None:
        return None
    places = [positions[x] for x in inputs]
    wrong = _outside("largest − smallest input", max(places) - min(places), (0, limits.read))
    if wrong is None:
        return None
    telling = _telling(positions, inputs)
    if len(telling) < len(inputs):
        return wrong[0], [(x, positions[telling[0]]) for x in inputs if x is not telling[0]]
    return wrong[0], [(inputs[places.index(max(places))], min(places) + wrong[1])]


def _shift_write(positions: Places, node: ir.Node, limits: ShiftLimits) -> Found:
    inputs, y = _inputs(positions, node), positions.output(node)
    if inputs is None or y is None:
        return None
    places = [positions[x] for x in inputs]
    is_add = node.op_type == "Add"
    exact = min(places) if is_add else sum(places)
    label, bounds = ("smallest input − output", limits.add) if is_add else ("sum of inputs − output", limits.mul)
    wrong = _outside(label, exact - positions[y], bounds)
    return None if wrong is None else (wrong[0], [(y, exact - wrong[1])])


def _shift_cut(positions: Places, node: ir.Node, limits: ShiftLimits) -> Found:
    x, w, y = positions.input(node, 0), positions.input(node, 1), positions.output(node)
    if x is None or w is None or y is None:
        return None
    wrong = _outside("weight + input − output", positions[w] + positions[x] - positions[y], limits.cut)
    return None if wrong is None else (wrong[0], [(w, wrong[1] + positions[y] - positions[x])])


def _shift_bias(positions: Places, node: ir.Node, limits: ShiftLimits) -> Found:
    b = positions.input(node, 2)
    x, w, y = positions.input(node, 0), positions.input(node, 1), positions.output(node)
    if b is None or x is None or w is None or y is None or positions.follows(b):
        return None
    sums = positions[w] + positions[x]
    low = min(0, sums - positions[y] - limits.bias_width)
    if any(is_standard(use.node, "LeakyRelu") for use in node.outputs[0].uses()):
        low = 0
    wrong = _outside("weight + input − bias", sums - positions[b], (low, limits.bias))
    return None if wrong is None else (wrong[0], [(b, sums - wrong[1])])


def _hard_sigmoid(positions: Places, node: ir.Node, limits: ShiftLimits) -> Found:
    if not is_dpu_hard_sigmoid(node):
        return None
    x, y = positions.input(node, 0), positions.output(node)
    if x is None or y is None:
        return None
    low, high = limits.hard_sigmoid_input
    new_x = min(max(positions[x], low), high)
    new_y = max(positions[y], limits.hard_sigmoid_output)
    new_y = new_y if limits.hard_sigmoid + new_x - new_y > 0 else limits.hard_sigmoid + new_x
    moving = [(half, new) for half, new in ((x, new_x), (y, new_y)) if positions[half] != new]
    bounds = (
        f"input in [{low}, {high}], output from {limits.hard_sigmoid_output} to below input + {limits.hard_sigmoid}"
    )
    return (f"input {positions[x]}, output {positions[y]}; limits: {bounds}", moving) if moving else None


def _swish(positions: Places, node: ir.Node, limits: ShiftLimits) -> Found:
    if len(node.inputs) != 2 or not _is_swish(positions, node):
        return None
    inputs, y = _inputs(positions, node), positions.output(node)
    if inputs is None or y is None:
        return None
    sums = sum(positions[x] for x in inputs)
    wrong = _outside("sum of inputs − output", sums - positions[y], limits.swish)
    return None if wrong is None else (wrong[0], [(y, sums - wrong[1])])


def _is_swish(positions: Places, mul: ir.Node) -> bool:
    """Whether ``mul`` is x·hardsigmoid(x).

    The reference takes any product with an x that a hard sigmoid reads too, under the same name.
    """
    if positions.reference:
        return any(is_dpu_hard_sigmoid(use.node) for value in mul.inputs if value is not None for use in value.uses())
    first, second = (float_source(value) for value in mul.inputs)
    return any(
        x is not None and (gate := _gate(y)) is not None and float_source(gate.inputs[0]) is x
        for x, y in ((first, second), (second, first))
    )


def _gate(value: ir.Value | None) -> ir.Node | None:
    """The hard sigmoid that made ``value``, with or without its factor."""
    for _ in range(2):
        producer = value.producer() if value is not None else None
        if producer is None or is_dpu_hard_sigmoid(producer):
            return producer
        value = float_source(factor_input(producer))
    return None


#: All rules in the order of the reference.
RULES: tuple[Rule, ...] = (
    Rule("align-concat", ("Concat",), _align_concat),
    Rule("align-pool", ("MaxPool", *AVERAGE_POOLS), _align),
    Rule("align-pad", ("Pad",), _align),
    Rule("align-slice", ("Slice",), _align),
    Rule("adjust-shift-read", ("Add", "Sub"), _shift_read),
    Rule("adjust-shift-write", ("Add", "Mul"), _shift_write),
    Rule("adjust-shift-cut", ("Conv", "Gemm"), _shift_cut),
    Rule("adjust-shift-bias", ("Conv", "Gemm"), _shift_bias),
    Rule("adjust-hard-sigmoid", ("HardSigmoid",), _hard_sigmoid),
    Rule("adjust-swish", ("Mul",), _swish),
)
