"""Edits that follow a `StaticWalk`: constants become initializers, branches whose condition is constant open."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, hand_over, inherit
from qdq_passes.graph.evaluate.walk import StaticWalk
from qdq_passes.graph.uses import GraphLike, bodies_of, constant_array, is_standard, label
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.missing import tensor_of


def fold_walked(model: ir.Model, walked: StaticWalk, graph: GraphLike | None = None) -> Iterator[Change]:
    """Put constants in place of what ``walked`` computed in ``graph`` (by default the main graph), under the names of the values.

    They are initializers; Constant nodes for outputs of the graph, and where it takes no initializers.
    """
    if not walked.computed:
        return
    holder = model.graph if graph is None else graph
    namer = Namer(model)
    as_nodes = not isinstance(holder, ir.Graph) or namer.takes_no_initializers(holder)
    made = []
    for value, array in walked.arrays.items():
        if as_nodes or value.is_graph_output():
            yield _put_constant_node(value, array, namer)
            continue
        tensor = tensor_of(array, value.name)
        new = ir.Value(
            name=value.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
        )
        value.replace_all_uses_with(new)
        made.append(new)
    read: dict[ir.Value, None] = {}
    for node in reversed([node for node in walked.nodes if node in walked.computed]):
        read.update(dict.fromkeys(v for v in node.inputs if v is not None and v.producer() is None))
        graph_of(node).remove(node, safe=True)
        yield Change("remove", label(node), "is constant")
    for new in made:
        assert isinstance(holder, ir.Graph)
        holder.register_initializer(new)
        yield Change("insert", new.name or "", f"initializer, {new.shape}")
    yield from drop_unread(read)


def _put_constant_node(value: ir.Value, array: Array, namer: Namer) -> Change:
    """Let a Constant make what ``value`` is, under its name, which may be that of an output of its graph."""
    old = value.producer()
    assert old is not None
    tensor = tensor_of(array)
    constant = ir.Node(
        "", "Constant", [], [ir.AttrTensor("value", tensor)], name=namer.fresh(f"{label(old)}_folded"),
        outputs=[ir.Value(
            name=namer.fresh(f"{value.name}_folded"), type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(array.shape),
        )],
    )  # fmt: skip
    inherit(constant, [old])
    graph_of(old).insert_after(old, constant)
    hand_over(value, constant.outputs[0], namer)
    return Change("insert", label(constant), f"is constant, {constant.outputs[0].shape}")


def open_branches(model: ir.Model, walked: StaticWalk) -> Iterator[Change]:
    """Replace each If of the walked graph whose condition ``walked`` computed by the nodes of the branch that runs."""
    for node in walked.nodes:
        condition = node.inputs[0] if is_standard(node, "If") and node.inputs else None
        array = None if condition is None else walked.arrays.get(condition)
        if array is None and condition is not None:
            array = constant_array(condition)
        if array is None or array.size != 1:
            continue
        name = "then_branch" if bool(np.reshape(array, ())) else "else_branch"
        if node.attributes[name].as_graph().initializers and Namer(model).takes_no_initializers(graph_of(node)):
            continue
        yield Change("replace", node.name or "If", f"its condition is constant: {name}")
        open_branch(model, node, name)


def open_branch(model: ir.Model, node: ir.Node, name: str) -> None:
    """Put the nodes of the branch ``name`` where ``node``, an If, stands; names stay where no other value or node has them."""
    branch, graph = node.attributes[name].as_graph(), graph_of(node)
    outputs, inner, stored = list(branch.outputs), list(branch), list(branch.initializers.values())
    branch.outputs.clear()
    for one in inner:
        branch.remove(one)
    branch.initializers.clear()
    for other in bodies_of(node):
        for reader in other.all_nodes():  # a node that is nowhere reads nothing
            for index in range(len(reader.inputs)):
                reader.replace_input_with(index, None)
    node.attributes.clear()  # the other branch goes, with its names
    namer = Namer(model)
    for value in (*stored, *(v for one in inner for v in one.outputs)):
        value.name = namer.fresh(value.name) if value.name else value.name
    for one in inner:
        one.name = namer.fresh(label(one))
    for value in stored:
        graph.register_initializer(value)
    graph.insert_before(node, inner)
    for old, new in zip(node.outputs, outputs, strict=True):
        hand_over(old, new, namer)
    graph.remove(node, safe=True)
