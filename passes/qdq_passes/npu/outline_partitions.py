"""outline-partitions

Outlining: nodes of the main graph become the body of a local function, and one call takes their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.annotate import TARGET, Placement
from qdq_passes.graph.edit import Namer, drop_unread, inherit, move_annotations
from qdq_passes.graph.uses import constant_array, reach, readers, values_read

#: Domain of the functions; each is called ``partition_0`` and so on.
DOMAIN = "qdqtool.partitions"


@dataclass(frozen=True)
class OutlinePartitions(Pass):
    """Make a local function of each partition that assign-targets found: one box where the model is looked at.

    Graph: ``Q → [DQ → Conv → Q → DQ → Relu → Q] → DQ`` → ``Q → partition_0 → DQ``. Constants of at most 1 KiB that the partition
    reads become Constants in the function, larger ones inputs of the call. Nodes keep their annotations, the call gains that of
    the partition.
    Requires: the annotation ``target``.
    Keeps: names of inputs and outputs; numerics bit-exact. `inline-functions` is the way back.
    Skips: a partition whose nodes are no longer one convex set, as edits between the two passes may leave it; a model before
    IR version 8, which has no local functions.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Outline in the order of partitions."""
        members: dict[int, list[ir.Node]] = {}
        for node in model.graph:
            placement = TARGET.get(node)
            if placement is not None and placement.partition is not None:
                members.setdefault(placement.partition, []).append(node)
        for number, nodes in sorted(members.items()):
            name = f"partition_{number}"
            refusal = _refusal(model, nodes)
            if refusal is not None:
                yield skip(name, refusal)
                continue
            call = outline(model, nodes, domain=DOMAIN, name=name)
            placement = TARGET.get(nodes[-1])
            assert placement is not None
            TARGET.set(
                call, Placement(device=placement.device, verdict=_worst(nodes), rule="partition", partition=number)
            )
            yield Change("replace", name, f"{len(nodes)} nodes are one call")


def _refusal(model: ir.Model, nodes: Sequence[ir.Node]) -> str | None:
    if (model.ir_version or 0) < 8:
        return f"local functions need IR version 8, the model has {model.ir_version}"
    if len(nodes) == 1 and nodes[0].domain == DOMAIN:
        return "is one call already"
    inside, edges = set(nodes), reach(model.graph)
    if (edges.after(inside) - inside) & (edges.before(inside) - inside):
        return "a path leaves it and comes back"
    return None


def _worst(nodes: Sequence[ir.Node]) -> str:
    verdicts = {placement.verdict for node in nodes if (placement := TARGET.get(node)) is not None}
    return "npu-float" if "npu-float" in verdicts else "npu-int"


#: Constants of so many bytes at most stand in the function; larger ones stay initializers and are inputs of the call.
INSIDE_BYTES = 1024


def outline(model: ir.Model, nodes: Sequence[ir.Node], *, domain: str, name: str) -> ir.Node:
    """Make a function ``domain::name`` of ``nodes`` and call it once.

    Args:
        model: edited in place; its main graph is sorted afterwards, as far as it was not.
        nodes: nodes of the main graph, a convex set in topological order, none with a body.
        domain: of the function; imported as version 1.
        name: of the function, which must be new; the call has it too, or a name like it.

    Returns:
        The call. Its outputs have the names of the values they take the place of.
    """
    graph, inside, namer = model.graph, set(nodes), Namer(model)
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in values_read(node) if value not in made)
    held = {value: _constant(value, inside, namer) for value in read if _is_small(value)}
    given = [value for value in read if value not in held]
    left = [value for node in nodes for value in node.outputs if _leaves(value, inside)]
    inputs = {value: _like(value) for value in given}
    call = ir.Node(domain, name, given, outputs=[_like(value) for value in left], name=namer.fresh(name))
    inherit(call, nodes)
    graph.insert_after(nodes[-1], call)
    for old, new in zip(left, call.outputs, strict=True):
        move_annotations(old, new)
        for reader, index in readers(old):
            if reader not in inside:
                reader.replace_input_with(index, new)
        for index, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[index] = new
    graph.remove(nodes)
    replaced = {**inputs, **{value: node.outputs[0] for value, node in held.items()}}
    for node in nodes:
        for index, operand in enumerate(node.inputs):
            if operand in replaced:
                node.replace_input_with(index, replaced[operand])
    body = ir.Graph(
        list(inputs.values()),
        left,
        nodes=[*held.values(), *nodes],
        opset_imports={key: version for key, version in model.opset_imports.items() if key != domain},
        name=name,
    )
    function = ir.Function(domain, name, graph=body, attributes=[])
    model.functions[function.identifier()] = function
    model.opset_imports[domain] = 1
    drop_unread(held)
    graph.sort()
    return call


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(reader not in inside for reader, _ in readers(value))


def _like(value: ir.Value) -> ir.Value:
    shape = value.shape.copy() if value.shape is not None else None
    return ir.Value(name=value.name, type=value.type, shape=shape)


def _is_small(value: ir.Value) -> bool:
    if value.is_graph_input():
        return False
    if value.const_value is not None:
        return value.const_value.nbytes <= INSIDE_BYTES
    array = constant_array(value)
    return array is not None and array.dtype.kind != "O" and array.nbytes <= INSIDE_BYTES


def _constant(value: ir.Value, inside: set[ir.Node], namer: Namer) -> ir.Node:
    """A Constant node of the data and the name of ``value``, in the scope of its readers ``inside``."""
    if value.const_value is not None:
        tensor = value.const_value
    else:
        array = constant_array(value)
        assert array is not None
        tensor = ir.tensor(array, name=value.name)
    name = namer.fresh(f"{value.name}_Constant")
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[_like(value)], name=name)
    return inherit(node, [reader for reader, _ in readers(value) if reader in inside])
