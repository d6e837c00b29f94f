"""Where a value of a decoder goes: along nodes that only pass it on, to the products of its attentions, to what rotates it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.kinds import ATTENTIONS, is_passed, kind_of
from qdq_passes.graph.uses import bodies_of, integers_of, is_standard, readers, values_read

#: Multiply two activations, or an activation and a weight.
PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum", "Conv"})
#: Tell of a tensor nothing but its shape.
SHAPE_READERS = frozenset({"Shape", "Size"})


@dataclass(frozen=True)
class Passed:
    """A value that holds the elements of another one.

    Args:
        value: the value.
        axes: axis of ``value`` → axis of the other one.
    """

    value: ir.Value
    axes: tuple[int, ...]


def passed_on(value: ir.Value, rank: int) -> list[Passed]:
    """``value`` [of ``rank`` dimensions] and everything that is its elements again: casts, pairs, transposes, joins of one."""
    found = {value: Passed(value, tuple(range(rank)))}
    stack = [value]
    while stack:
        at = found[stack.pop()]
        for node, index in readers(at.value):
            if index != 0 or not node.outputs or node.outputs[0] in found:
                continue
            axes: tuple[int, ...] | None = None
            if is_standard(node, "Transpose"):
                order = integers_of(node, "perm") or list(range(rank))[::-1]
                axes = tuple(at.axes[a] for a in order) if len(order) == rank else None
            elif is_passed(node):
                axes = at.axes
            if axes is not None:
                found[node.outputs[0]] = Passed(node.outputs[0], axes)
                stack.append(node.outputs[0])
    return list(found.values())


def is_product(node: ir.Node) -> bool:
    """Whether ``node`` multiplies matrices, whatever its domain and precision."""
    return kind_of(node) in PRODUCTS


def is_attention(node: ir.Node) -> bool:
    """Whether ``node`` is a whole attention."""
    return kind_of(node) in ATTENTIONS


@dataclass(frozen=True)
class Flow:
    """Who reads what in the main graph; what a body reads counts as read by the node of the main graph that holds it."""

    holders: dict[ir.Graph, ir.Node]

    @classmethod
    def of(cls, nodes: Iterable[ir.Node]) -> Flow:
        """The flow among ``nodes`` of a main graph."""
        return cls({body: node for node in nodes for body in _bodies_within(node)})

    def readers(self, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """(node, input index) of every reader of ``value``; index -1 where a body reads it."""
        found: list[tuple[ir.Node, int]] = []
        for node, index in readers(value):
            holder = self.holders.get(node.graph) if isinstance(node.graph, ir.Graph) else None
            found.append((node, index) if holder is None else (holder, -1))
        return list(dict.fromkeys(found))

    def forward(
        self, values: Iterable[ir.Value], stops: Callable[[ir.Node, int], bool]
    ) -> Iterator[tuple[ir.Node, int]]:
        """(node, input index) of all that ``values`` reach; where ``stops`` says so, not what lies behind."""
        seen: set[ir.Value] = set()
        stack = list(values)
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            for node, index in self.readers(value):
                yield node, index
                if not stops(node, index):
                    stack += [output for output in node.outputs if output not in seen]


def _bodies_within(node: ir.Node) -> Iterator[ir.Graph]:
    for body in bodies_of(node):
        yield body
        for inner in body:
            yield from _bodies_within(inner)


def depending_on(nodes: Iterable[ir.Node], values: Iterable[ir.Value], *, by_shape: bool = False) -> set[ir.Value]:
    """What ``nodes``, producers first, compute from ``values``, these included; of their shapes only where ``by_shape``."""
    found = set(values)
    for node in nodes:
        if not by_shape and kind_of(node) in SHAPE_READERS:
            continue
        if any(value in found for value in values_read(node)):
            found.update(node.outputs)
    return found


def softmax_sides(nodes: Iterable[ir.Node], flow: Flow) -> tuple[set[ir.Node], set[ir.Node]]:
    """The products that make scores, and the products with the values: before and behind each Softmax."""
    scores: set[ir.Node] = set()
    sums: set[ir.Node] = set()
    for node in nodes:
        if kind_of(node) != "Softmax":
            continue
        stack = [v for v in node.inputs[:1] if v is not None]
        seen: set[ir.Value] = set(stack)
        while stack:
            producer = stack.pop().producer()
            if producer is None:
                continue
            if is_product(producer):
                scores.add(producer)
                continue
            if kind_of(producer) in SHAPE_READERS:
                continue
            new = [v for v in producer.inputs if v is not None and v not in seen]
            seen.update(new)
            stack += new
        ends = flow.forward(node.outputs, lambda n, _: is_product(n) or kind_of(n) in SHAPE_READERS)
        sums.update(n for n, _ in ends if is_product(n))
    return scores - sums, sums
