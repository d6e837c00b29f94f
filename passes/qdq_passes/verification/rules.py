"""The verifier: a table of rules over a model. It reports, and never raises for what it finds.

onnx.checker accepts duplicate node names, negative scales and Q/DQ pairs that disagree, and rejects every file of
onnxruntime-genai; so the rules are ours. Each is a small function over one shared walk that yields problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from qdq_passes.core.findings import LEVELS, Finding, Level, Problem, is_at_least, new_errors
from qdq_passes.verification import names as verify_names
from qdq_passes.verification import qdq as verify_qdq
from qdq_passes.verification import structure as verify_structure
from qdq_passes.verification.walk import Walk

__all__ = ["LEVELS", "RULES", "Finding", "Level", "is_at_least", "new_errors", "verify"]

Rule = Callable[[Walk], Iterator[Problem]]

#: Rules by id, in the order findings are reported.
RULES: dict[str, Rule] = {
    "defined-values": verify_structure.defined_values,
    "single-assignment": verify_names.single_assignment,
    "acyclic": verify_structure.acyclic,
    "acyclic-functions": verify_structure.acyclic_functions,
    "topological-order": verify_structure.topological_order,
    "initializer-data": verify_structure.initializer_data,
    "initializer-inputs": verify_structure.initializer_inputs,
    "graph-io": verify_structure.graph_io,
    "unique-node-names": verify_names.unique_node_names,
    "named-values": verify_names.named_values,
    "opset-imports": verify_names.opset_imports,
    "known-operators": verify_names.known_operators,
    "attribute-references": verify_names.attribute_references,
    "qdq-scale": verify_qdq.scale,
    "qdq-types": verify_qdq.types,
    "qdq-shape": verify_qdq.shape,
    "qdq-opset": verify_qdq.opset,
    "qdq-pair": verify_qdq.pair,
}


def verify(model: ir.Model, *, minimum: Level = "note") -> list[Finding]:
    """Everything the rules find in ``model``, bodies and local functions included, worst first.

    Args:
        model: the model; it is not changed.
        minimum: leave out what is less bad than this.
    """
    walk = Walk(model)
    findings = [
        Finding(level, rule, where, message, hint)
        for rule, check in RULES.items()
        for level, where, message, hint in check(walk)
    ]
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return [finding for finding in findings if is_at_least(finding, minimum)]
