"""What a target does not take of a model as it was quantized."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import onnx_ir as ir
from qdq_passes.graph.annotate import DEMAND
from qdq_passes.graph.uses import all_values, label, main_nodes
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import Kind, qdq_pairs
from qdq_passes.refine.look.shifts import violations

from qdqtool.targets.remedies import of_shift
from qdqtool.targets.target import Target
from qdqtool.targets.unit_facts import op_type_of

#: Nodes named in one warning.
SHOWN = 3


def target_refusals(model: ir.Model, target: Target) -> tuple[tuple[str, str], ...]:
    """(node, reason) for every quantized node whose encodings ``target`` does not take, or between whose positions it
    cannot shift; a node may have several."""
    quantized = {name for value in all_values(model) if (demand := DEMAND.get(value)) for name in demand.nodes}
    pairs = qdq_pairs(model)
    made = {pair.output: pair for pair in pairs}
    read = {pair.source: pair for pair in pairs if pair.q is not None}
    found: dict[tuple[str, str], None] = {}
    for node in main_nodes(model):
        name = label(node)
        if name not in quantized:
            continue
        given: dict[Kind, dict[Encoding, None]] = {"activation": {}, "weight": {}, "bias": {}}
        for pair in [*(made.get(v) for v in node.inputs if v is not None), *(read.get(v) for v in node.outputs)]:
            if pair is not None and pair.encoding is not None:
                given[pair.kind][pair.encoding] = None
        choices: list[list[Encoding | None]] = [list(encodings) or [None] for encodings in given.values()]
        for activation, weight, bias in itertools.product(*choices):
            reason = target.allows(op_type_of(node), activation=activation, weight=weight, bias=bias)
            if reason is not None:
                found[name, reason] = None
    for violation in violations(model, target.shifts) if target.shifts is not None else ():
        mend = of_shift(violation.node, target.name)
        found[label(violation.node), f"{violation.because}; {mend}"] = None
    return tuple(found)


def grouped(refusals: Iterable[tuple[str, str]]) -> list[str]:
    """One line a reason, with the first nodes that it holds for."""
    nodes: dict[str, list[str]] = {}
    for node, reason in refusals:
        nodes.setdefault(reason, []).append(node)
    return [
        f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}: {reason}"
        for reason, names in nodes.items()
    ]
