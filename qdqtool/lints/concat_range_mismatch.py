"""Branches of a Concat that one grid cannot hold.

The output of a Concat has one scale s for all branches. A branch with values up to m has m/s levels on either side of 0, and s is
at least M/qmax for the largest branch M:

    levels = qmax · m/M,    of 8 bits fewer than 2^3 where the branches are more than 2^4 apart    (127/16 = 7.9)

A model that has its pairs already may have lost the small branch on the way: where s moved up through a Reshape, what it writes
is rounded. m is that of the values before the first pair.

The way out may be to leave the head float: what stands behind the last layers that multiply and accumulate.

/box2 (Conv) → Reshape → Sigmoid → … ┐
/cls2 (Conv) → Reshape → Sigmoid ────┴ Concat → predictions        cut behind /box2 and /cls2: no MAC is lost"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import place
from qdq_passes.graph.evaluate.exact import REARRANGING
from qdq_passes.graph.operators.macs import MULTIPLYING
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import is_standard, label, values_read
from qdq_passes.npu.traps.rule import Trap, trap
from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type
from qdq_passes.select.globs import literal

from qdqtool.lints.context import LintContext
from qdqtool.lints.rule import Lint, first_of, grid_text

#: Layers that a hint names one by one; a head with more of them is rare (three scales of a detector have six).
MOST_LAYERS = 8
#: Operators that write a part of their first input.
PARTS = ("Gather", "Slice", "Split")


@dataclass(frozen=True)
class Branch:
    """One input of a Concat.

    Args:
        name: the tensor.
        reach: its largest absolute value.
    """

    name: str
    reach: float


@dataclass(frozen=True)
class ConcatRangeMismatch(Lint):
    """Branches of a Concat so far apart that its one grid leaves the smallest hardly a level.

    Args:
        bits: warn where a branch keeps fewer than 2^bits levels on either side of 0. With 3, branches of an 8-bit Concat may be
            2^4 apart, of a 16-bit one 2^12.
    """

    bits: int = 3

    def find(self, context: LintContext) -> Iterator[Trap]:
        """A branch that is 0 throughout loses nothing."""
        known: dict[ir.Value, float | None] = {}
        for node in context.nodes:
            grid = context.grid_written(node.outputs[0]) if is_standard(node, "Concat") else None
            if grid is None or not is_integer_type(grid.dtype):
                continue
            branches = sorted(_branches(node, context, known), key=lambda branch: branch.reach)
            if len(branches) < 2:
                continue
            largest = branches[-1]
            starved = [b for b in branches if _steps(grid) * b.reach < 2**self.bits * largest.reach]
            if starved:
                yield trap(node, _message(starved, largest, grid), _hint(node))


def _branches(node: ir.Node, context: LintContext, known: dict[ir.Value, float | None]) -> list[Branch]:
    found = []
    for value in node.inputs:
        source = context.source(value)
        if source is not None and (reach := _reach(source, context, known)):
            found.append(Branch(context.name(source), reach))
    return found


def _reach(value: ir.Value, context: LintContext, known: dict[ir.Value, float | None]) -> float | None:
    """Largest absolute value of what ``value`` holds, seen where it was computed, before any pair; None: nothing was seen."""
    if value not in known:
        interval = context.range_of(value)
        own = None if interval is None else max(map(abs, interval))
        known[value] = own  # no value is its own source
        above = [_reach(source, context, known) for source in _moved(value, context, is_dead=own == 0)]
        seen = [reach for reach in above if reach is not None]
        known[value] = max(seen) if seen and len(seen) == len(above) else own
    return known[value]


def _moved(value: ir.Value, context: LintContext, *, is_dead: bool) -> list[ir.Value]:
    """The values whose elements ``value`` holds, all of them; where a grid has made zeros of it, those that it is a part of."""
    node = value.producer()
    if node is not None and is_standard(node, "Concat"):
        inputs = list(node.inputs)
    elif node is not None and is_standard(node, *REARRANGING, *(PARTS if is_dead else ())):
        inputs = list(node.inputs[:1])
    else:
        inputs = []
    return [source for v in inputs if (source := context.source(v)) is not None]


def _steps(grid: Encoding) -> float:
    """Steps from 0 to the end of the grid: those of the symmetric range, whose larger side of 0 a mismatch is measured on."""
    low, high = integer_range(grid.dtype, symmetric=True)
    return (high - low) / 2


def _message(starved: list[Branch], largest: Branch, grid: Encoding) -> str:
    least = starved[0]
    factor, levels = largest.reach / least.reach, least.reach / max(grid.scale)
    names = first_of([b.name for b in starved])
    return (
        f"{names} (up to {least.reach:.3g}) and {largest.name} (up to {largest.reach:.3g}) are {factor:.3g} times apart: on the "
        f"one grid, {grid_text(grid)}, the smallest has {levels:.2g} levels"
    )


#: What is left where no option of `quantize` helps.
BY_HAND = "let the branches be scaled alike before they meet"


def _hint(node: ir.Node) -> str:
    head = head_around(node)
    if head is None:
        return f"quantize with --int16 {shlex.quote(literal(place(node)))}, or {BY_HAND}"
    return f"leave the head float: quantize with {head.options}; or cut it off: extract --outputs {shlex.quote(head.outputs)}"


def ways_out(node: ir.Node) -> list[Mapping[str, tuple[str, ...] | bool]]:
    """Return options of `quantize` that may help the Concat ``node``, the mildest first: name → selectors, or yes."""
    head, own = head_around(node), (literal(place(node)),)
    layers = () if head is None else tuple(f"after:{literal(label(layer))}" for layer in head.layers)
    return [{"int16": own}, {"exclude": own, "isolate": True}, *([{"exclude": layers}] if layers else [])]


@dataclass(frozen=True)
class Head:
    """What is computed behind some layers.

    Args:
        layers: the last operators that multiply and accumulate, in the order of the graph.
        nodes: operators behind any of them, none of which multiplies and accumulates.
    """

    layers: tuple[ir.Node, ...]
    nodes: tuple[ir.Node, ...]

    @property
    def options(self) -> str:
        """The options of ``quantize`` that leave the head float."""
        return " ".join(f"--exclude {shlex.quote(f'after:{literal(label(layer))}')}" for layer in self.layers)

    @property
    def outputs(self) -> str:
        """The values to give ``extract --outputs`` for a model without the head."""
        return ",".join(value.name or "" for layer in self.layers for value in layer.outputs[:1])


def head_around(node: ir.Node) -> Head | None:
    """The head that ``node`` is in: behind the nearest layers before it; None where it is behind none, where a layer stands
    behind one of these, or where they are more than `MOST_LAYERS`."""
    layers = _layers_before(node)
    behind = _behind(layers)
    if not 0 < len(layers) <= MOST_LAYERS or any(is_standard(n, *MULTIPLYING) for n in behind):
        return None
    return Head(tuple(layers), tuple(behind))


def _layers_before(node: ir.Node) -> list[ir.Node]:
    found: dict[ir.Node, None] = {}
    seen, todo = {node}, [node]
    while todo:
        for value in values_read(todo.pop()):
            before = value.producer()
            if before is None or before in seen:
                continue
            seen.add(before)
            if is_standard(before, *MULTIPLYING):
                found[before] = None
            else:
                todo.append(before)
    return _in_order(found)


def _behind(layers: Iterable[ir.Node]) -> list[ir.Node]:
    found: dict[ir.Node, None] = {}
    todo = list(layers)
    while todo:
        for value in todo.pop().outputs:
            for reader in value.consumers():
                if reader not in found:
                    found[reader] = None
                    todo.append(reader)
    return [n for n in _in_order(found) if not (is_quantize(n) or is_dequantize(n))]


def _in_order(nodes: dict[ir.Node, None]) -> list[ir.Node]:
    graph = next((n.graph for n in nodes), None)
    return [] if graph is None else [n for n in graph if n in nodes]
