"""What stands around an operator, where a compiler takes several for one; pairs between them do not count.

x → Div → Erf → Add → Mul (→ Mul)        one Gelu
Reshape → Transpose → Reshape            of six dimensions, one of which stays 1 in its place: five dimensions
MatMul → Mul, Add → Softmax → MatMul     an attention, of so many heads and queries
"""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes.fuse.edit.fusion import SINCE
from qdq_passes.graph.operators.linears import Linear, linear_of
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_qdq, is_quantize
from qdq_passes.graph.uses import is_constant, is_standard, readers

#: Nodes of a group, at most.
GROUP = 16
#: Operators and what their pieces hold, one of each tuple; the first that fits.
_PIECES: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("LayerNormalization", (("ReduceMean",), ("Sqrt", "Pow"), ("Sub",))),
    ("RMSNormalization", (("ReduceMean",), ("Sqrt", "Pow"), ("Mul", "Div"))),
    ("Gelu", (("Erf", "Tanh"), ("Mul",), ("Add",))),
    ("Swish", (("Sigmoid",), ("Mul",))),
)


def is_in_gelu(erf: ir.Node) -> bool:
    """Whether ``erf`` is the Erf of x/c → Erf → + → · by x (or by a multiple of x) (→ ·), without readers in between."""
    division = _behind_pairs(erf.inputs[0])
    if division is None or not is_standard(division, "Div"):
        return False
    addition = _only_reader(erf)
    product = _only_reader(addition) if addition is not None and is_standard(addition, "Add") else None
    if product is None or not is_standard(product, "Mul"):
        return False
    x = _stored(division.inputs[0])
    if any(_is_multiple(value, x) for value in product.inputs):
        return True
    last = _only_reader(product)
    return any(_stored(v) is x for v in product.inputs) and last is not None and is_standard(last, "Mul")


def operator_of_pieces(node: ir.Node) -> str | None:
    """The operator that ``node`` computes with the few float operators around it, between pairs: what `qdqtool quantize` leaves
    in one group where the opset is too low for the operator; None where they are none, or the opset has it."""
    found, waiting, between_pairs = {node}, [node], False
    while waiting:
        current = waiting.pop()
        flowing = [value.producer() for value in current.inputs if value is not None and not is_constant(value)]
        for other in (*flowing, *(reader for value in current.outputs for reader, _ in readers(value))):
            if other is None or other in found:
                continue
            if is_qdq(other):
                between_pairs = True
                continue
            found.add(other)
            waiting.append(other)
            if len(found) > GROUP:
                return None
    graph = node.graph
    if not between_pairs or not isinstance(graph, ir.Graph):
        return None
    types = {other.op_type for other in found}
    operator = next((name for name, parts in _PIECES if all(types & {*part} for part in parts)), None)
    opset = graph.opset_imports.get("", 1)
    return operator if operator is not None and opset < SINCE[operator] else None


def is_of_five_dimensions(node: ir.Node) -> bool:
    """Whether ``node`` is one of Reshape → Transpose → Reshape whose middle tensors have six dimensions, of which one has size 1
    and stays in its place."""
    transpose = _transpose_around(node)
    if transpose is None:
        return False
    first, last = _behind_pairs(transpose.inputs[0]), _only_reader(transpose)
    if first is None or last is None or not (is_standard(first, "Reshape") and is_standard(last, "Reshape")):
        return False
    if _only_reader(first) is not transpose or not all(is_constant(n.inputs[1]) for n in (first, last)):
        return False
    before, after, perm = first.outputs[0].shape, transpose.outputs[0].shape, transpose.attributes.get("perm")
    if before is None or after is None or perm is None or len(before) != 6 or len(after) != 6:
        return False
    return any(before[i] == after[i] == 1 and axis == i for i, axis in enumerate(perm.as_ints()))


def is_linear(node: ir.Node) -> bool:
    """Whether ``node`` multiplies an activation of two or three dimensions by a constant matrix."""
    return isinstance(linear_of(node, lambda value: None if value.shape is None else len(value.shape)), Linear)


def attention_sizes(softmax: ir.Node) -> list[int | None] | None:
    """Sizes of the scores [.., queries, keys] that ``softmax`` reads, where its shares multiply values; else None.

    Between the Softmax and that product may stand what guards it: a Where, a Cast, a Dropout.
    """
    source = softmax.inputs[0] if is_standard(softmax, "Softmax") else None
    if source is None or source.shape is None or len(source.shape) < 3:
        return None
    reader = _only_reader(softmax) or _first_reader(softmax)
    while reader is not None and is_standard(reader, "Cast", "Dropout", "Identity", "IsNaN", "Not", "Where"):
        reader = _only_reader(reader)
    if reader is None or not is_standard(reader, "MatMul") or is_constant(reader.inputs[1]):
        return None
    return [dim if isinstance(dim, int) else None for dim in source.shape]


def _first_reader(node: ir.Node) -> ir.Node | None:
    """The reader of ``node`` that is asked first whether it is a number."""
    found = [use.node for use in node.outputs[0].uses()]
    return next((reader for reader in found if is_standard(reader, "Where")), None)


def _transpose_around(node: ir.Node) -> ir.Node | None:
    """``node`` itself, or the Transpose behind or in front of a Reshape."""
    if is_standard(node, "Transpose"):
        return node
    if not is_standard(node, "Reshape"):
        return None
    found = (_only_reader(node), _behind_pairs(node.inputs[0]))
    return next((n for n in found if n is not None and is_standard(n, "Transpose")), None)


def _is_multiple(value: ir.Value | None, x: ir.Value | None) -> bool:
    """Whether ``value`` is a product of which ``x`` is a factor."""
    product = _behind_pairs(value)
    return product is not None and is_standard(product, "Mul") and any(_stored(v) is x for v in product.inputs)


def _stored(value: ir.Value | None) -> ir.Value | None:
    """The integers that ``value`` is dequantized from, else ``value``."""
    producer = value.producer() if value is not None else None
    return producer.inputs[0] if producer is not None and is_dequantize(producer) else value


def _behind_pairs(value: ir.Value | None) -> ir.Node | None:
    """What computes ``value``, before a pair."""
    producer = value.producer() if value is not None else None
    while producer is not None and (is_dequantize(producer) or is_quantize(producer)):
        source = producer.inputs[0]
        producer = source.producer() if source is not None else None
    return producer


def _only_reader(node: ir.Node) -> ir.Node | None:
    """The only reader of the only output of ``node``, behind a pair."""
    value = node.outputs[0]
    while not value.is_graph_output() and len(found := readers(value)) == 1:
        reader = found[0][0]
        if not is_qdq(reader):
            return reader
        value = reader.outputs[0]
    return None
