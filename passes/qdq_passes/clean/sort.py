"""sort"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir
from onnx_ir.passes import common

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import changes_of
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.errors import ModelError


@dataclass(frozen=True)
class Sort(Pass):
    """Put nodes into topological order; the sort is stable, so a sorted graph stays as it is.

    Graph: ``y = Relu(z); z = Conv(x)`` → ``z = Conv(x); y = Relu(z)``; inside bodies and functions too.
    Requires: no cycle.
    Keeps: everything but the order; numerics bit-exact.
    Skips: nothing.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Run onnx_ir's stable sort."""
        try:
            yield from changes_of(model, common.TopologicalSortPass(), "topological order")
        except (ValueError, ir.passes.PassError) as error:
            raise ModelError("the graph has a cycle", where=model.graph.name, hint="no order exists") from error
