"""assign-targets"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.graph.annotate import TARGET, Placement
from qdq_passes.graph.uses import label
from qdq_passes.npu.partitions.partitions import partition_for, placements
from qdq_passes.npu.units.verdict import Boundary, TargetRules


@dataclass(frozen=True)
class AssignTargets(Pass):
    """Annotate each node with what runs it on a target, why, and in which partition.

    Graph: unchanged; every node but Constants gains the annotation ``target``, nodes in bodies of If and Loop too; the one of an
    earlier run is replaced.
    Requires: types and shapes as infer-shapes leaves them; a value whose type is not known counts as float.
    Keeps: everything; numerics bit-exact.
    Skips: local functions, of which only the calls are judged.

    Args:
        target: what decides, normally ``@target``.
        boundary: where the Q and DQ nodes at float inputs and outputs of the graph run, where not as the target says.
        simulated: as on the simulated NPU, where what it has no kernel for runs on the CPU; false is the chip itself.
    """

    keeps: ClassVar[Keeps] = EXACT
    target: Named | TargetRules
    boundary: Boundary | None = None
    simulated: bool = True

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Judge units, partition, then annotate in the order of the file."""
        assert not isinstance(self.target, Named)
        for function in model.functions.values():
            yield skip(
                "::".join(filter(None, function.identifier())), "is a local function; run inline-functions first"
            )
        found = partition_for(model, self.target, self.boundary, simulated=self.simulated)
        for node, placement in placements(model, found).items():
            if TARGET.get(node) != placement:
                TARGET.set(node, placement)
                yield Change("annotate", label(node), _words(placement))


def _words(placement: Placement) -> str:
    partition = f", partition {placement.partition}" if placement.partition is not None else ""
    reason = f": {placement.reason}" if placement.reason else ""
    return f"{placement.verdict} on {placement.device}{partition} ({placement.rule}){reason}"
