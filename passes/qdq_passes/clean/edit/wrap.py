"""Runs a pass of another library (onnx_ir, onnxscript) and says what it changed, by comparing snapshots."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change
from qdq_passes.graph.uses import all_graphs, all_nodes, all_values, label, with_bodies


@dataclass(frozen=True)
class Snapshot:
    """What of a model a pass may change, without the tensors' data.

    Args:
        nodes: per node (by identity) its wiring and attributes.
        values: per value (by identity) its name, type, shape.
        initializers: (graph, name) → identity of the tensor.
        model: functions, opset imports, names of inputs and outputs, metadata.
    """

    nodes: dict[ir.Node, object]
    values: dict[ir.Value, object]
    initializers: dict[tuple[int, str], int]
    model: dict[str, object]

    @classmethod
    def of(cls, model: ir.Model) -> Snapshot:
        """The present state of ``model``."""
        nodes = all_nodes(model)
        return cls(
            nodes={node: _of_node(node) for node in nodes},
            values={value: (value.name, str(value.type), _shape(value)) for value in all_values(model)},
            initializers={
                (id(graph), name): id(value.const_value)
                for graph in all_graphs(model)
                for name, value in graph.initializers.items()
            },
            model={
                "functions": [str(identifier) for identifier in model.functions],
                "opset imports": dict(model.opset_imports),
                "inputs": [value.name for value in model.graph.inputs],
                "outputs": [value.name for value in model.graph.outputs],
                "metadata": dict(model.metadata_props),
                "IR version": model.ir_version,
                "order": [id(node) for node in nodes],
            },
        )

    def changes_to(self, later: Snapshot, because: str) -> Iterator[Change]:
        """One `Change` per difference, in the order of the graph."""
        for node in self.nodes.keys() - later.nodes.keys():
            yield Change("remove", _label(self.nodes[node]), because)
        for node, state in later.nodes.items():
            if node not in self.nodes:
                yield Change("insert", label(node), because)
            elif self.nodes[node] != state:
                yield Change("edit", label(node), because)
        for value, state in later.values.items():
            if value in self.values and self.values[value] != state:
                yield Change(
                    "annotate" if _name(state) == _name(self.values[value]) else "rename", value.name or "", because
                )
        for name in sorted({k[1] for k in self.initializers.keys() - later.initializers.keys()}):
            yield Change("remove", name, f"{because}: initializer")
        for key, tensor in later.initializers.items():
            if self.initializers.get(key) != tensor:
                yield Change("edit" if key in self.initializers else "insert", key[1], f"{because}: initializer")
        for what, state in later.model.items():
            if self.model[what] != state and (what != "order" or _reordered(self.model[what], state)):
                yield Change("edit", what, because)


def changes_of(model: ir.Model, edit: Callable[[ir.Model], object], because: str) -> Iterator[Change]:
    """Run ``edit`` on ``model`` in place and yield what it changed."""
    before = Snapshot.of(model)
    edit(model)
    yield from sorted_removals(before.changes_to(Snapshot.of(model), because))


def remove_unused_functions(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """Drop the local functions that the main graph does not call, directly or through functions; returns which."""
    called: set[ir.OperatorIdentifier] = set()
    graphs = with_bodies(model.graph)
    while graphs:
        for node in graphs.pop():
            identifier = node.op_identifier()
            if identifier in model.functions and identifier not in called:
                called.add(identifier)
                graphs += with_bodies(model.functions[identifier])
    unused = [identifier for identifier in model.functions if identifier not in called]
    for identifier in unused:
        del model.functions[identifier]
    return unused


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Only errors from the logger ``name`` while the block runs: a library that logs what it cannot do and goes on."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def sorted_removals(changes: Iterator[Change]) -> list[Change]:
    """Changes with the removals (found in set order) first and by name; the rest keeps its order."""
    found = list(changes)
    removals = [c for c in found if c.kind == "remove"]
    return sorted(removals, key=lambda c: c.where) + [c for c in found if c.kind != "remove"]


def _of_node(node: ir.Node) -> object:
    attributes = [(a.name, a.type, _attribute(a)) for a in node.attributes.values()]
    return (
        label(node), node.domain, node.op_type, node.overload, tuple(map(id, node.inputs)),
        tuple(map(id, node.outputs)), attributes, dict(node.metadata_props),
    )  # fmt: skip


def _attribute(attribute: ir.Attr) -> object:
    if attribute.is_ref():
        return attribute.ref_attr_name
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return [
            (id(g), [v.name for v in g.outputs])
            for g in (attribute.value if attribute.type == ir.AttributeType.GRAPHS else [attribute.value])
        ]
    if attribute.type in (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING):
        return attribute.value
    return id(attribute.value)


def _label(state: object) -> str:
    assert isinstance(state, tuple)
    return str(state[0])


def _name(state: object) -> object:
    assert isinstance(state, tuple)
    return state[0]


def _shape(value: ir.Value) -> object:
    return None if value.shape is None else tuple(str(d) for d in value.shape)


def _reordered(before: object, after: object) -> bool:
    """Whether nodes that are in both lists stand in another order."""
    assert isinstance(before, list)
    assert isinstance(after, list)
    common = set(before) & set(after)
    return [n for n in before if n in common] != [n for n in after if n in common]
