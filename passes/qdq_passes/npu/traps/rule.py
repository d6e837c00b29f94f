"""What a rule of traps is, what it looks at, and the search.

Rules see a model with its QDQ pairs looked through. An operator reads a *grid* where a DQ (or a node that is both) writes its
operand; a value is written on a grid where a Q reads it. Between two operators there is a pair, or nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import ClassVar, Generic, TypeVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import LEVELS, Finding, Level, place
from qdq_passes.core.names import kebab_case
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize, is_quantize_dequantize
from qdq_passes.graph.uses import all_nodes, input_at, is_constant
from qdq_passes.qdq.look.grids import Grid, grid_of
from qdq_passes.qdq.look.pairs import dequantizers, pair_of
from qdq_passes.select.globs import literal_tensor

#: What gives everything encodings that the target takes, which is named in its place.
ANEW = "quantize the float model for this target: `qdqtool quantize --target {target}`"
#: What a rule looks at.
Subject = TypeVar("Subject")


@dataclass(frozen=True, eq=False)
class Reading:
    """An operator reads a value, straight or through a pair.

    Args:
        node: the operator.
        index: the input it reads at.
        q: the quantizing node of the pair, None where it reads straight.
        dq: the dequantizing node of the pair; ``q`` again where one node does both.
    """

    node: ir.Node
    index: int
    q: ir.Node | None = None
    dq: ir.Node | None = None


class PairView:
    """A model with its pairs looked through; bodies and local functions included."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        #: Every node, in the order of the file.
        self.nodes: list[ir.Node] = all_nodes(model)
        self._grids: dict[ir.Node, Grid | None] = {}

    def grid(self, node: ir.Node) -> Grid | None:
        """What ``node``, a Q or DQ or both, applies; None when that is computed at run time."""
        if node not in self._grids:
            self._grids[node] = grid_of(node)
        return self._grids[node]

    def linears(self) -> list[tuple[ir.Node, Grid]]:
        """Every encoding once, with the node that bears it: each DQ, and each Q whose integers no DQ reads."""
        nodes = [
            node
            for node in self.nodes
            if is_dequantize(node) or is_quantize_dequantize(node) or (is_quantize(node) and not dequantizers(node))
        ]
        return [(node, grid) for node in nodes if (grid := self.grid(node)) is not None]

    def read(self, node: ir.Node, index: int) -> Grid | None:
        """The grid of operand ``index`` of ``node``; None where it is float, or missing."""
        writer = self.dequantizer(node, index)
        return self.grid(writer) if writer is not None else None

    def dequantizer(self, node: ir.Node, index: int) -> ir.Node | None:
        """The node that dequantizes operand ``index`` of ``node``."""
        value = input_at(node, index)
        producer = value.producer() if value is not None else None
        return producer if producer is not None and _dequantizes(producer) else None

    def written(self, value: ir.Value) -> list[Grid]:
        """The grids that ``value`` is quantized to, one a Q."""
        grids = [self.grid(use.node) for use in value.uses() if use.idx == 0 and _quantizes(use.node)]
        return [grid for grid in grids if grid is not None]

    def source(self, node: ir.Node, index: int) -> ir.Value | None:
        """Operand ``index`` of ``node`` before its pair: the float value a Q reads, or the stored integers; itself without."""
        dq = self.dequantizer(node, index)
        if dq is None:
            return input_at(node, index)
        producer = None if is_quantize_dequantize(dq) or dq.inputs[0] is None else dq.inputs[0].producer()
        return input_at(producer, 0) if producer is not None and is_quantize(producer) else input_at(dq, 0)

    def is_activation(self, node: ir.Node, index: int) -> bool:
        """Whether operand ``index`` of ``node`` is there, and no constant."""
        source = self.source(node, index)
        return source is not None and not is_constant(source)

    def readings(self, value: ir.Value) -> list[Reading]:
        """Who reads ``value``, straight or through one pair."""
        found = []
        for use in value.uses():
            if use.idx == 0 and is_quantize_dequantize(use.node):
                found += [Reading(u.node, u.idx, use.node, use.node) for u in use.node.outputs[0].uses()]
            elif use.idx == 0 and is_quantize(use.node):
                for dq in dequantizers(use.node):
                    found += [Reading(u.node, u.idx, use.node, dq) for u in dq.outputs[0].uses()]
            else:
                found.append(Reading(use.node, use.idx))
        return found


def _quantizes(node: ir.Node) -> bool:
    return is_quantize(node) or is_quantize_dequantize(node)


def _dequantizes(node: ir.Node) -> bool:
    return is_dequantize(node) or is_quantize_dequantize(node)


@dataclass(frozen=True)
class Trap:
    """One place where a model walks into a trap.

    Args:
        where: name of the node or value.
        message: what happens there, one line.
        hint: the way out.
    """

    where: str
    message: str
    hint: str


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """Base class of rules that find traps in a subject, whose id follows from their class: ``BiasScale`` is ``bias-scale``."""

    level: ClassVar[Level] = "warning"

    @classmethod
    def name(cls) -> str:
        """The id."""
        return kebab_case(cls.__name__)

    @classmethod
    def summary(cls) -> str:
        """What it finds, one line."""
        return (cls.__doc__ or "").strip().split("\n", 1)[0]

    def find(self, subject: Subject, /) -> Iterator[Trap]:
        """Yield every place, in the order of the graph."""
        raise NotImplementedError(f"{type(self).__name__} has no find")

    def findings(self, subject: Subject, /) -> list[Finding]:
        """Every place as a finding; each once."""
        traps = dict.fromkeys(self.find(subject))
        return [Finding(self.level, self.name(), trap.where, trap.message, trap.hint) for trap in traps]


@dataclass(frozen=True)
class TrapRule(Rule[PairView]):
    """Base class of all rules of traps. Fields are the parameters that a target file may give: tuples of texts; ``tile`` one of
    integers above 0."""


def trap(where: ir.Node | ir.Value, message: str, hint: str) -> Trap:
    """A trap at a node or value."""
    return Trap(place(where) if isinstance(where, ir.Node) else where.name or "<unnamed>", message, hint)


def selected(*values: ir.Value | ir.Node | None) -> str:
    """Return the options that select the pairs on ``values``, or of nodes that dequantize: ``--select tensor:x``."""
    names = [
        pair_name(value) if isinstance(value, ir.Node) else value.name or "" for value in values if value is not None
    ]
    return " ".join(f"--select {shlex.quote(literal_tensor(name))}" for name in dict.fromkeys(names))


def pair_name(dequantize: ir.Node) -> str:
    """Return the name of the value that the pair of ``dequantize`` stands on."""
    pair = pair_of(dequantize)
    return pair.tensor if pair is not None else dequantize.outputs[0].name or ""


def in_words(grid: Grid) -> str:
    """Return the options of a command that give a pair ``grid``: ``--scale 0.5 --zero-point 3 --dtype uint8``."""
    scales = "".join(f"--scale {scale!s} " for scale in grid.scale.ravel())
    zeros = "".join(f"--zero-point {int(zero)} " for zero in grid.zero_point.ravel())
    axis = (
        ""
        if grid.axis is None
        else f"--axis {grid.axis} " + (f"--block-size {grid.block_size} " if grid.block_size else "")
    )
    return f"{scales}{zeros}{axis}--dtype {grid.dtype.name.lower()}"


def one_encoding(value: ir.Value | None, grid: Grid) -> str:
    """Return the command that gives the pairs on ``value`` the encoding ``grid``."""
    return f"`qdqtool qdq set {selected(value)} {in_words(grid)}`"


def find_traps(model: ir.Model, rules: Iterable[TrapRule]) -> list[Finding]:
    """What ``rules`` find in ``model``, bodies and local functions included, warnings first. The model is not changed."""
    view = PairView(model)
    found = [finding for rule in rules for finding in rule.findings(view)]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))
