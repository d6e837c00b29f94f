"""Advice: which few nodes to mend so that most runs on the NPU in one piece, or which head to cut off instead.

Greedy: of all nodes that one rule declines, operator by operator, try what would be if the NPU took them; keep the best by

    (operators that others' refusal keeps off the NPU + boundary tensors that vanish) / nodes to mend

and try the others again on top of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import op_type_of, reach, values_read
from qdq_passes.npu.partitions.partitions import Partitioning, partitions
from qdq_passes.npu.units.units import Unit, unit_graph
from qdq_passes.npu.units.verdict import CPU, NOTHING_TO_MEND, Boundary, Policy, TargetRules, Verdict

from qdqtool.npu.figures import after, counts, inner_operators
from qdqtool.npu.report import After, Cut, Repair
from qdqtool.npu.shares import group_of

#: Repairs at most, and kinds of nodes that are tried for each: trying is partitioning anew.
REPAIRS, TRIED = 3, 6
#: A head is cut off when at most this share of the operators goes with it.
HEAD = 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class Setting:
    """What advice is given on.

    Args:
        nodes: those of the main graph, in the order of the file.
        outputs: of the main graph.
        found: who runs what.
        verdicts: what the target itself says of each unit, before its policy.
        target: the target.
        boundary: as ``found`` was made.
        lacking: likewise.
    """

    nodes: Sequence[ir.Node]
    outputs: Sequence[ir.Value]
    found: Partitioning
    verdicts: Mapping[Unit, Verdict]
    target: TargetRules
    boundary: Boundary
    lacking: Mapping[Unit, str] | None = None

    def what_if(self, verdicts: Mapping[Unit, Verdict], policy: Policy | None = None) -> After:
        """The figures if ``verdicts`` were said instead, under another policy where one is given."""
        units, target = self.found.units, self.target
        said = [verdicts[unit] for unit in units]
        wanted = policy or target.policy
        return after(partitions(self.nodes, units, said, wanted, self.boundary, target.minimum_group, self.lacking))


def repairs(setting: Setting) -> tuple[Repair, ...]:
    """The nodes to mend, the most profitable first, each on top of those before it."""
    verdicts = setting.verdicts
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in setting.found.units:
        if counts(unit) and not verdicts[unit].is_npu and not verdicts[unit].suggestion.startswith(NOTHING_TO_MEND):
            groups.setdefault(group_of(op_type_of(unit.core), verdicts[unit].rule), []).append(unit)
    assumed, chosen, now = dict(verdicts), list[Repair](), after(setting.found)
    mended = _mended(verdicts.values())
    while groups and len(chosen) < REPAIRS:
        tried = sorted(groups, key=lambda key: -len(groups[key]))[:TRIED]
        then = {key: setting.what_if({**assumed, **dict.fromkeys(groups[key], mended)}) for key in tried}
        gains = {key: _gain(now, then[key], sum(len(unit.nodes) for unit in groups[key])) for key in tried}
        best = max(gains, key=lambda key: gains[key])
        if gains[best] <= (0, 0):
            break
        now, units = then[best], groups.pop(best)
        assumed |= dict.fromkeys(units, mended)
        chosen.append(_repair(units, verdicts[units[0]], now))
    return tuple(chosen)


def cut_of(setting: Setting, path: str) -> Cut | None:
    """The head to cut off, so that all that is left runs on the NPU; None where that does not pay.

    Args:
        setting: the nodes, and who runs what.
        path: how the command names the model.
    """
    found, verdicts = setting.found, setting.verdicts
    graph = unit_graph(setting.nodes, found.units)
    head: set[int] = set()
    for number, (item, before) in enumerate(zip(graph.items, graph.before, strict=True)):
        declined = isinstance(item, Unit) and counts(item) and not verdicts[item].is_npu
        if declined or not head.isdisjoint(before):
            head.add(number)
    units = {item for number, item in enumerate(graph.items) if number in head and isinstance(item, Unit)}
    gone, whole = sum(len(unit.nodes) for unit in units if counts(unit)), after(found)
    if not gone or gone > HEAD * whole.compute_nodes:
        return None
    outputs = _ends(setting.nodes, setting.outputs, graph.item_of, head)
    if not outputs:
        return None
    elsewhere = Verdict(kind="fallback", engine=CPU, rule="head")
    rest = setting.what_if({**verdicts, **dict.fromkeys(units, elsewhere)}, "node")
    then = replace(rest, compute_nodes=whole.compute_nodes - gone - len(inner_operators(found)))
    if then.npu_compute_nodes < then.compute_nodes:
        return None
    if then.npu_compute_nodes <= whole.npu_compute_nodes and then.partitions >= whole.partitions:
        return None
    command = f"qdqtool extract {shlex.quote(path)} -o body.onnx --outputs {shlex.quote(','.join(outputs))}"
    return Cut(nodes=gone, outputs=outputs, command=command, after=then)


def _ends(
    nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], item_of: Mapping[ir.Node, int], head: set[int]
) -> tuple[str, ...]:
    """Values that the head reads of the rest, and those ``outputs`` of the graph that are not in the head; constants left out."""
    edges = reach(nodes)
    first = {node for node in nodes if item_of.get(node) in head}
    inside = first | edges.after(first)
    entered = {node for node in nodes if any(v is not None and v.is_graph_input() for v in values_read(node))}
    computed = (entered | edges.after(entered)) - inside
    read = [v for node in nodes if node in inside for v in values_read(node)]
    values = [v for v in (*read, *outputs) if v.producer() in computed]
    return tuple(dict.fromkeys(v.name for v in values if v.name))


def _mended(verdicts: Iterable[Verdict]) -> Verdict:
    engine = next((verdict.engine for verdict in verdicts if verdict.is_npu), "NPU")
    return Verdict(kind="npu-int", engine=engine, rule="mended")


def _gain(now: After, then: After, mended: int) -> tuple[float, int]:
    """What is won for each node that is mended, then bytes that no longer cross edges."""
    freed = then.npu_compute_nodes - now.npu_compute_nodes - mended
    vanished = now.boundary_tensors - then.boundary_tensors
    return (freed + vanished) / mended, now.boundary_bytes - then.boundary_bytes


def _repair(units: Sequence[Unit], verdict: Verdict, then: After) -> Repair:
    return Repair(
        nodes=tuple(unit.core.name or "" for unit in units),
        ops=tuple(dict.fromkeys(op_type_of(unit.core) for unit in units)),
        rule=verdict.rule,
        reason=verdict.reason,
        suggestion=verdict.suggestion,
        after=then,
    )
