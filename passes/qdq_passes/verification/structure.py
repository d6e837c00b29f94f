"""Rules on structure: everything is defined before it is read, an order exists, inputs, outputs and initializers are sane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx_ir as ir

from qdq_passes.core.findings import Problem, place

if TYPE_CHECKING:
    from qdq_passes.verification.rules import Read, Scope, Walk

SORT = "run the pass sort"


def defined_values(walk: Walk) -> Iterator[Problem]:
    """Every value read is an input, an initializer or a node's output of this scope or of one around it."""
    for read in walk.unready:
        where, name = (place(read.node) if read.node is not None else read.scope.name), read.value.name
        owner = walk.owner.get(id(read.value))
        if owner is None:
            yield "fatal", where, f"reads {name!r}, which nothing defines", "connect it, or remove the reader"
        elif read.node is None:
            yield "error", where, f"returns {name!r} of {owner.name}", "put an Identity between"
        elif not read.scope.is_inside(owner):
            yield "fatal", where, f"reads {name!r} of {owner.name}, out of its sight", "pass it as an output"


def _late(walk: Walk) -> dict[int, tuple[Scope, list[Read]]]:
    """Reads that come before the definition, by the scope that defines the value."""
    late: dict[int, tuple[Scope, list[Read]]] = {}
    for read in walk.unready:
        owner = walk.owner.get(id(read.value))
        if owner is not None and read.node is not None and read.scope.is_inside(owner):
            late.setdefault(id(owner), (owner, []))[1].append(read)
    return late


def topological_order(walk: Walk) -> Iterator[Problem]:
    """Nodes stand in an order in which they can be computed."""
    for scope, reads in _late(walk).values():
        if not _on_cycles(scope):
            first = reads[0]
            assert first.node is not None
            rest = f", and {len(reads) - 1} more reads like it" if len(reads) > 1 else ""
            yield "error", place(first.node), f"reads {first.value.name!r} before it is computed{rest}", SORT


def acyclic(walk: Walk) -> Iterator[Problem]:
    """Some order computes everything."""
    for scope, _ in _late(walk).values():
        stuck = _on_cycles(scope)
        if stuck:
            yield "fatal", place(stuck[0]), f"is on a cycle, with {len(stuck) - 1} other nodes", "cut the cycle"


def _on_cycles(scope: Scope) -> list[ir.Node]:
    """Nodes of ``scope`` that are on a cycle or behind one, in order."""
    index = {id(value): i for i, node in enumerate(scope.nodes) for value in node.outputs}
    needs = [{index[i] for i in _reads(node) if i in index} for node in scope.nodes]
    feeds: list[list[int]] = [[] for _ in needs]
    for i, sources in enumerate(needs):
        for source in sources:
            feeds[source].append(i)
    counts = [len(sources) for sources in needs]
    ready = [i for i, count in enumerate(counts) if count == 0]
    done = 0
    while ready:
        i = ready.pop()
        done += 1
        for reader in feeds[i]:
            counts[reader] -= 1
            if counts[reader] == 0:
                ready.append(reader)
    return [] if done == len(needs) else [node for node, count in zip(scope.nodes, counts, strict=True) if count]


def _reads(node: ir.Node) -> set[int]:
    """ids of the values that ``node`` and its bodies read."""
    found = {id(value) for value in node.inputs if value is not None}
    for attribute in node.attributes.values():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) and not attribute.is_ref():
            bodies = [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()
            for body in bodies:
                found |= {id(value) for inner in body.all_nodes() for value in inner.inputs if value is not None}
    return found


def acyclic_functions(walk: Walk) -> Iterator[Problem]:
    """Local functions do not call each other in a circle."""
    calls: dict[tuple[str, str, str], set[tuple[str, str, str]]] = {key: set() for key in walk.model.functions}
    for node, scope in walk.nodes:
        key = (node.domain, node.op_type, node.overload)
        if scope.function is not None and key in calls:
            calls[scope.function.identifier()].add(key)
    callers: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {key: [] for key in calls}
    for key, called in calls.items():
        for one in called:
            callers[one].append(key)
    done = [key for key, called in calls.items() if not called]
    for key in done:  # grows
        del calls[key]
        for caller in callers[key]:
            calls[caller].discard(key)
            if not calls[caller]:
                done.append(caller)
    for domain, name, _ in calls:
        yield "fatal", f"{domain}::{name}", "calls itself, maybe through others", "functions may not be recursive"


def initializer_data(walk: Walk) -> Iterator[Problem]:
    """Every initializer has data, of the type and shape its value is said to have."""
    for scope in walk.scopes:
        if not isinstance(scope.part, ir.Graph):
            continue
        for value in scope.part.initializers.values():
            tensor, name = value.const_value, value.name or ""
            if tensor is None:
                yield "fatal", name, "is an initializer without data", "give it a tensor, or remove it"
                continue
            if value.dtype is not None and value.dtype != tensor.dtype:
                yield "error", name, f"is declared {value.dtype} but holds {tensor.dtype}", "declare what it holds"
            if value.shape is not None and not _fits(value.shape, tensor.shape):
                message = f"is declared {_dims(value.shape)} but holds {_dims(tensor.shape)}"
                yield "error", name, message, "declare what it holds"


def _fits(declared: ir.Shape, actual: ir.ShapeProtocol) -> bool:
    if declared is actual:
        return True
    return len(declared) == len(actual) and all(
        not isinstance(d, int) or d == a for d, a in zip(declared, actual, strict=True)
    )


def _dims(shape: ir.ShapeProtocol) -> list[int | str]:
    return [d if isinstance(d, int) else str(d) for d in shape]


def initializer_inputs(walk: Walk) -> Iterator[Problem]:
    """Before IR version 4 every initializer is a graph input too."""
    if walk.model.ir_version >= 4:
        return
    loose = [name for name, value in walk.model.graph.initializers.items() if not value.is_graph_input()]
    if loose:
        message = f"is an initializer but no input, as IR version {walk.model.ir_version} demands ({len(loose)} such)"
        yield "error", loose[0], message, "raise the model's ir_version to 4 or more"


def graph_io(walk: Walk) -> Iterator[Problem]:
    """Inputs and outputs of the main graph have types; outputs exist; no input twice."""
    graph = walk.model.graph
    for value in graph.inputs:
        if value.type is None:
            yield "error", value.name or "", "the input has no type", "declare its data type"
    for value in graph.outputs:
        if value.type is None:
            yield "warning", value.name or "", "the output has no type", "run the pass infer-shapes"
    if not graph.outputs:
        yield "warning", graph.name or "main", "the graph has no outputs", "mark a value as output"
    for value in dict.fromkeys([*graph.inputs, *graph.outputs]):
        if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape):
            yield "warning", value.name or "", f"has the shape {_dims(value.shape)}", "name the dynamic dimension"
    for name, count in Counter(value.name for value in graph.outputs).items():
        if count > 1:
            yield "warning", name or "", f"is listed {count} times as an output", "list it once"
