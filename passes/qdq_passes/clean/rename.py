"""rename"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.analysis.uses import all_nodes, all_values
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.core.names import split_assignment
from qdq_passes.errors import UsageError


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
        yield from _rename([v for v in all_values(model) if v.name], self.values, "value")
        yield from _rename([n for n in all_nodes(model) if n.name], self.nodes, "node")
        for text in self.dims:
            old, new = split_assignment(text)
            count = _rename_dim(model, old, int(new) if new.isdigit() else new)
            if not count:
                raise UsageError(f"no dimension {old!r}", hint="`qdqtool inspect` lists the dynamic dimensions")
            yield Change("rename", old, f"→ {new} in {count} shapes")


def _rename(things: list[ir.Value] | list[ir.Node], texts: tuple[str, ...], what: str) -> Iterator[Change]:
    by_name = {thing.name: thing for thing in things}
    for text in texts:
        old, new = split_assignment(text)
        if old not in by_name:
            raise UsageError(
                f"no {what} {old!r}", hint=f"see `qdqtool match MODEL {'tensor:' if what == 'value' else ''}'*'`"
            )
        if new in by_name and new != old:
            raise UsageError(f"{what} {new!r} exists already", where=old)
        thing = by_name.pop(old)
        thing.name = new
        by_name[new] = thing
        yield Change("rename", old, f"→ {new}")


def _rename_dim(model: ir.Model, old: str, new: str | int) -> int:
    count = 0
    for value in all_values(model):
        shape = value.shape
        if shape is None or old not in [d.value for d in shape if isinstance(d, ir.SymbolicDim)]:
            continue
        value.shape = ir.Shape([new if isinstance(d, ir.SymbolicDim) and d.value == old else d for d in shape.dims])
        count += 1
    return count
