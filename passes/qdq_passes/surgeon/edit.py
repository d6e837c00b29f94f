"""The part of graphsurgeon's graph that surgeon passes of this package use, typed, and safe surgery on it.

`FoldsShapes` keeps constant folding from a silent error: graphsurgeon 0.6.1 gives ``Shape<start, end>`` the whole shape."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, MutableSequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class SurgeonTensor(Protocol):
    """``gs.Variable`` or ``gs.Constant``: ``inputs`` are the nodes that produce it, ``outputs`` those that read it."""

    name: str
    dtype: Any
    shape: Any

    @property
    def inputs(self) -> MutableSequence[SurgeonNode]: ...
    @property
    def outputs(self) -> MutableSequence[SurgeonNode]: ...


class SurgeonNode(Protocol):
    """``gs.Node``. Its input and output lists keep those of the tensors in step."""

    name: str
    op: str
    domain: str | None
    attrs: dict[str, Any]

    @property
    def inputs(self) -> MutableSequence[SurgeonTensor]: ...
    @property
    def outputs(self) -> MutableSequence[SurgeonTensor]: ...


class SurgeonGraph(Protocol):
    """``gs.Graph`` or ``gs.Function``."""

    nodes: list[SurgeonNode]
    inputs: list[SurgeonTensor]
    outputs: list[SurgeonTensor]
    opset: int

    @property
    def functions(self) -> Iterable[SurgeonGraph]: ...
    def subgraphs(self, recursive: bool = ...) -> Iterable[SurgeonGraph]: ...


def all_graphs(graph: SurgeonGraph) -> Iterator[SurgeonGraph]:
    """``graph``, its local functions, and the bodies of control-flow nodes in all of them."""
    for outer in (graph, *graph.functions):
        yield outer
        yield from outer.subgraphs(recursive=True)


def is_op(node: SurgeonNode, op: str) -> bool:
    """Whether ``node`` is ``op`` of the default ONNX domain."""
    return node.op == op and node.domain in (None, "", "ai.onnx")


def is_output(graph: SurgeonGraph, tensor: SurgeonTensor) -> bool:
    """Whether ``tensor`` is an output of ``graph``."""
    return any(output is tensor for output in graph.outputs)


def constant_values(tensor: SurgeonTensor) -> npt.NDArray[np.generic] | None:
    """The array of a ``gs.Constant`` or of a Constant node's output; None when ``tensor`` is not constant."""
    producers = [node for node in tensor.inputs if is_op(node, "Constant")]
    holder = producers[0].attrs.get("value") if producers else tensor
    values: npt.NDArray[np.generic] | None = getattr(holder, "values", None)
    return values


def bypass(
    graph: SurgeonGraph, node: SurgeonNode, source: SurgeonTensor, own: Container[int] | None = None
) -> str | None:
    """Let every reader of the first output of ``node`` read ``source``, and detach the node.

    A graph output keeps its name: the node that produces ``source`` produces it instead.

    Args:
        graph: the graph that holds ``node``.
        node: the node to detach.
        source: what its readers read then.
        own: ids of the nodes of ``graph``: if one of them computes ``source``, it produces the output of ``node`` instead in any
            case. An output of the graph and a constant keep their names.

    Returns:
        None, or why it cannot be done: nothing was changed then.
    """
    target = node.outputs[0]
    was_output, producer = is_output(graph, target), None
    if was_output or (own is not None and not is_output(graph, source)):
        if is_output(graph, source):
            return "it joins two graph outputs"
        known = own if own is not None else {id(other) for other in graph.nodes}
        producer = next((p for p in source.inputs if id(p) in known), None)
        if producer is None and was_output:
            return "it joins a graph input, an initializer or an outer value to a graph output"
        if producer is not None and is_op(producer, "Constant") and not was_output:
            producer = None
    node.inputs.clear()
    node.outputs.clear()
    if producer is None:
        _move_readers(target, source)
    else:
        producer.outputs[next(i for i, output in enumerate(producer.outputs) if output is source)] = target
        _move_readers(source, target)
    return None


def remove(graph: SurgeonGraph, nodes: Iterable[SurgeonNode]) -> None:
    """Take detached nodes out of ``graph``, by identity (graphsurgeon compares nodes by name)."""
    gone = {id(node) for node in nodes}
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]


def _move_readers(old: SurgeonTensor, new: SurgeonTensor) -> None:
    for reader in list(old.outputs):
        for index, tensor in enumerate(reader.inputs):
            if tensor is old:
                reader.inputs[index] = new


#: What such nodes are called while the graph is folded, so that graphsurgeon does not take them for a plain Shape.
_HIDDEN = "Shape<start, end>"


class FoldsShapes:
    """Goes before ``gs.Graph`` or ``gs.Function`` among the bases."""

    nodes: list[Any]

    def fold_constants(
        self, *args: Any, should_exclude_node: Callable[[Any], bool] | None = None, **kwargs: Any
    ) -> FoldsShapes:
        """As in graphsurgeon, but Shape nodes with ``start`` or ``end`` are left alone, and what depends on them."""
        hidden = [node for node in self.nodes if node.op == "Shape" and {"start", "end"} & node.attrs.keys()]
        for node in hidden:
            node.op = _HIDDEN

        def exclude(node: Any) -> bool:
            return node.op == _HIDDEN or bool(should_exclude_node and should_exclude_node(node))

        try:
            super().fold_constants(*args, should_exclude_node=exclude, **kwargs)  # type: ignore[misc]
        finally:
            for node in hidden:
                node.op = "Shape"
        return self
