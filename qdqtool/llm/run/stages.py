"""Cuts a graph into stages: pieces that one engine runs, in an order in which they can run one after the other.

    ids → a (CPU) → [npu_0] → b, c (CPU) → [npu_1] → d (CPU) → logits         stages: cpu_0  npu_0  cpu_1  npu_1  cpu_2

A node that an NPU runs (an EPContext node, a whole program) is a stage. What the CPU runs is put together by level: level k is
what reads of the (k-1)-th program, and of none behind it. A program that needs nothing of a CPU stage before it does not wait for
it: stages depend on each other by the values they read. Nodes that read constants alone are in every stage that reads of them.
Inputs of the graph that nothing reads are inputs of the first stage, so that the stages together have all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import Decoder
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import in_order, is_constant


@dataclass(frozen=True, eq=False, kw_only=True)
class StageGraph:
    """One stage.

    Args:
        name: ``cpu_3``, or the name of its node.
        node: the node that an NPU runs; None of a stage of the CPU.
        nodes: names of its nodes, those on constants left out.
        model: its graph, which shares tensors with the whole; inputs and outputs have the names that the values have there.
    """

    name: str
    node: ir.Node | None
    nodes: frozenset[str]
    model: ir.Model


def cut_stages(model: ir.Model, is_program: Callable[[ir.Node], bool], prefix: str = "") -> list[StageGraph]:
    """The stages of ``model``, whose nodes are in order and have names.

    Args:
        model: a graph with static shapes; it is not changed but for names: see ``prefix``.
        is_program: whether an NPU runs a node.
        prefix: put before the names of values between stages, so that those of several graphs of one model differ.

    Raises:
        UnsupportedError: a value between stages has no type or no static shape.
    """
    places = _places(model, is_program)
    last = max(places.values(), default=0)
    members: list[list[ir.Node]] = [[] for _ in range(last + 1)]
    for node in in_order(model.graph):
        if node in places:
            members[places[node]].append(node)
    ends = set(model.graph.outputs)
    crossing = [
        value
        for nodes in members
        for node in nodes
        for value in node.outputs
        if value not in ends and any(places.get(use.node, places[node]) != places[node] for use in value.uses())
    ]
    for value in crossing:
        if prefix:
            value.name = f"{prefix}{value.name}"
        if value.dtype is None or value.shape is None or not value.shape.is_static():
            raise UnsupportedError(f"the shape of {value.name!r} is not static", hint="split the model again")
    written = {*crossing, *ends}
    unread = [v for v in model.graph.inputs if not (v.uses() or v.is_graph_output() or v.is_initializer())]
    found: list[StageGraph] = []
    for place, nodes in enumerate(members):
        if nodes:
            found.append(_stage(model, place, nodes, written, is_program, () if found else unread))
    return found


def _places(model: ir.Model, is_program: Callable[[ir.Node], bool]) -> dict[ir.Node, int]:
    """Node → number of its stage, 2·level, and 2·k + 1 for the k-th program; nodes on constants alone have none."""
    places: dict[ir.Node, int] = {}
    programs = 0
    for node in in_order(model.graph):
        before = [places[p] for v in node.inputs if v is not None and (p := v.producer()) is not None and p in places]
        if is_program(node):
            places[node] = 2 * programs + 1
            programs += 1
        elif before:
            places[node] = max(before) + max(before) % 2
        elif not all(v is None or _is_fixed(v, places) for v in node.inputs) or _is_end(node):
            places[node] = 0
    return places


def _is_fixed(value: ir.Value, places: dict[ir.Node, int]) -> bool:
    producer = value.producer()
    return is_constant(value) or (producer is not None and producer not in places)


def _is_end(node: ir.Node) -> bool:
    return any(value.is_graph_output() for value in node.outputs)


def _stage(
    model: ir.Model,
    place: int,
    nodes: Sequence[ir.Node],
    written: set[ir.Value],
    is_program: Callable[[ir.Node], bool],
    unread: Iterable[ir.Value],
) -> StageGraph:
    inside = set(nodes)
    outputs = [value for node in nodes for value in node.outputs if value in written]
    inputs = dict.fromkeys(
        value
        for node in nodes
        for value in node.inputs
        if value is not None
        and value.producer() not in inside
        and (value in written or (value.is_graph_input() and not value.is_initializer()))
    )
    graph = ir.convenience.extract(model.graph, list(inputs), outputs)
    program = next((node for node in nodes if is_program(node)), None)
    name = f"cpu_{place // 2}" if program is None else program.name or f"npu_{place // 2}"
    graph.name = name
    graph.inputs.extend(ir.Value(name=v.name, type=v.type, shape=v.shape) for v in unread)
    graph.opset_imports.update({k: v for k, v in model.graph.opset_imports.items() if k not in graph.opset_imports})
    return StageGraph(
        name=name,
        node=program,
        nodes=frozenset(node.name or "" for node in nodes),
        model=ir.Model(graph, ir_version=model.ir_version, producer_name=model.producer_name),
    )


def touched(decoder: Decoder, names: Sequence[str]) -> frozenset[tuple[int, str]]:
    """The tensors of the cache of which ``names`` hold the past or the present."""
    known = set(names)
    return frozenset((t.layer, t.part) for t in decoder.cache if t.past in known or t.present in known)
