"""merge-reshapes

A run of Reshape and Transpose puts the elements of x into another order, said by atoms: factors of the sizes of x that no step
tears apart. A Reshape groups them, a Transpose permutes groups. The atoms of the result, each with its place among those of x,
are all that the run does; places that rise by one are one atom. Then

    all places in order                                    Reshape, or nothing
    each axis of x whole, each axis of y one axis of x     Transpose
    each axis of y atoms that follow one another in x      Reshape, Transpose
    each axis of x atoms that follow one another in y      Transpose, Reshape
    else                                                   Reshape, Transpose, Reshape
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.look.atoms import Atoms, Size, moved
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder, Site
from qdq_passes.graph.edit import bypass, drop_unread, hand_over, remove
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.sizes import sizes_of
from qdq_passes.graph.uses import all_nodes, integers_of, is_standard, label, only_reader

#: Operators that put every element somewhere and compute none.
MOVING = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


@dataclass(frozen=True)
class MergeReshapes(Pass):
    """Make runs of Reshape, Flatten, Squeeze, Unsqueeze and Transpose as short as what they do together allows, then as flat.

    Graph: ``x [1,4,8] → Reshape [4,8] → Unsqueeze [1,4,8,1] → Squeeze [4,8] → y`` → ``x → Reshape [4,8] → y``;
    ``Transpose(1,0,2) → Reshape → Transpose`` whose elements come back in order → nothing. A Transpose that only moves axes of
    size 1 is a Reshape among others. Windows, ``[1,28,28,16] → [1,4,7,4,7,16] → Transpose``, are moved as ``[4,7,4,112]``. In
    bodies and functions too.
    Requires: the shapes of what a Reshape gives, with one symbolic size at most (infer-shapes); Transposes alone need none.
    Keeps: inputs, outputs and their names; numerics bit-exact (elements only move).
    Skips: runs that would get neither shorter nor have fewer axes between; a run that does nothing between a graph input, an
    initializer or an outer value and a graph output; a symbolic size that a step divides. Values between that have other readers
    or are graph outputs end a run.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Run after run, each from its last node backwards."""
        builder, inferred = Builder(model), Inferred(model)
        for last in all_nodes(model):
            steps = _run_until(last)
            if len(steps) < 2:
                continue
            first, source = steps[0], steps[0].inputs[0]
            assert source is not None
            atoms = _atoms(inferred, source, steps)
            if isinstance(atoms, str):
                yield skip(last, atoms)
                continue
            plan = atoms.shortest()
            if len(plan) > len(steps) or (len(plan) == len(steps) and not _lowers_rank(inferred, steps, plan)):
                continue
            if any(sum(isinstance(size, str) for size in sizes) > 1 for kind, sizes in plan if kind == "Reshape"):
                yield skip(last, "more than one size is symbolic")
                continue
            if not plan and last.outputs[0].is_graph_output() and not _takes_name(source, last):
                yield skip(last, f"{label(first)} … {label(last)} do nothing, but join {source.name} to a graph output")
                continue
            yield from self._replace(builder, steps, atoms.source, plan)

    def _replace(
        self, builder: Builder, steps: list[ir.Node], shape: Sequence[Size], plan: Sequence[tuple[str, list[Size]]]
    ) -> Iterator[Change]:
        last, source = steps[-1], steps[0].inputs[0]
        assert source is not None
        because = f"{len(steps)} steps are {' and '.join(kind for kind, _ in plan) or 'none'}"
        parameters = [value for node in steps for value in node.inputs[1:]]
        if plan:
            made = _made(builder.at(last, stands_for=steps), source, shape, plan)
            made.type, made.shape = last.outputs[0].type or made.type, last.outputs[0].shape
            hand_over(last.outputs[0], made, builder.namer)
            remove(last, because)
        else:
            bypass(last, builder.namer, because, source=source)
        for node in reversed(steps[:-1]):
            remove(node, because)
        yield Change("replace", label(last), because)
        yield from drop_unread(parameters)


def _run_until(last: ir.Node) -> list[ir.Node]:
    """The run that ends with ``last``, its nodes in order; empty where it goes on behind."""
    if not _moves(last) or last.graph is None:
        return []
    reader = only_reader(last.outputs[0])
    if reader is not None and _moves(reader) and reader.graph is last.graph and reader.inputs[0] is last.outputs[0]:
        return []
    steps = [last]
    while True:
        value = steps[0].inputs[0]
        producer = None if value is None else value.producer()
        if value is None or producer is None or not _moves(producer) or only_reader(value) is not steps[0]:
            return steps
        if producer.graph is not last.graph:
            return steps
        steps.insert(0, producer)


def _moves(node: ir.Node) -> bool:
    return is_standard(node, *MOVING) and not any(attribute.is_ref() for attribute in node.attributes.values())


def _atoms(inferred: Inferred, source: ir.Value, steps: list[ir.Node]) -> Atoms | str:
    """What the run does; in words why that is not known. Sizes of the source that nobody knows have names of their own."""
    if not any(node.op_type == "Transpose" for node in steps):
        steps = [steps[-1]]  # the shape between says nothing
    orders = [_order(node) for node in steps]
    rank = inferred.rank(source) or len(orders[0] or ())
    sizes: list[Size | None] = list(_sizes(inferred, source) or [None] * rank)
    shapes: list[list[Size]] = [[f"?{k}" if size is None else size for k, size in enumerate(sizes)]]
    for node, order in zip(steps, orders, strict=True):
        if order is not None and len(shapes[-1]) == len(order or shapes[-1]):
            shapes.append([shapes[-1][k] for k in order] if order else shapes[-1][::-1])
            continue
        found = _sizes(inferred, node.outputs[0]) or [None]
        known = [size for size in found if size is not None]
        if len(known) != len(found):
            return f"the shape of {node.outputs[0].name} is not known (infer-shapes)"
        shapes.append(known)
    if any(0 in shape for shape in shapes):
        return "a size is 0"
    full = [
        None if order is None else order or list(range(len(shape)))[::-1]
        for order, shape in zip(orders, shapes, strict=False)
    ]
    return moved(shapes, full)


def _order(node: ir.Node) -> list[int] | None:
    """The order of a Transpose, empty where it reverses the axes; None for other nodes."""
    return integers_of(node, "perm") if node.op_type == "Transpose" else None


def _sizes(inferred: Inferred, value: ir.Value) -> list[Size | None] | None:
    found = sizes_of(value)
    if found is None or None in found:
        known = inferred.sizes(value)
        return found if known is None else list(known)
    return found


def _made(site: Site, source: ir.Value, shape: Sequence[Size], plan: Sequence[tuple[str, list[Size]]]) -> ir.Value:
    value = source
    for kind, numbers in plan:
        if kind == "Transpose":
            value, shape = site.transpose(value, *map(int, numbers)), [shape[int(axis)] for axis in numbers]
        else:
            value, shape = site.reshape(value, [-1 if isinstance(size, str) else size for size in numbers]), numbers
        value.shape = ir.Shape([None if isinstance(size, str) and not size.isidentifier() else size for size in shape])
    return value


def _lowers_rank(inferred: Inferred, steps: list[ir.Node], plan: Sequence[tuple[str, list[Size]]]) -> bool:
    """Whether what lies between the steps of ``plan`` has fewer axes than between ``steps``: not every target takes five."""
    before = [inferred.rank(node.outputs[0]) or 0 for node in steps[:-1]]
    return max((len(numbers) for _, numbers in plan[:-1]), default=0) < max(before, default=0)


def _takes_name(source: ir.Value, last: ir.Node) -> bool:
    return source.producer() is not None and source.graph is last.graph and not source.is_graph_output()
