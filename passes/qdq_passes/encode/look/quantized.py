"""Whether an operator takes part in the quantization of its graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.annotate import DEMAND, FUSED, ORIGIN
from qdq_passes.graph.operators.activations import ACTIVATIONS
from qdq_passes.graph.operators.qdq_ops import float_source, is_dequantize, is_quantize, is_quantize_dequantize
from qdq_passes.graph.uses import is_constant, is_standard, label
from qdq_passes.select.selectors import Selector, nodes_of_types

#: Which operators a pass changes that imitates a chip: those that are quantized, or every one.
Operators = Literal["quantized", "all"]

#: Operators between which a quantizer leaves the pair out, so that the second has to be asked for the first and the other way.
_BEFORE = ("Pad",)
_BEHIND = (*ACTIVATIONS, "Gelu")


def operators_of(
    model: ir.Model, select: Selector, operators: Operators, *op_types: str
) -> tuple[list[ir.Node], list[Change]]:
    """The nodes of ``op_types`` that ``select`` names and ``operators`` lets be changed, and why the others are not.

    Raises:
        UsageError: the selector matches nothing.
    """
    nodes, skips = list[ir.Node](), list[Change]()
    for node in nodes_of_types(model, select, *op_types):
        if operators == "all" or is_quantized(node):
            nodes.append(node)
        else:
            skips.append(skip(node, "is not quantized; operators=all changes it too"))
    return nodes, skips


def is_quantized(node: ir.Node) -> bool:
    """Whether ``node`` reads or writes a value that has a pair on its account: by the annotation ``demand`` where the value has
    one, else by the pair alone. Of a fused group, whose members have no pair between them, one speaks for its neighbours."""
    return _has_own_pair(node) or any(_has_own_pair(other) for other in _fused_with(node))


def _has_own_pair(node: ir.Node) -> bool:
    return any(_is_demanded_by(value, node) for value in _paired(node))


def _paired(node: ir.Node) -> Iterator[ir.Value]:
    """The float values around ``node`` that have a pair; weights are none, which others may share."""
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if producer is None or value is None or not (is_dequantize(producer) or is_quantize_dequantize(producer)):
            continue
        if producer.inputs and not is_constant(producer.inputs[0]):
            source = float_source(value) if is_dequantize(producer) else producer.inputs[0]
            yield source if source is not None else value
    for value in node.outputs:
        if any(use.idx == 0 and (is_quantize(use.node) or is_quantize_dequantize(use.node)) for use in value.uses()):
            yield value


def _is_demanded_by(value: ir.Value, node: ir.Node) -> bool:
    demand, origin = DEMAND.get(value), ORIGIN.get(node)
    names = {label(node), *(origin.nodes if origin is not None else ())}
    return demand is None or not names.isdisjoint(demand.nodes)


def _fused_with(node: ir.Node) -> Iterator[ir.Node]:
    """Neighbours across a value without a pair that is marked as fused, or whose operators quantizers fuse."""
    first = node.inputs[0] if node.inputs else None
    producer = first.producer() if first is not None else None
    is_marked = first is not None and FUSED.get(first) is not None
    if producer is not None and not is_dequantize(producer) and (is_marked or is_standard(producer, *_BEFORE)):
        yield producer
    for value in node.outputs[:1]:
        for reader in dict.fromkeys(value.consumers()):
            if not is_quantize(reader) and (FUSED.get(value) is not None or is_standard(reader, *_BEHIND)):
                yield reader
