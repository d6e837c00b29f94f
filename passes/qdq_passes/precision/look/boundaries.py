"""Boundaries of mixed precision: of which storage type the activations are that an operator reads, and those it writes."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qdq_ops import (
    is_dequantize,
    is_quantization,
    is_quantize,
    is_quantize_dequantize,
    reads_stored,
)
from qdq_passes.graph.uses import SHARING, dtype_of, has_body, is_standard, only_reader
from qdq_passes.qdq.look.pairs import encoding_of

#: Activations that layers are fused with: no pair stands between.
FUSED = ("Clip", "LeakyRelu", "PRelu", "Relu")


@dataclass(frozen=True)
class Input:
    """An activation that an operator reads dequantized.

    Args:
        index: input index.
        dq: the node that dequantizes it.
        dtype: type of its integers.
    """

    index: int
    dq: ir.Node
    dtype: ir.DataType


@dataclass(frozen=True)
class Width:
    """What an operator computes in.

    Args:
        dtype: storage type.
        domain: domain of the QuantizeLinear that writes it, "" where none is known.
    """

    dtype: ir.DataType
    domain: str


def quantized_inputs(node: ir.Node) -> list[Input]:
    """The activations that ``node`` reads from a DequantizeLinear or FixNeuron; weights and biases are none."""
    if is_quantization(node):
        return []
    found = []
    for index, value in enumerate(node.inputs):
        dq = value.producer() if value is not None else None
        if dq is None or not (is_dequantize(dq) or is_quantize_dequantize(dq)) or reads_stored(dq):
            continue
        dtype = _stored_type(dq)
        if dtype is not None:
            found.append(Input(index, dq, dtype))
    return found


def width_of_outputs(node: ir.Node) -> Width | str | None:
    """The type of the pair on what ``node`` writes; why it cannot be told; None when nothing there is quantized."""
    found: dict[int, Width] = {}
    for output in node.outputs:
        for width in _behind(output):
            found.setdefault(width.dtype.bitwidth, width)
    if len(found) > 1:
        return f"what it writes is quantized to {' and '.join(str(bits) for bits in sorted(found))} bits"
    return next(iter(found.values()), None)


def why_not_operator(node: ir.Node) -> str | None:
    """Why ``node`` computes in no width of its own, in words; None when it does."""
    if has_body(node):
        return "has a body"
    return "only moves data" if is_standard(node, *SHARING) else None


def _behind(value: ir.Value) -> list[Width]:
    """Types that ``value`` is quantized to, right there or behind fused activations."""
    seen: set[ir.Value] = set()
    while value not in seen:
        seen.add(value)
        quantizers = [
            u.node for u in value.uses() if u.idx == 0 and (is_quantize(u.node) or is_quantize_dequantize(u.node))
        ]
        if quantizers:
            types = [(q, _stored_type(q)) for q in quantizers]
            return [Width(t, q.domain if is_quantize(q) else "") for q, t in types if t is not None]
        reader = only_reader(value)
        if reader is None or not is_standard(reader, *FUSED) or reader.inputs[0] is not value:
            return []
        value = reader.outputs[0]
    return []


def _stored_type(node: ir.Node) -> ir.DataType | None:
    encoding = encoding_of(node)
    if encoding is not None:
        return encoding.dtype
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    integers = node.inputs[0] if is_dequantize(node) else node.outputs[0]
    for value in (zero, integers):
        dtype = dtype_of(value) if value is not None else None
        if dtype is not None and not is_quantize_dequantize(node):
            return dtype
    return None
