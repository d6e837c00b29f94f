"""bind-batch"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import changes_of
from qdq_passes.clean.fix_shapes import FixShapes
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.graph.uses import all_nodes, is_standard

#: Kind of the change of an input whose batch is bound.
BOUND = "bind"


@dataclass(frozen=True)
class BindBatch(Pass):
    """Make a symbolic batch static where shapes inside hang on it, for chips that compute with static shapes.

    Graph: same wiring. ``x [N,3,8,8] → Shape → … → Reshape`` with ``x [N,3,8,8]`` becomes ``x [1,3,8,8]``: what is computed of
    the batch is static then, for `fold-constants` to compute.
    Requires: nothing; shapes are inferred. What hangs on static dimensions alone is best folded before.
    Keeps: names; the function for ``size`` samples at a time, bit-exact.
    Skips: models without a symbolic batch; with other symbolic dimensions of inputs, which nobody binds by guessing; where the
    batch is the first dimension of whatever has it and no shape is computed of it, unless ``always``.

    Args:
        size: samples at a time.
        always: bind it where nothing hangs on it too.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the model takes batches of this size only")
    size: int = 1
    always: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"size={self.size}", where=self.name(), hint="give a number above 0")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """See whether the batch is all that is symbolic, and whether that matters; then bind it."""
        inputs = [value for value in model.graph.inputs if not value.is_initializer() and value.shape is not None]
        free = [value for value in inputs if value.shape and not isinstance(value.shape[0], int)]
        if not free:
            yield skip("model", "no input begins with a symbolic dimension")
            return
        several = sorted({str(value.shape[0]) for value in free if (value.shape[0].value or "").isidentifier()})  # type: ignore[index,union-attr]
        if len(several) > 1:
            yield skip("model", f"inputs begin with {' and '.join(several)}: fix-shapes binds what it is told")
            return
        other = next((value for value in inputs if _symbolic_behind(value)), None)
        if other is not None:
            yield skip(
                other, f"the shape {other.shape} has other symbolic dimensions: fix-shapes binds what it is told"
            )
            return
        if not self.always:
            yield from changes_of(model, infer_shapes, "inferred")
            if not _is_needed(model):
                yield skip("model", "no shape is computed of the batch, and what has one begins with it")
                return
        for value in free:
            yield Change(BOUND, value.name or "", f"its batch {value.shape[0]} is bound to {self.size}")  # type: ignore[index]
        named = several or sorted({str(value.shape[0]) for value in free if value.shape[0].value is not None})  # type: ignore[index,union-attr]
        unnamed = [value for value in free if value.shape[0].value is None]  # type: ignore[index,union-attr]
        shapes = (f"{v.name}={'x'.join(map(str, (self.size, *v.shape.dims[1:])))}" for v in unnamed)  # type: ignore[union-attr]
        dims = tuple(f"{name}={self.size}" for name in named)
        yield from FixShapes(dims=dims, shapes=tuple(shapes)).run(model)


def _is_needed(model: ir.Model) -> bool:
    """Whether a shape is computed, or a value has a symbolic dimension behind its first."""
    return any(
        is_standard(node, "Shape", "Size") or any(_symbolic_behind(value) for value in node.outputs)
        for node in all_nodes(model)
    )


def _symbolic_behind(value: ir.Value) -> bool:
    return value.shape is not None and any(not isinstance(dim, int) for dim in value.shape.dims[1:])
