"""What stands around an operator, where a compiler takes several for one; pairs between them do not count.

x → Div → Erf → Add → Mul (→ Mul)        one Gelu
Reshape → Transpose → Reshape            of six dimensions, one of which stays 1 in its place: five dimensions
"""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes.analysis.qdq_ops import is_dequantize, is_quantize
from qdq_passes.analysis.uses import is_constant, is_standard, readers


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
        if not (is_quantize(reader) or is_dequantize(reader)):
            return reader
        value = reader.outputs[0]
    return None
