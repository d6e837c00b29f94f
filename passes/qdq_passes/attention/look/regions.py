"""Attentions written in standard operators: two products of activations, and the Softmax between them.

Which head of the cache a head reads, where keys and values of few heads are repeated for many queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.kinds import ATTENTIONS, ELEMENTWISE, kind_of
from qdq_passes.graph.operators.moved_axes import Moved, indices_along, is_whole, sources_of
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import all_nodes, in_order, integer_of, is_constant, is_standard, label, readers

#: Sizes of a value, None unless all are known.
Sizes = Callable[[ir.Value], list[int] | None]

#: Elementwise besides the arithmetic.
_ALIKE = (
    "And",
    "Cast",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Identity",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Not",
    "Or",
)
NOT_STANDARD = (
    "is one operator; run decompose-attention, decompose-group-query-attention or decompose-multi-head-attention first"
)


@dataclass(frozen=True, kw_only=True)
class AttentionRegion:
    """One attention: ``scores = query·keys``, operators element by element and Softmax along the keys, ``sums = shares·values``.

    Args:
        scores: MatMul of the query [.., S, D] and the keys [.., D, C].
        between: the nodes between both products, producers first.
        sums: MatMul of the shares [.., S, C] and the values [.., C, D].
        sizes: sizes of the scores, [.., S, C].
    """

    scores: ir.Node
    between: tuple[ir.Node, ...]
    sums: ir.Node
    sizes: tuple[int, ...]

    @property
    def queries(self) -> int:
        """S."""
        return self.sizes[-2]

    def operands(self) -> list[tuple[ir.Node, int, ir.Value]]:
        """(node, input index, value) of what comes from outside into the nodes between: masks, scales, constants."""
        inside = {self.scores.outputs[0], *(value for node in self.between for value in node.outputs)}
        return [(n, i, v) for n in self.between for i, v in enumerate(n.inputs) if v is not None and v not in inside]


def attention_regions(
    model: ir.Model, sizes_of: Sizes, within: set[ir.Node]
) -> Iterator[AttentionRegion | tuple[ir.Node, str]]:
    """Every attention whose Softmax is in ``within``; (Softmax or attention, why not) where it cannot be taken apart."""
    for node in all_nodes(model):
        if node not in within:
            continue
        if kind_of(node) in ATTENTIONS:
            yield node, NOT_STANDARD
        elif is_standard(node, "Softmax"):
            found = _region(node, sizes_of)
            yield (node, found) if isinstance(found, str) else found


def _region(softmax: ir.Node, sizes_of: Sizes) -> AttentionRegion | str:
    source = softmax.inputs[0]
    sizes = sizes_of(source) if source is not None else None
    if source is None or sizes is None:
        return "the sizes of its scores are not known; run bind-decoder or infer-shapes first"
    if len(sizes) < 3 or integer_of(softmax, "axis", -1) not in (-1, len(sizes) - 1):
        return "is no Softmax along the keys of scores [.., queries, keys]"
    above, products = _upwards(source, sizes, sizes_of)
    if len(products) != 1:
        return f"{len(products)} products of activations make its scores, an attention has one"
    (scores,) = products
    behind = _downwards(scores, {*above, softmax})
    inside = {scores, *behind}
    ends = {node for each in inside for value in each.outputs for node, _ in readers(value)} - inside
    for node in inside:
        for value in node.outputs:
            if value.is_graph_output():
                return f"{value.name} is an output of the graph"
    strangers = sorted(label(n) for n in ends if not is_standard(n, "MatMul"))
    if strangers or len(ends) != 1:
        return (
            f"its scores are read by {', '.join(strangers) or len(ends)} as well"
            if ends
            else "nothing reads its shares"
        )
    (sums,) = ends
    if (
        sums.inputs[0] is None
        or sums.inputs[0].producer() not in behind
        or sums.inputs[1] in {v for n in inside for v in n.outputs}
    ):
        return f"{sums.name} is no product of shares and values"
    if any(node.graph is not softmax.graph for node in (scores, sums, *behind)):
        return "stands in several graphs"
    order = [node for node in in_order(_graph(softmax)) if node in behind]
    region = AttentionRegion(scores=scores, between=tuple(order), sums=sums, sizes=tuple(sizes))
    return _odd(region, sizes_of) or region


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def _upwards(source: ir.Value, sizes: list[int], sizes_of: Sizes) -> tuple[set[ir.Node], set[ir.Node]]:
    """Nodes element by element before ``source``, and the products of activations before those."""
    found: set[ir.Node] = set()
    products: set[ir.Node] = set()
    stack: list[ir.Value] = [source]
    while stack:
        value = stack.pop()
        node = value.producer()
        if node is None or node in found or sizes_of(value) != sizes:
            continue
        if is_standard(node, "MatMul") and not any(is_constant(v) for v in node.inputs):
            products.add(node)
        elif is_alike(node):
            found.add(node)
            stack += [v for v in node.inputs if v is not None]
    return found, products


def _downwards(scores: ir.Node, known: Iterable[ir.Node]) -> set[ir.Node]:
    """From ``scores`` on: those of ``known`` and what is element by element behind them, up to the next product."""
    allowed, found, stack = set(known), set[ir.Node](), [scores]
    while stack:
        for value in stack.pop().outputs:
            for node, _ in readers(value):
                if node not in found and (node in allowed or is_alike(node)):
                    found.add(node)
                    stack.append(node)
    return found


def is_alike(node: ir.Node) -> bool:
    """Whether each element of what ``node`` writes comes of one element of each operand, at the same place."""
    kind = kind_of(node)
    is_pair = is_qdq(node) and "block_size" not in node.attributes
    known = (kind in ELEMENTWISE and node.domain in ("", "ai.onnx")) or is_standard(node, *_ALIKE)
    return is_pair or (known and len(node.outputs) == 1 and kind != "PRelu")


def _odd(region: AttentionRegion, sizes_of: Sizes) -> str:
    """Why an operand of ``region`` has not the sizes of its scores, or ones that are spread over them; empty when all have."""
    for node, index, value in region.operands():
        sizes = sizes_of(value)
        if sizes is None:
            return f"the sizes of {value.name}, which {node.name} reads, are not known"
        if is_qdq(node) and index and max(sizes, default=1) > 1:
            return f"{node.name} has scales along an axis"
        wanted = region.sizes[len(region.sizes) - len(sizes) :]
        if len(sizes) > len(region.sizes) or any(
            have not in (1, need) for have, need in zip(sizes, wanted, strict=True)
        ):
            return f"{value.name} {sizes} does not spread over the scores {list(region.sizes)}"
    return ""


@dataclass(frozen=True)
class KeyHeads:
    """An operand of an attention as heads of a value before it.

    Args:
        source: [B, G, C, D], or [B, G, D, C].
        heads: of each head of the attention, the head of ``source``.
        is_turned: whether the last two axes of ``source`` change places.
        scales: each element is multiplied so: Mul and Div by one number, in their order.
    """

    source: ir.Value
    heads: tuple[int, ...]
    is_turned: bool
    scales: tuple[ir.Node, ...]


def key_heads(value: ir.Value, heads: int, sizes_of: Callable[[ir.Value], list[int] | None]) -> KeyHeads:
    """The earliest value of four dimensions that has the ``heads`` of ``value`` [B, H, .., ..], each once or for a group."""
    best = KeyHeads(value, tuple(range(heads)), False, ())
    count = heads
    for moved in sources_of(value, sizes_of):
        sizes = sizes_of(moved.source) or []
        if len(sizes) == 4 and len(moved.axes) == 4 and sizes[1] <= count:
            found = _read(moved, sizes)
            if found is not None and len(found.heads) == heads:
                best, count = found, sizes[1]
    return best


def _read(moved: Moved, sizes: list[int]) -> KeyHeads | None:
    batch, head, *last = moved.axes
    indices = indices_along(head, 1)
    if indices is None or not is_whole(batch, 0, sizes[0]):
        return None
    for order in ((2, 3), (3, 2)):
        if all(is_whole(factors, axis, sizes[axis]) for factors, axis in zip(last, order, strict=True)):
            return KeyHeads(moved.source, tuple(indices), order == (3, 2), moved.scales)
    return None
