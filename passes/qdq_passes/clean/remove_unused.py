"""remove-unused"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir
from onnx_ir.passes import common

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import changes_of, remove_unused_functions
from qdq_passes.core.base import EXACT, Change, Keeps, Pass


@dataclass(frozen=True)
class RemoveUnused(Pass):
    """Remove nodes, initializers, functions and opset imports that no graph output needs.

    Graph: ``x → Relu → y (output); x → Exp → z (read by nobody)`` → ``x → Relu → y``; inside bodies and functions too.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: graph inputs stay even when nothing reads them; so does an initializer that is a graph input.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Run onnx_ir's removal of nodes, functions and opset imports."""
        yield from changes_of(model, _remove_all, "no graph output needs it")


def _remove_all(model: ir.Model) -> None:
    common.RemoveUnusedNodesPass()(model)
    remove_unused_functions(model)
    common.RemoveUnusedOpsetsPass()(model)
