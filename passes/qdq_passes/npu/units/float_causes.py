"""Why a unit is not computed on integers: its first input or output that is no integers behind a constant encoding, and why."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qdq_ops import is_quantize
from qdq_passes.graph.operators.qoperators import form_of
from qdq_passes.graph.uses import FLOAT_TYPES, dtype_of, has_body, readers
from qdq_passes.npu.units.units import Operand, Result, Unit
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import encoding_of

#: No pair stands on a value that is read, or written; it is integers of an operator on integers; its scale is computed at run
#: time; it is used as a float beside its pair; each reader has a QuantizeLinear of its own; the operator holds a body.
FloatCauseKind = Literal["input", "output", "integers", "run-time-scale", "beside", "several", "body"]


@dataclass(frozen=True, eq=False, kw_only=True)
class FloatCause:
    """What is the matter.

    Args:
        kind: see `FloatCauseKind`.
        text: in words, a sentence without its subject: ``reads x as a float, a graph input without a pair``.
        value: the value concerned; None of a body.
        encoding: of the QuantizeLinear that stands beside the other users of ``value``; None where there is none.
    """

    kind: FloatCauseKind
    text: str
    value: ir.Value | None = None
    encoding: Encoding | None = None


def float_cause(unit: Unit) -> FloatCause | None:
    """The first of `float_causes`; None when there is none."""
    return next(iter(float_causes(unit)), None)


def float_causes(unit: Unit) -> list[FloatCause]:
    """Why not all data that ``unit`` reads and writes are integers behind constant encodings. What flows is looked at before
    constants: a float bias is seldom the cause."""
    if has_body(unit.core):
        return [FloatCause(kind="body", text="holds a body")]
    flowing = (_of_operand(operand) for operand in unit.operands if not operand.constant)
    results = (_of_result(result) for result in unit.results)
    constants = (_of_operand(operand) for operand in unit.operands if operand.constant)
    return [cause for cause in (*flowing, *results, *constants) if cause is not None]


def why_not_quantized(unit: Unit) -> str:
    """`float_cause` in words; empty when there is none."""
    cause = float_cause(unit)
    return "" if cause is None else cause.text


def _of_operand(operand: Operand) -> FloatCause | None:
    value = operand.value
    if operand.kind in ("control", "absent") or operand.encoding is not None or value is None:
        return None
    if operand.dequantize is not None:
        return FloatCause(kind="run-time-scale", value=value, text=f"the scale of {value.name} is computed at run time")
    producer = value.producer()
    if producer is not None and form_of(producer) is not None:
        text = f"reads {value.name}, integers that {_node_word(producer)} writes, without a pair"
        return FloatCause(kind="integers", value=value, text=text)
    origin = (
        "a constant without a pair" if operand.constant
        else "a graph input without a pair" if producer is None
        else f"with no pair behind {_node_word(producer)}, which writes it"
    )  # fmt: skip
    return FloatCause(kind="input", value=value, text=f"reads {value.name} as {_type_word(value)}, {origin}")


def _of_result(result: Result) -> FloatCause | None:
    value = result.value
    if result.encoding is not None:
        return None
    users = [node for node, _ in readers(value)]
    quantizers = [node for node in users if is_quantize(node)]
    others = [node for node in users if not is_quantize(node)]
    if not quantizers:
        reader = f"with no pair before {_node_word(others[0])}, which reads it" if others else ""
        end = "a graph output without a pair" if value.is_graph_output() else reader
        floats = dtype_of(value) in (None, *FLOAT_TYPES)
        text = f"writes {value.name} as {_type_word(value)}{f', {end}' if floats and end else ''}"
        return FloatCause(kind="output", value=value, text=text)
    encoding = encoding_of(quantizers[0])
    if others:
        text = f"{value.name} is read as {_type_word(value)} too, by {_node_word(others[0])} beside its QuantizeLinear"
        return FloatCause(kind="beside", value=value, encoding=encoding, text=text)
    if value.is_graph_output():
        text = f"{value.name} is a graph output as {_type_word(value)}, beside its QuantizeLinear"
        return FloatCause(kind="beside", value=value, encoding=encoding, text=text)
    if len(quantizers) == 1:
        return FloatCause(kind="run-time-scale", value=value, text=f"the scale of {value.name} is computed at run time")
    text = f"{value.name} is quantized {len(quantizers)} times, once for each reader"
    return FloatCause(kind="several", value=value, encoding=encoding, text=text)


def _node_word(node: ir.Node) -> str:
    return f"{node.op_type} {node.name}" if node.name else node.op_type


def _type_word(value: ir.Value) -> str:
    dtype = dtype_of(value)
    return "a float" if dtype is None or dtype == ir.DataType.FLOAT else dtype.name.lower()
