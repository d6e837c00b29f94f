"""Precision of single values and nodes where it is not that of the whole model: what the annotation of that name says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import onnx_ir as ir

from qdq_passes.encode.look.demands import DATA_OUTPUTS, Role
from qdq_passes.graph.annotate import ENCODING, FUSED, PRECISION, Observed, Precision
from qdq_passes.graph.uses import SHARING, all_nodes, is_constant, is_standard
from qdq_passes.numerics.encoding import Encoding, integer_format, parse_dtype
from qdq_passes.numerics.histogram import Histogram

#: Types that a node computes in without demanding encodings.
FLOATS = ("float", "float16", "bfloat16")


class ObservedRange(Protocol):
    """What calibration knows of a tensor."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def float_nodes(model: ir.Model) -> dict[ir.Node, str]:
    """The nodes of ``model`` that compute in a float type of their own, which demand no encodings → that type."""
    marks = ((node, PRECISION.get(node)) for node in all_nodes(model))
    return {node: mark.dtype for node, mark in marks if mark is not None and mark.dtype in FLOATS}


def stored_type(value: ir.Value, role: Role, otherwise: ir.DataType, readers: Iterable[ir.Node] = ()) -> ir.DataType:
    """The storage type of ``value``: its own, or ``otherwise``. A weight keeps the signedness of ``otherwise``; a constant that
    is stored as activations are has the type of what all its ``readers`` write."""
    mark = PRECISION.get(value)
    if mark is None and role == "activation":
        marks = {PRECISION.get(reader) for reader in readers}
        mark = marks.pop() if len(marks) == 1 else None
    if mark is None or mark.dtype in FLOATS:
        return otherwise
    if role == "activation":
        return parse_dtype(mark.dtype)
    signed, bits = integer_format(otherwise)[0], integer_format(parse_dtype(mark.dtype))[1]
    return parse_dtype(f"{'' if signed else 'u'}int{bits}")


def is_stored_otherwise(value: ir.Value, source: ir.Value | None) -> bool:
    """Whether a type is said of ``value``, which would share the encoding of ``source``, and it is another one."""
    mark, found = PRECISION.get(value), ENCODING.get(source) if source is not None else None
    return mark is not None and found is not None and parse_dtype(mark.dtype) != found.dtype


def whole_range(
    value: ir.Value, chosen: ObservedRange | Encoding | None, given: object, otherwise: ir.DataType
) -> ObservedRange | Encoding | None:
    """``chosen``, the range of ``value``; where it is stored wider than ``otherwise`` all that was seen of it.

    A calibration method clips for the steps of the grid that it was told of; a finer grid has no need to. An end that passes set
    themselves (a Relu's 0) stays.

    Args:
        value: the activation.
        chosen: its range after what passes made of it.
        given: what was observed, with its histogram where one was kept.
        otherwise: storage type of activations.
    """
    histogram = getattr(given, "histogram", None)
    is_wider = stored_type(value, "activation", otherwise).bitwidth > otherwise.bitwidth
    if not is_wider or not isinstance(histogram, Histogram) or chosen is None or isinstance(chosen, Encoding):
        return chosen
    low, high = getattr(given, "low", None), getattr(given, "high", None)
    return Observed(
        histogram.low if chosen.low == low else chosen.low, histogram.high if chosen.high == high else chosen.high
    )


def moved_from(values: Iterable[ir.Value]) -> list[ir.Value]:
    """``values`` and the values that operators which only move elements took them from, where all that is made of those is among
    them: the operand of a product, and what a Reshape and a Transpose before it read."""
    found = dict.fromkeys(values)
    work = list(found)
    while work:
        producer = work.pop().producer()
        source = producer.inputs[0] if producer is not None and is_standard(producer, *SHARING) else None
        if source is None or source in found or source.is_graph_output() or is_constant(source):
            continue
        if all(_hands_on(use.node, use.idx, found) for use in source.uses()):
            found[source] = None
            work.append(source)
    return list(found)


def _hands_on(reader: ir.Node, index: int, found: Mapping[ir.Value, None]) -> bool:
    """Whether ``reader`` only moves the elements of its input ``index``, and all that it makes of them is among ``found``."""
    outputs = reader.outputs[: DATA_OUTPUTS.get(reader.op_type)]
    return index == 0 and is_standard(reader, *SHARING) and all(v in found for v in outputs)


def leaving(values: Iterable[ir.Value]) -> list[ir.Value]:
    """``values``, those inside of a fused group, which have no encoding, replaced by what leaves the group."""
    found: dict[ir.Value, None] = {}
    work, seen = list(values), set[ir.Value]()
    while work:
        value = work.pop(0)
        if value in seen:
            continue
        seen.add(value)
        if FUSED.get(value) is None or value.is_graph_output():
            found[value] = None
        else:
            work += [output for node in value.consumers() for output in node.outputs]
    return list(found)


def in_words(mark: Precision) -> str:
    """What a float precision means for a node."""
    return "stays float" if mark.dtype == "float" else f"computes in {mark.dtype}"
