"""The verifier: a table of rules over a model. It reports, and never raises for what it finds.

onnx.checker accepts duplicate node names, negative scales and Q/DQ pairs that disagree, and rejects every file of
onnxruntime-genai; so the rules are ours. Each is a small function over one shared `Walk` that yields problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import LEVELS, Finding, Level, Problem, is_at_least, new_errors
from qdq_passes.graph.uses import label
from qdq_passes.verification import names as verify_names
from qdq_passes.verification import qdq as verify_qdq
from qdq_passes.verification import structure as verify_structure


@dataclass(eq=False)
class Scope:
    """A graph, a body, or a local function.

    Args:
        part: the graph or function.
        name: how a message names it.
        imports: operator sets its nodes are written for.
        function: the local function it belongs to, None in the main graph and its bodies.
        parent: the scope around it, None for the main graph and for functions.
        nodes: its nodes in order, without those of bodies.
    """

    part: ir.Graph | ir.Function
    name: str
    imports: dict[str, int]
    function: ir.Function | None
    parent: Scope | None
    nodes: list[ir.Node] = field(default_factory=list)

    def is_inside(self, other: Scope) -> bool:
        """Whether this is ``other``, or a body somewhere in it."""
        scope: Scope | None = self
        while scope is not None and scope is not other:
            scope = scope.parent
        return scope is other


@dataclass(frozen=True)
class Read:
    """``node`` (None: the outputs) of ``scope`` reads ``value``, which nothing before it defines."""

    node: ir.Node | None
    value: ir.Value
    scope: Scope


@dataclass(frozen=True)
class Clash:
    """``value``, defined in ``scope``, has the name of another value: of the same scope, or of one around it."""

    value: ir.Value
    scope: Scope
    is_same_scope: bool
    what: str


class Walk:
    """The result of the walk; rules only look at it."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.scopes: list[Scope] = []
        #: Every node with its scope, in the order of the file.
        self.nodes: list[tuple[ir.Node, Scope]] = []
        #: id of each value → the scope that defines it.
        self.owner: dict[int, Scope] = {}
        self.unready: list[Read] = []
        self.clashes: list[Clash] = []
        #: Values without a name that something reads, with the reader.
        self.nameless: list[Read] = []
        #: References to attributes of a function, outside of any: (node, attribute).
        self.loose_references: list[tuple[ir.Node, str]] = []
        #: What rules worked out and share.
        self.memo: dict[str, object] = {}
        self._visible: set[int] = set()
        self._names: set[str] = set()
        self._enter(model.graph, f"graph {model.graph.name or 'main'}", model.opset_imports, None, None)
        for function in model.functions.values():
            self._visible, self._names = set(), set()
            self._enter(
                function, f"function {function.domain}::{function.name}", function.opset_imports, function, None
            )

    def _enter(
        self,
        part: ir.Graph | ir.Function,
        name: str,
        imports: dict[str, int],
        function: ir.Function | None,
        parent: Scope | None,
    ) -> None:
        scope = Scope(part, name, imports, function, parent)
        self.scopes.append(scope)
        visible, names = self._visible, self._names
        self._visible, self._names = set(visible) if parent else visible, set(names) if parent else names
        own_names: set[str] = set()
        for value in part.inputs:
            self._define(value, scope, own_names, "input")
        if isinstance(part, ir.Graph):
            for value in part.initializers.values():
                if not value.is_graph_input():
                    self._define(value, scope, own_names, "initializer")
        for node in part:
            self._visit(node, scope, own_names)
        for value in part.outputs:
            if self.owner.get(id(value)) is not scope:
                self.unready.append(Read(None, value, scope))
            elif not value.name:
                self.nameless.append(Read(None, value, scope))
        self._visible, self._names = visible, names

    def _visit(self, node: ir.Node, scope: Scope, own_names: set[str]) -> None:
        scope.nodes.append(node)
        self.nodes.append((node, scope))
        visible = self._visible
        for value in node.inputs:
            if value is None:
                continue
            if id(value) not in visible:
                self.unready.append(Read(node, value, scope))
            if not value.name:
                self.nameless.append(Read(node, value, scope))
        for attribute in node.attributes.values():
            if attribute.is_ref():
                if scope.function is None:
                    self.loose_references.append((node, attribute.name))
            elif attribute.type == ir.AttributeType.GRAPH:
                self._enter_body(attribute.as_graph(), node, attribute.name, scope)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for body in attribute.as_graphs():
                    self._enter_body(body, node, attribute.name, scope)
        for value in node.outputs:
            if value.name:
                self._define(value, scope, own_names, "output")
            else:
                self.owner[id(value)] = scope
                visible.add(id(value))

    def _enter_body(self, body: ir.Graph, node: ir.Node, attribute: str, scope: Scope) -> None:
        self._enter(body, f"{attribute} of {label(node)}", scope.imports, scope.function, scope)

    def _define(self, value: ir.Value, scope: Scope, own_names: set[str], what: str) -> None:
        name = value.name or ""
        if name in own_names or id(value) in self.owner:
            self.clashes.append(Clash(value, scope, True, what))
        elif name in self._names:
            self.clashes.append(Clash(value, scope, False, what))
        own_names.add(name)
        self._names.add(name)
        self.owner[id(value)] = scope
        self._visible.add(id(value))


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
