"""fix-shapes"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import changes_of
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.core.dimensions import substitute_dim
from qdq_passes.core.names import split_assignment
from qdq_passes.errors import UsageError
from qdq_passes.graph.shapes.fitting import misfit
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.graph.uses import all_values, label


@dataclass(frozen=True)
class FixShapes(Pass):
    """Make dynamic dimensions static: by the dimension's name, or by the whole shape of an input.

    Graph: same wiring. ``dims=["N=1"]``: every ``N`` becomes 1; ``shapes=["x=1x3x224x224"]``: each symbolic dimension of input x
    is bound wherever its name occurs. Shapes of intermediate values are then inferred anew.
    Requires: the dimension or input exists; a static dimension is only confirmed, never changed.
    Keeps: names; the function for inputs of those shapes, bit-exact.
    Skips: nothing. Sizes that the graph cannot take, as another is baked into it, are refused by the node.

    Args:
        dims: ``name=size``.
        shapes: ``input=1x3x224x224``.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the model takes inputs of these shapes only")
    dims: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Bind, infer, then look whether the graph takes the sizes."""
        fits = bool(self.dims or self.shapes) and misfit(model) is None
        sizes: dict[str, int] = {}
        for text in self.dims:
            name, size = split_assignment(text)
            sizes[name] = _size(size, text)
        for text in self.shapes:
            yield from _bind_input(model, text, sizes)
        known = {
            d.value
            for v in all_values(model)
            for d in v.shape or ()
            if isinstance(d, ir.SymbolicDim) and d.value is not None
        }
        for name in sizes:
            if name not in known:
                raise UsageError(
                    f"no dynamic dimension {name!r}",
                    hint=f"there is {', '.join(sorted(known)) or 'none'}",
                )
        for value in all_values(model):
            before = value.shape
            if before is None:
                continue
            dims = [substitute_dim(d.value or "", sizes) if isinstance(d, ir.SymbolicDim) else d for d in before]
            after = ir.Shape([None if d == "" else d for d in dims])
            if after != before:
                value.shape = after
                yield Change("edit", value.name or "", f"{before} → {after}")
        yield from changes_of(model, infer_shapes, "inferred")
        if fits and (found := misfit(model)) is not None:
            raise UsageError(
                f"the graph does not take these sizes: {label(found[0])} ({found[0].op_type}) {found[1]}",
                where=label(found[0]),
                hint="another size is baked into it: bind the one it was exported for, or export the model again",
            )


def _bind_input(model: ir.Model, text: str, sizes: dict[str, int]) -> Iterator[Change]:
    name, wanted_text = split_assignment(text)
    value = next((v for v in model.graph.inputs if v.name == name), None)
    if value is None:
        raise UsageError(f"no input {name!r}", hint=f"inputs are {', '.join(v.name or '' for v in model.graph.inputs)}")
    wanted = [_size(part, text) for part in wanted_text.replace(",", "x").split("x")]
    if value.shape is None:
        value.shape = ir.Shape(wanted)
        yield Change("edit", name, f"shape {wanted}")
        return
    if len(wanted) != len(value.shape):
        raise UsageError(f"shape {wanted} has rank {len(wanted)}, the input has {value.shape}", where=name)
    dims: list[int | ir.SymbolicDim] = []
    for have, want in zip(value.shape.dims, wanted, strict=True):
        if isinstance(have, int) and have != want:
            raise UsageError(f"dimension {have} is static, {want} was asked for", where=name, hint="leave it as it is")
        if isinstance(have, ir.SymbolicDim) and have.value is not None:
            if sizes.setdefault(have.value, want) != want:
                raise UsageError(f"dimension {have.value} cannot be {sizes[have.value]} and {want}", where=name)
            dims.append(have)
        else:
            dims.append(want)
    if ir.Shape(dims) != value.shape:
        value.shape = ir.Shape(dims)
        yield Change("edit", name, f"shape {wanted}")


def _size(text: str, whole: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text):  # 0 is one: an empty cache
        raise UsageError(f"{text!r} in {whole!r} is no size", hint="write N=1 or x=1x3x224x224")
    return int(text)
