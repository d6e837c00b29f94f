"""outline-partitions"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.annotate import TARGET, Placement
from qdq_passes.graph.reach import reach
from qdq_passes.npu.partitions.outline import outline

#: Domain of the functions; each is called ``partition_0`` and so on.
DOMAIN = "qdqtool.partitions"


@dataclass(frozen=True)
class OutlinePartitions(Pass):
    """Make a local function of each partition that assign-targets found: one box where the model is looked at.

    Graph: ``Q → [DQ → Conv → Q → DQ → Relu → Q] → DQ`` → ``Q → partition_0 → DQ``. Constants of at most 1 KiB that the partition
    reads become Constants in the function, larger ones inputs of the call. Nodes keep their annotations, the call gains that of
    the partition.
    Requires: the annotation ``target``.
    Keeps: names of inputs and outputs; numerics bit-exact. `inline-functions` is the way back.
    Skips: a partition whose nodes are no longer one convex set, as edits between the two passes may leave it; a model before
    IR version 8, which has no local functions.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Outline in the order of partitions."""
        members: dict[int, list[ir.Node]] = {}
        for node in model.graph:
            placement = TARGET.get(node)
            if placement is not None and placement.partition is not None:
                members.setdefault(placement.partition, []).append(node)
        for number, nodes in sorted(members.items()):
            name = f"partition_{number}"
            refusal = _refusal(model, nodes)
            if refusal is not None:
                yield skip(name, refusal)
                continue
            call = outline(model, nodes, domain=DOMAIN, name=name)
            placement = TARGET.get(nodes[-1])
            assert placement is not None
            TARGET.set(
                call, Placement(device=placement.device, verdict=_worst(nodes), rule="partition", partition=number)
            )
            yield Change("replace", name, f"{len(nodes)} nodes are one call")


def _refusal(model: ir.Model, nodes: Sequence[ir.Node]) -> str | None:
    if (model.ir_version or 0) < 8:
        return f"local functions need IR version 8, the model has {model.ir_version}"
    if len(nodes) == 1 and nodes[0].domain == DOMAIN:
        return "is one call already"
    inside, edges = set(nodes), reach(model.graph)
    if (edges.after(inside) - inside) & (edges.before(inside) - inside):
        return "a path leaves it and comes back"
    return None


def _worst(nodes: Sequence[ir.Node]) -> str:
    verdicts = {placement.verdict for node in nodes if (placement := TARGET.get(node)) is not None}
    return "npu-float" if "npu-float" in verdicts else "npu-int"
