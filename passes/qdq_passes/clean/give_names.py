"""give-names"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core import names
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import all_nodes, graph_likes


@dataclass(frozen=True)
class GiveNames(Pass):
    """Name every unnamed node, and rename nodes so that no two share a name anywhere in the model (onnxruntime refuses that).

    Graph: ``Relu "", Relu "act", Relu "act"`` → ``Relu "Relu_0", Relu "act", Relu "act_1"``. Values keep their names.
    Requires: nothing.
    Keeps: inputs, outputs, all value names; numerics bit-exact.
    Skips: nodes with a unique name of their own.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Walk the model once, first come first named."""
        namer = Namer(model)
        seen: set[str] = set()
        for index, node in enumerate(all_nodes(model)):
            invented = node.meta.pop(names.UNNAMED, None) is not None
            if not node.name:
                node.name = namer.fresh(f"{node.op_type}_{index}")
                yield Change("rename", node.name, "had no name")
            elif node.name in seen:
                old = node.name
                node.name = namer.fresh(old)
                yield Change("rename", node.name, f"{old!r} was taken")
            elif invented:
                yield Change("rename", node.name, "had no name in the file")
            seen.add(node.name)
        for graph in graph_likes(model):
            if isinstance(graph, ir.Graph) and not graph.name:
                graph.name = "main"
                yield Change("rename", "main", "the graph had no name")
