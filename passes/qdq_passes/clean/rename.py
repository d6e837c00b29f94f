"""rename"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.core.dimensions import substitute_dim
from qdq_passes.core.names import split_assignment
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import GraphLike, all_nodes, all_values, graph_likes


@dataclass(frozen=True)
class Rename(Pass):
    """Give values, nodes or dimensions other names; inputs and outputs included.

    Graph: same wiring. ``values=["input.1=image"]`` renames the value everywhere it is read, ``dims=["batch_size=N"]`` every
    symbolic dimension of that name.
    Requires: the old name exists, the new one is free.
    Keeps: numerics bit-exact; names that are not mentioned.
    Skips: nothing.

    Args:
        values: ``old=new`` pairs of value names.
        nodes: ``old=new`` pairs of node names.
        dims: ``old=new`` pairs of symbolic dimensions.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="inputs and outputs may bear other names")
    values: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Rename values first, then nodes, then dimensions."""
        scopes = [_scope(part) for part in graph_likes(model)]
        yield from _rename([[v for v in scope if v.name] for scope in scopes], self.values, "value")
        yield from _rename([[n for n in all_nodes(model) if n.name]], self.nodes, "node")
        for text in self.dims:
            old, new = split_assignment(text)
            count = _rename_dim(model, old, int(new) if new.isdigit() else new)
            if not count:
                raise UsageError(f"no dimension {old!r}", hint="`qdqtool inspect` lists the dynamic dimensions")
            yield Change("rename", old, f"→ {new} in {count} shapes")


def _scope(part: GraphLike) -> list[ir.Value]:
    """Every value of the main graph or of a function, bodies included; names are unique among them."""
    found: dict[ir.Value, None] = dict.fromkeys(part.inputs)
    for graph in [part, *part.subgraphs()]:
        if isinstance(graph, ir.Graph):
            found |= dict.fromkeys([*graph.inputs, *graph.initializers.values()])
    found |= dict.fromkeys(value for node in part.all_nodes() for value in node.outputs)
    return list(found)


def _rename(
    scopes: Sequence[Sequence[ir.Value] | Sequence[ir.Node]], texts: tuple[str, ...], what: str
) -> Iterator[Change]:
    """The first scope that has the old name is meant: the main graph before the functions."""
    tables = [{thing.name: thing for thing in scope} for scope in scopes]
    work: list[tuple[ir.Value | ir.Node, str, str, int]] = []
    for text in texts:
        old, new = split_assignment(text)
        number = next((i for i, table in enumerate(tables) if old in table), None)
        if number is None:
            raise UsageError(
                f"no {what} {old!r}", hint=f"see `qdqtool match MODEL {'tensor:' if what == 'value' else ''}'*'`"
            )
        work.append((tables[number][old], old, new, number))
    for _, old, new, number in work:
        taken = set(tables[number]) - {o for _, o, _, n in work if n == number}
        if new in taken or [n for _, _, n, i in work if i == number].count(new) > 1:
            raise UsageError(f"{what} {new!r} exists already", where=old)
    for thing, _, new, number in work:  # by a name in between, so that two may swap theirs
        thing.name = _free(new, tables[number])
    for thing, old, new, _ in work:
        thing.name = new
        yield Change("rename", old, f"→ {new}")


def _free(name: str, table: Mapping[str | None, object]) -> str:
    while name in table:
        name += "_"
    return name + "_renamed"


def _rename_dim(model: ir.Model, old: str, new: str | int) -> int:
    """Rename it wherever it occurs, in ``past + length`` too."""
    count = 0
    for value in all_values(model):
        if value.shape is None:
            continue
        dims = [substitute_dim(d.value or "", {old: new}) if isinstance(d, ir.SymbolicDim) else d for d in value.shape]
        if any(isinstance(d, ir.SymbolicDim) and (d.value or "") != n for d, n in zip(value.shape, dims, strict=True)):
            value.shape = ir.Shape([None if d == "" else d for d in dims])
            count += 1
    return count
