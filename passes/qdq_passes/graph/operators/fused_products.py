"""Matrix products inside operators that hold several: attentions, and Einsum of two operands.

attention    queries [S, D] × keys [D, T], weights [S, T] × values [T, E], once per row and head     B·H·S·(D + E)·T
Einsum       labels of both and of the result: batch; of both alone: depth; of one: rows, columns"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import integer_of, is_standard, text_of

#: Sizes of a value; None where they are not known.
Sizes = Callable[[ir.Value | None], Sequence[int] | None]

_CONTRIB = "com.microsoft"


@dataclass(frozen=True, kw_only=True)
class Products:
    """``count`` equal products of [rows, depth] × [depth, columns].

    Both products of an attention are one of depth D + E: as many multiply-accumulates.
    """

    count: int
    rows: int
    depth: int
    columns: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.count * self.rows * self.depth * self.columns

    def tiles(self, tile: tuple[int, int, int]) -> int:
        """Tiles of [rows, depth, columns] that cover them, each product by itself."""
        rows, depth, columns = tile
        return self.count * -(-self.rows // rows) * -(-self.depth // depth) * -(-self.columns // columns)


def is_fused(node: ir.Node) -> bool:
    """Whether ``node`` is an operator of which `fused_product` knows the products."""
    return is_attention(node) or is_standard(node, "Einsum")


def is_attention(node: ir.Node) -> bool:
    """Whether ``node`` is a whole attention without the projections before it."""
    return is_standard(node, "Attention") or (
        node.domain == _CONTRIB and node.op_type in ("GroupQueryAttention", "MultiHeadAttention")
    )


def fused_product(node: ir.Node, sizes: Sizes) -> Products | None:
    """The products of ``node`` as one; None where it has none, or a shape is not known."""
    if is_standard(node, "Einsum"):
        return _einsum(node, sizes)
    return _attention(node, sizes) if is_attention(node) else None


def _input(node: ir.Node, index: int, sizes: Sizes) -> Sequence[int] | None:
    return sizes(node.inputs[index]) if index < len(node.inputs) and node.inputs[index] is not None else None


def _attention(node: ir.Node, sizes: Sizes) -> Products | None:
    query, key, value = (_input(node, index, sizes) for index in range(3))
    contrib = node.domain == _CONTRIB
    heads = integer_of(node, "num_heads" if contrib else "q_num_heads", 0)
    key_heads = integer_of(node, "kv_num_heads", 0) or heads
    if query is None or len(query) not in (3, 4) or (len(query) == 3 and not heads):
        return None
    batch, queries = query[0], query[-2]
    if len(query) == 4:
        heads = query[1]
    if key is None or value is None:  # queries, keys and values side by side
        if not contrib or node.op_type != "GroupQueryAttention" or len(query) != 3:
            return None
        depth = wide = query[-1] // (heads + 2 * key_heads)
        keys = queries
    else:
        depth = query[-1] if len(query) == 4 else query[-1] // heads
        wide = value[-1] if len(value) == 4 else value[-1] // max(key_heads, 1)
        keys = key[-2]
    past = {"Attention": 4, "GroupQueryAttention": 3, "MultiHeadAttention": 6}[node.op_type]
    before, present = _input(node, past, sizes), sizes(node.outputs[1]) if len(node.outputs) > 1 else None
    if present is not None and len(present) == 4:
        keys = present[2]
    elif before is not None and len(before) == 4:
        keys += before[2]
    return Products(count=batch * heads, rows=queries, depth=depth + wide, columns=keys)


def _einsum(node: ir.Node, sizes: Sizes) -> Products | None:
    equation = text_of(node, "equation", "").replace(" ", "")
    if len(node.inputs) != 2 or "." in equation:
        return None
    left, _, result = equation.partition("->")
    terms, shapes = left.split(","), [_input(node, index, sizes) for index in range(2)]
    if len(terms) != 2 or any(s is None or len(s) != len(t) for t, s in zip(terms, shapes, strict=True)):
        return None
    if "->" not in equation:
        result = "".join(label for label in set(left) - {","} if left.count(label) == 1)
    size: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, length in zip(term, shape or (), strict=True):
            size[label] = max(size.get(label, 1), length)
    a, b, written = set(terms[0]), set(terms[1]), set(result)
    batch, depth, rows, columns = a & b & written, (a & b) - written, a - b, b - a
    counts = [math.prod(size[label] for label in labels) for labels in (batch, rows, depth, columns)]
    return Products(count=counts[0], rows=counts[1], depth=counts[2], columns=counts[3])
