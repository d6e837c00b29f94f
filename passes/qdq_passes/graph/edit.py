"""Safe surgery: the only way passes change the wiring of a graph.

Names of graph inputs and outputs never change, types and shapes move along, initializers that others read are not rewritten,
new names are unique in the whole model, new nodes inherit scope and origin of what they stand for. An edit of a node that was
already removed is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.errors import ModelError, UnsupportedError, VerifyError
from qdq_passes.graph.annotate import ORIGIN, Origin, annotation_kinds
from qdq_passes.graph.nesting import INHERITED_KEYS
from qdq_passes.graph.uses import (
    all_graphs,
    all_nodes,
    all_values,
    is_constant,
    is_standard,
    label,
    readers,
    with_bodies,
)
from qdq_passes.numerics.missing import tensor_of

#: First IR version in which an initializer need not be an input as well.
IR_OF_PLAIN_INITIALIZERS = 4
RUN_SORT = "run the pass sort first"


class Namer:
    """Gives names that no node and no value of the model has; one per run of a pass."""

    def __init__(self, model: ir.Model) -> None:
        self._is_old = (model.ir_version or IR_OF_PLAIN_INITIALIZERS) < IR_OF_PLAIN_INITIALIZERS
        self._main_graphs = set(with_bodies(model.graph))
        self._function_bodies = [function.graph for function in model.functions.values()]
        self._used = {node.name for node in all_nodes(model)} | {value.name for value in all_values(model)}

    def fresh(self, wanted: str) -> str:
        """``wanted`` itself if it is free, else ``wanted_1``, ``wanted_2``…"""
        name, count = wanted, 0
        while name in self._used:
            count += 1
            name = f"{wanted}_{count}"
        self._used.add(name)
        return name

    def is_free(self, name: str) -> bool:
        """Whether nothing bears ``name``."""
        return name not in self._used

    def release(self, name: str) -> None:
        """``name`` is free again: what bore it was renamed."""
        self._used.discard(name)

    def sees_main(self, graph: ir.Graph) -> bool:
        """Whether ``graph`` is the main graph or a body in it, whose nodes see its initializers; not so in local functions."""
        return graph in self._main_graphs

    def takes_no_initializers(self, graph: ir.Graph) -> bool:
        """Whether constants in ``graph`` must be nodes: in the body of a local function, and before IR version 4, where an
        initializer had to be an input as well."""
        return self._is_old or any(graph is body for body in self._function_bodies)


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph (main, body or function body) that holds ``node``.

    Raises:
        VerifyError: the node was removed.
    """
    if node.graph is None:
        raise VerifyError("was already removed from its graph", where=label(node), hint="this is a bug of the pass")
    return node.graph


def inherit(new: ir.Node, olds: Iterable[ir.Node]) -> ir.Node:
    """Let ``new`` stand for ``olds``: scope metadata of the first that has it, origin of all."""
    origins: dict[str, None] = {}
    for old in olds:
        for key in INHERITED_KEYS:
            if key in old.metadata_props:
                new.metadata_props.setdefault(key, old.metadata_props[key])
        origin = ORIGIN.get(old)
        origins.update(dict.fromkeys(origin.nodes if origin else (label(old),)))
    if origins:
        ORIGIN.set(new, Origin(tuple(origins)))
    return new


def make_node(
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    name: str,
    output: str,
    like: ir.Value | None = None,
    attributes: Mapping[str, ir.Attr] | Sequence[ir.Attr] = (),
    domain: str = "",
    stands_for: Iterable[ir.Node] = (),
    dtype: ir.DataType | None = None,
) -> ir.Node:
    """A node with one output, not yet in a graph.

    Args:
        op_type: operator.
        inputs: its inputs.
        name: node name, already unique (`Namer.fresh`).
        output: name of the output value, already unique.
        like: value whose type and shape the output has.
        attributes: attributes.
        domain: operator domain.
        stands_for: nodes whose scope and origin it inherits.
        dtype: element type of the output where it is not that of ``like``.
    """
    values = list(attributes.values()) if isinstance(attributes, Mapping) else list(attributes)
    value = ir.Value(name=output)
    if like is not None:
        value.shape = like.shape.copy() if like.shape is not None else None
        value.type = ir.TensorType(dtype) if dtype is not None else like.type
    node = ir.Node(domain, op_type, inputs, values, outputs=[value], name=name)
    return inherit(node, stands_for)


def new_constant(
    graph: ir.Graph,
    namer: Namer,
    wanted: str,
    data: npt.NDArray[Any] | ir.TensorProtocol,
    stands_for: Iterable[ir.Node] = (),
) -> ir.Value:
    """A new constant in ``graph``, called ``wanted`` or like it: an initializer, or a Constant at the front.

    ``stands_for`` are the nodes whose scope a Constant inherits.
    """
    name = namer.fresh(wanted)
    tensor = tensor_of(data, name) if isinstance(data, np.ndarray | np.generic) else data
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    if namer.takes_no_initializers(graph):
        node = ir.Node(
            "", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=namer.fresh(f"{name}_Constant")
        )
        inherit(node, stands_for)
        graph.insert_before(graph[0], node) if len(graph) else graph.append(node)
    else:
        value.const_value = tensor
        graph.register_initializer(value)
    return value


def own_initializer(node: ir.Node, index: int, namer: Namer) -> ir.Value:
    """Input ``index`` of ``node`` as an initializer that nobody else reads: itself, or a copy under a fresh name."""
    value = node.inputs[index]
    if value is None or value.const_value is None:
        raise UnsupportedError(f"input {index} is no initializer", where=node.name)
    if len(readers(value)) == 1 and not value.is_graph_output() and not value.is_graph_input():
        return value
    graph = value.graph or graph_of(node)
    copy = new_constant(graph, namer, value.name or "initializer", value.const_value)
    copy.metadata_props.update(value.metadata_props)
    node.replace_input_with(index, copy)
    return copy


def set_constant(value: ir.Value, data: npt.NDArray[Any] | ir.TensorProtocol) -> None:
    """Give an initializer new data. Whoever else reads it sees the change: call `own_initializer` first."""
    tensor = tensor_of(data, value.name) if isinstance(data, np.ndarray | np.generic) else data
    value.const_value = tensor
    value.type = ir.TensorType(tensor.dtype)
    value.shape = ir.Shape(tensor.shape.numpy())


def replace_value(old: ir.Value, new: ir.Value, namer: Namer) -> None:
    """Let every reader of ``old`` read ``new``. A graph output keeps its name: ``new`` takes it over.

    Where ``new`` cannot take the name (it is a graph input, an initializer or another output itself), an Identity carries it.
    """
    if not old.is_graph_output():
        old.replace_all_uses_with(new)
        return
    graph = old.graph
    if graph is None or old.name is None:
        raise UnsupportedError("is a graph output without a graph", where=old.name)
    name = old.name
    takes_name = not (new.is_graph_input() or new.is_initializer() or new.is_graph_output() or new.graph is not graph)
    old.name = namer.fresh(f"{name}_replaced")
    if takes_name:
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name = name
        if new.type is None or new.shape is None:
            new.type, new.shape = old.type, old.shape
    else:
        producer = old.producer()
        old_outputs = [i for i, value in enumerate(graph.outputs) if value is old]
        identity = make_node(
            "Identity", [new], name=namer.fresh(f"{name}_Identity"), output=name, like=old,
            stands_for=[producer] if producer is not None else [],
        )  # fmt: skip
        graph.append(identity)
        for i in old_outputs:
            graph.outputs[i] = identity.outputs[0]
        old.replace_all_uses_with(new)
        move_annotations(old, identity.outputs[0])
        return
    move_annotations(old, new)


def hand_over(old: ir.Value, new: ir.Value, namer: Namer) -> None:
    """`replace_value`, after which ``new`` has the name of ``old`` wherever it stands."""
    name, was_output = old.name, old.is_graph_output()
    replace_value(old, new, namer)
    if not was_output and name:
        old.name, new.name = namer.fresh(f"{name}_replaced"), name


def move_annotations(old: ir.Value, new: ir.Value) -> None:
    """Carry annotations of ``old`` over to ``new`` unless ``new`` has its own."""
    for annotation in annotation_kinds():
        value = annotation.get(old)
        if value is not None and annotation.get(new) is None:
            annotation.set(new, value)


def insert_after(model: ir.Model, value: ir.Value, nodes: Sequence[ir.Node]) -> None:
    """Put ``nodes`` right behind the producer of ``value``; to the front of its graph for inputs and initializers."""
    producer = value.producer()
    if producer is not None:
        graph_of(producer).insert_after(producer, list(nodes))
    else:
        put_first(value.graph or model.graph, nodes)


def put_first(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Put ``nodes`` to the front of ``graph``, behind the Constant nodes that stand there: they may read those."""
    first = next((node for node in graph if not is_standard(node, "Constant")), None)
    if first is not None:
        graph.insert_before(first, list(nodes))
    else:
        graph.extend(nodes)


def remove(nodes: ir.Node | Iterable[ir.Node], because: str) -> list[Change]:
    """Take nodes that nobody reads out of their graph.

    Raises:
        VerifyError: a node was already removed.
        UnsupportedError: someone still reads one.
    """
    changes = []
    for node in [nodes] if isinstance(nodes, ir.Node) else list(nodes):
        graph = graph_of(node)
        try:
            graph.remove(node, safe=True)
        except ValueError as error:
            users = sorted({label(user) for value in node.outputs for user in value.consumers()})
            hint = f"by {', '.join(users[:3])}" if users else "as an output of its graph"
            raise UnsupportedError("cannot be removed, it is still read", where=node.name, hint=hint) from error
        changes.append(Change("remove", label(node), because))
    return changes


def bypass(node: ir.Node, namer: Namer, because: str, *, source: ir.Value | None = None) -> Change:
    """Remove ``node``; its readers read ``source`` (its first input by default) instead."""
    graph_of(node)
    source = source if source is not None else node.inputs[0]
    if source is None:
        raise UnsupportedError("has no input to pass on", where=node.name)
    replace_value(node.outputs[0], source, namer)
    return remove(node, because)[0]


def replace_nodes(olds: Sequence[ir.Node], new: Sequence[ir.Node], namer: Namer, because: str) -> Change:
    """Put ``new`` where the last of ``olds`` stands; the first output of its last node takes over from that of the last old."""
    last = olds[-1]
    graph_of(last).insert_after(last, list(new))
    hand_over(last.outputs[0], new[-1].outputs[0], namer)
    for node in reversed(olds):
        remove(node, because)
    return Change("replace", label(last), because)


def drop_unread(values: Iterable[ir.Value | None]) -> list[Change]:
    """Remove those of ``values`` that are initializers or outputs of Constant nodes and that nobody reads any more."""
    changes = []
    for value in dict.fromkeys(v for v in values if v is not None and v.name):
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        producer = value.producer()
        if value.is_initializer() and value.graph is not None:
            del value.graph.initializers[value.name or ""]
            changes.append(Change("remove", value.name or "", "initializer is no longer read"))
        elif producer is not None and producer.graph is not None and is_standard(producer, "Constant"):
            changes += remove(producer, "constant is no longer read")
    return changes


def drop_unused_domains(model: ir.Model, domains: Iterable[str]) -> list[Change]:
    """Take those of ``domains`` that no node of the model uses out of its imported operator sets; functions keep theirs."""
    used = {node.domain for node in all_nodes(model)}
    changes = []
    for domain in sorted(set(domains) & set(model.opset_imports) - used - {""}):
        del model.opset_imports[domain]
        changes.append(Change("remove", domain, "no node uses this operator set"))
    return changes


def copy_model(model: ir.Model) -> ir.Model:
    """A copy that shares the tensors; what the model knows of its file comes along (onnx_ir's clone drops it).

    onnx_ir copies sorted graphs only: one whose nodes are out of order is sorted for the while, and both get its order back.

    Raises:
        ModelError: nodes stand in a cycle.
    """
    try:
        copy = model.clone()
    except RuntimeError:
        copy = _copy_unsorted(model)
    copy.meta.update(model.meta)
    return copy


def _copy_unsorted(model: ir.Model) -> ir.Model:
    graphs = [*model.graphs(), *(function.graph for function in model.functions.values())]
    graphs += [graph for graph in all_graphs(model) if graph not in graphs]
    orders = [(graph, list(graph)) for graph in graphs]
    before = {node: number for number, node in enumerate(all_nodes(model))}
    try:
        for graph in graphs:
            graph.sort()
        after = [before[node] for node in all_nodes(model)]
        copy = model.clone()
    except ValueError as error:
        raise ModelError("the graph has a cycle", where=model.graph.name, hint="no order exists") from error
    finally:
        for graph, nodes in orders:
            graph.extend(nodes)
    twins = dict(zip(after, all_nodes(copy), strict=True))
    for node in before:
        twin = twins[before[node]]
        graph_of(twin).append(twin)
    return copy


def take_over(
    source: ir.Value, node: ir.Node, namer: Namer, because: str, *, stand_for: bool = True, rename: bool = False
) -> list[Change]:
    """Remove ``node``; its readers read ``source``, which takes the name of its output where both are in one graph.

    Args:
        source: a value that ``node`` reads. It keeps its name if it is an input, an output or a constant.
        node: the node to remove.
        namer: names of this run.
        because: the reason.
        stand_for: whether the producer of ``source`` stands for ``node`` from now on.
        rename: whether the producer of ``source`` is called like its former output.
    """
    producer, target = source.producer(), node.outputs[0]
    name, former, was_output = target.name, source.name, target.is_graph_output()
    parameters = list(node.inputs)
    takes_name = producer is not None and source.graph is node.graph and not (
        source.is_graph_output() or is_constant(source) or not name
    )  # fmt: skip
    if stand_for and producer is not None:
        inherit(producer, [producer, node])
    changes = [bypass(node, namer, because, source=source)]
    if takes_name and not was_output:
        source.name = name
        source.type = source.type or target.type
        source.shape = source.shape if source.shape is not None else target.shape
        move_annotations(target, source)
    if takes_name and former:
        namer.release(former)
        if rename and producer is not None and producer.name != former:
            changes.append(Change("rename", former, f"was {producer.name}"))
            producer.name = namer.fresh(former)
    return [*changes, *drop_unread(parameters)]
