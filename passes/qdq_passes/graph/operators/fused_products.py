"""Matrix products inside operators that hold several.

attention      queries [S, D] × keys [D, T], weights [S, T] × values [T, E], once per row and head     B·H·S·(D + E)·T
Einsum         of two operands; labels of both and of the result: batch; of both alone: depth; of one: rows, columns
GRU, LSTM, RNN    inputs [B, I] × [I, G·H] and states [B, H] × [H, G·H], once per step and direction     T·D·B·(I + H)·G·H
DFT, STFT      rows [N·c] × [N·c, K·2] by definition, of c = 1 or 2 numbers an element; transforms that are fast do less
AffineGrid     homogeneous places [H·W, 3] × [3, 2], once per image"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import constant_array, input_at, integer_of, is_standard, text_of

#: Sizes of a value; None where they are not known.
Sizes = Callable[[ir.Value | None], Sequence[int] | None]

_CONTRIB = "com.microsoft"
#: First opset whose DFT takes its axis as an input, counted from the end where it is left out.
OPSET_OF_DFT_AXIS = 20
#: Labels that stand for the axes of an ellipsis; equations have letters.
_ELLIPSIS = "0123456789"


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


def is_attention(node: ir.Node) -> bool:
    """Whether ``node`` is a whole attention without the projections before it."""
    return is_standard(node, "Attention") or (
        node.domain == _CONTRIB and node.op_type in ("GroupQueryAttention", "MultiHeadAttention")
    )


def fused_product(node: ir.Node, sizes: Sizes) -> Products | None:
    """The products of ``node`` as one; None where it has none, or a shape is not known."""
    if is_attention(node):
        return _attention(node, sizes)
    count = _COUNTED.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return None if count is None else count(node, sizes)


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
    left, _, result = equation.partition("->")
    terms, shapes = left.split(","), [_input(node, index, sizes) for index in range(2)]
    if len(node.inputs) != 2 or len(terms) != 2 or None in shapes:
        return None
    hidden = [len(s or ()) - len(t.replace("...", "")) for t, s in zip(terms, shapes, strict=True)]
    terms = [t.replace("...", _ELLIPSIS[max(hidden) - n : max(hidden)]) for t, n in zip(terms, hidden, strict=True)]
    left, result = ",".join(terms), result.replace("...", _ELLIPSIS[: max(hidden)])
    if any(len(s or ()) != len(t) for t, s in zip(terms, shapes, strict=True)):
        return None
    if "->" not in equation:
        result = "".join(label for label in set(left) - {","} if left.count(label) == 1 or label in _ELLIPSIS)
    size: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, length in zip(term, shape or (), strict=True):
            size[label] = max(size.get(label, 1), length)
    a, b, written = set(terms[0]), set(terms[1]), set(result)
    batch, depth, rows, columns = a & b & written, (a & b) - written, a - b, b - a
    counts = [math.prod(size[label] for label in labels) for labels in (batch, rows, depth, columns)]
    return Products(count=counts[0], rows=counts[1], depth=counts[2], columns=counts[3])


def _recurrent(node: ir.Node, sizes: Sizes) -> Products | None:
    x, w, r = (_input(node, index, sizes) for index in range(3))
    if x is None or w is None or r is None or (len(x), len(w), len(r)) != (3, 3, 3):
        return None
    steps, batch = (x[1], x[0]) if integer_of(node, "layout", 0) else (x[0], x[1])
    return Products(count=steps * w[0], rows=batch, depth=w[2] + r[2], columns=w[1])


def _number(node: ir.Node, index: int) -> int | None:
    """Input ``index`` of ``node`` as one known number."""
    found = constant_array(input_at(node, index))
    return int(found.ravel()[0]) if found is not None and found.size == 1 else None


def _dft(node: ir.Node, sizes: Sizes) -> Products | None:
    x, y = _input(node, 0, sizes), sizes(node.outputs[0])
    opset = node.graph.opset_imports.get("", OPSET_OF_DFT_AXIS) if node.graph is not None else OPSET_OF_DFT_AXIS
    axis: int | None = integer_of(node, "axis", -2 if opset >= OPSET_OF_DFT_AXIS else 1)
    axis = axis if input_at(node, 2) is None else _number(node, 2)
    if x is None or y is None or axis is None or len(x) != len(y) or not -len(y) <= axis < len(y):
        return None
    others = math.prod(y) // max(y[axis] * y[-1], 1)
    return Products(count=1, rows=others, depth=x[axis] * x[-1], columns=y[axis] * y[-1])


def _stft(node: ir.Node, sizes: Sizes) -> Products | None:
    x, y, window = _input(node, 0, sizes), sizes(node.outputs[0]), _input(node, 2, sizes)
    size = window[0] if window else _number(node, 3)
    if x is None or y is None or len(y) != 4 or size is None:
        return None
    return Products(count=1, rows=y[0] * y[1], depth=size * (x[2] if len(x) == 3 else 1), columns=y[2] * y[3])


def _affine_grid(node: ir.Node, sizes: Sizes) -> Products | None:
    y = sizes(node.outputs[0])
    return (
        None if y is None or len(y) < 4 else Products(count=1, rows=math.prod(y[:-1]), depth=y[-1] + 1, columns=y[-1])
    )


_COUNTED: dict[str, Callable[[ir.Node, Sizes], Products | None]] = {
    "AffineGrid": _affine_grid, "DFT": _dft, "Einsum": _einsum, "GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent,
    "STFT": _stft,
}  # fmt: skip
#: Kinds of operators whose products are known.
FUSED = frozenset({*_COUNTED, "Attention", "GroupQueryAttention", "MultiHeadAttention"})
