"""isolate-operators"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.annotate import LEFT_FLOAT, PART, PRECISION, Precision
from qdq_passes.graph.operators.macs import macs_in
from qdq_passes.graph.uses import Reach, has_body, is_constant, label, main_nodes, may_be_float, op_type_of, reach


@dataclass(frozen=True)
class IsolateOperators(Pass):
    """Leave float what surrounds an operator that an NPU lacks, so that no pairs tie it to the integers before and behind it.

    An NPU that takes connected integers whole or not at all takes nothing of ``Conv, DQ → Exp → Q, Conv``: pairs that the layers
    beside it want make an integer operator of the Exp. With one float value beside it, it is an operator of the CPU, and bounds
    what is connected. Of a head (the box decoding of a detector), all behind the operator stays float, as if the model ended
    there; of a preprocessing all before it; where either would cost more than ``share`` of the multiply-accumulates, what reads
    it, or what writes its inputs where that costs less.

    Graph: unchanged; nodes gain the annotation ``precision``, which `annotate-encodings` heeds, and a note of why in their
    metadata, which `analyze` reads.
    Requires: shapes (infer-shapes), for the multiply-accumulates.
    Keeps: everything; numerics bit-exact.
    Skips: operators of ``taken``, parts of an operator that is quantized as one, what reads or writes a value that nobody wants
    quantized; nodes that have a precision.

    Args:
        taken: operator types that the NPU computes on integers.
        declined: names of nodes that it does not compute though it has their operator: as they stand, among what they read.
        share: multiply-accumulates that heads and preprocessings may cost together, as a share of all.
    """

    keeps: ClassVar[Keeps] = EXACT
    taken: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()
    share: float = 0.05

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Operator by operator, in the order of the graph."""
        if not self.taken:
            return
        nodes = main_nodes(model)
        declined = set(self.declined)
        edges, taken = reach(nodes), {n for n in nodes if op_type_of(n) in self.taken and n.name not in declined}
        total = macs_in(nodes)
        left = self.share * total
        for node in nodes:
            is_declined = node.name in declined
            if PRECISION.get(node) is not None:
                continue
            why = f"{label(node)} ({node.op_type}), which the target does not take{' as it stands' if is_declined else ''}"
            if not _is_tied(node, taken):
                yield from leave_float([node] if is_declined else [], f"at {why}")
                continue
            sides = _sides(node, edges)
            for where, whole in ((where, whole) for where, whole, _ in sides):
                those = [n for n in nodes if n in whole and PRECISION.get(n) is None]
                cost = macs_in(those)
                if total and cost <= left:
                    left -= cost
                    yield from leave_float([node, *those], f"{where} {why}")
                    break
            else:
                yield from leave_float([node, *min((beside for *_, beside in sides), key=macs_in)], f"beside {why}")


def _sides(node: ir.Node, edges: Reach) -> list[tuple[str, set[ir.Node], list[ir.Node]]]:
    """Where a float value may be beside ``node``: all behind it, and what reads it; where nobody else reads its inputs all before
    it, and what writes them."""
    sides = [("behind", edges.after([node]), edges.successors[node])]
    if all(user is node for value in node.inputs if value is not None for user in value.consumers()):
        sides.append(("before", edges.before([node]), edges.predecessors[node]))
    return sides


def _is_tied(node: ir.Node, taken: Collection[ir.Node]) -> bool:
    """Whether all floats that ``node``, which is not taken, reads and writes are wanted quantized by others."""
    if node in taken or has_body(node) or PART.get(node) is not None:
        return False
    read = [value for value in node.inputs if value is not None and may_be_float(value)]
    written = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    if not read or not written or any(is_constant(value) for value in read):
        return False
    return all(_is_wanted(value, taken) for value in (*read, *written))


def _is_wanted(value: ir.Value, taken: Collection[ir.Node]) -> bool:
    """Whether a node that is quantized touches ``value``, a float."""
    touching = [node for node in (value.producer(), *value.consumers()) if node is not None]
    return may_be_float(value) and any(n in taken and PRECISION.get(n) is None for n in touching)


def leave_float(nodes: Iterable[ir.Node], because: str) -> Iterator[Change]:
    """Give those of ``nodes`` that write floats and have no precision the precision ``float``, with a note of why."""
    for node in nodes:
        if PRECISION.get(node) is None and any(may_be_float(value) for value in node.outputs):
            PRECISION.set(node, Precision("float"))
            node.metadata_props[LEFT_FLOAT] = because
            yield Change("annotate", label(node), f"stays float: {because}")
