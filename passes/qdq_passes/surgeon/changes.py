"""Compares a model with its edited version by name and signature, and installs the edited one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.surgeon.snapshot import is_sorted

#: ``(graph, its label)`` of one scope in both versions.
Scopes = dict[str, ir.Graph]


def differences(before: ir.Model, after: ir.Model, *, because: str) -> list[Change]:
    """One `Change` per removed, added or edited node, value and initializer, and per changed property of the model.

    Nodes are the same when they have the same name (unnamed ones: the same outputs) in the same graph, function or body.
    Another order of the same nodes is a change only where the former order was wrong.
    """
    return [Change(kind, where, because) for kind, where in _differences(before, after)]


def install(model: ir.Model, edited: ir.Model) -> None:
    """Make ``model``, in place, what ``edited`` is; ``edited`` must not be used any more."""
    model.graph = edited.graph
    model.functions.clear()
    model.functions.update(edited.functions)
    for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(model, name, getattr(edited, name))
    model.device_configurations = edited.device_configurations
    model.metadata_props.clear()
    model.metadata_props.update(edited.metadata_props)
    model.meta.update(edited.meta)


def _differences(before: ir.Model, after: ir.Model) -> Iterator[tuple[str, str]]:
    old, new = _scopes(before), _scopes(after)
    for label in [*old, *(label for label in new if label not in old)]:
        if label not in new or label not in old:
            yield ("insert" if label in new else "remove"), label
        else:
            yield from _in_scope(old[label], new[label])
    for what, value in _properties(before).items():
        if value != _properties(after)[what]:
            yield "edit", what


def _in_scope(old: ir.Graph, new: ir.Graph) -> Iterator[tuple[str, str]]:
    old_nodes, new_nodes = _nodes(old), _nodes(new)
    for name, node in old_nodes.items():
        if name not in new_nodes:
            yield "remove", name
        elif not _same_node(node, new_nodes[name]):
            yield "edit", name
    yield from (("insert", name) for name in new_nodes if name not in old_nodes)
    old_values, new_values = _values(old), _values(new)
    for name, value in old_values.items():
        if name in new_values and not _same_value(value, new_values[name]):
            yield "edit", name
        elif value.is_initializer() and name not in new_values:
            yield "remove", name
    yield from (("insert", name) for name, v in new_values.items() if v.is_initializer() and name not in old_values)
    for what, values in {"inputs": (old.inputs, new.inputs), "outputs": (old.outputs, new.outputs)}.items():
        if [v.name for v in values[0]] != [v.name for v in values[1]]:
            yield "edit", f"{what} of {new.name or 'the graph'}"
    if (old.name, old.doc_string, old.metadata_props) != (new.name, new.doc_string, new.metadata_props):
        yield "edit", new.name or "the graph"
    if list(old_nodes) != list(new_nodes) and old_nodes.keys() == new_nodes.keys() and not is_sorted(old):
        yield "sort", new.name or "the graph"


def _scopes(model: ir.Model) -> Scopes:
    """Every graph by a label that both versions share: main graph, functions, bodies by owner and attribute."""
    found: Scopes = {}

    def add(label: str, graph: ir.Graph) -> None:
        found[label] = graph
        for name, node in _nodes(graph).items():
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    add(
                        f"{label}/{name}/{attribute.name}" if label else f"{name}/{attribute.name}",
                        attribute.as_graph(),
                    )

    add("", model.graph)
    for function in model.functions.values():
        add(f"{function.domain}::{function.name}", function.graph)
    return found


def _nodes(graph: ir.Graph) -> dict[str, ir.Node]:
    """Nodes by name; by what they produce where the name is missing or given twice."""
    found: dict[str, ir.Node] = {}
    for node in graph:
        outputs = ",".join(value.name or "" for value in node.outputs)
        found[node.name if node.name and node.name not in found else f"{node.name or node.op_type} → {outputs}"] = node
    return found


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
    return {value.name: value for value in values if value.name}


def _same_node(old: ir.Node, new: ir.Node) -> bool:
    same = (
        old.op_identifier() == new.op_identifier()
        and [v and v.name for v in old.inputs] == [v and v.name for v in new.inputs]
        and [v.name for v in old.outputs] == [v.name for v in new.outputs]
        and (old.doc_string, old.metadata_props) == (new.doc_string, new.metadata_props)
    )
    return same and _same_attributes(old.attributes, new.attributes)


def _same_attributes(old: Mapping[str, ir.Attr], new: Mapping[str, ir.Attr]) -> bool:
    return list(old) == list(new) and all(_same_attribute(old[name], new[name]) for name in old)


def _same_attribute(old: ir.Attr, new: ir.Attr) -> bool:
    if old is new or (old.type, old.ref_attr_name) != (new.type, new.ref_attr_name):
        return old is new
    if old.is_ref() or old.type == ir.AttributeType.GRAPH:  # bodies are scopes of their own
        return True
    if old.type == ir.AttributeType.TENSOR:
        return same_tensor(old.as_tensor(), new.as_tensor())
    return bool(old.value == new.value)


def _same_value(old: ir.Value, new: ir.Value) -> bool:
    if old.is_initializer() != new.is_initializer() or (old.type, old.shape) != (new.type, new.shape):
        return False
    return not old.is_initializer() or same_tensor(old.const_value, new.const_value)


def same_tensor(old: ir.TensorProtocol | None, new: ir.TensorProtocol | None) -> bool:
    """Whether both hold the same elements of the same type, bit for bit."""
    if old is new or old is None or new is None:
        return old is new
    if old.dtype != new.dtype or old.shape != new.shape:
        return False
    return same_array(old.numpy(), new.numpy())


def same_array(old: npt.NDArray[np.generic], new: npt.NDArray[np.generic]) -> bool:
    """Whether both arrays are equal bit for bit (NaN equal to itself, 0.0 not to -0.0); strings by their text."""
    if old.dtype != new.dtype or old.shape != new.shape:
        return False
    if not old.dtype.hasobject:
        old, new = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (old, new))
    return bool(np.array_equal(old, new))


def _properties(model: ir.Model) -> dict[str, object]:
    return {
        "opset imports": dict(model.opset_imports),
        "opset imports of functions": {f.identifier(): dict(f.opset_imports) for f in model.functions.values()},
        "signatures of functions": {f.identifier(): list(f.attributes) for f in model.functions.values()},
        "IR version": model.ir_version,
        "producer": (model.producer_name, model.producer_version),
        "description of the model": (model.domain, model.model_version, model.doc_string, dict(model.metadata_props)),
    }
