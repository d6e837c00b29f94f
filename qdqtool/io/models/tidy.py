"""What a file says and nothing can mean, taken out of its protobuf at `load`: sizes below zero, which some exporters write for
unknown ones and which end the process inside onnx's shape inference; bytes that are no text, in texts that nothing refers to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import onnx
from google.protobuf.message import Message
from qdq_passes.errors import ModelError

from qdqtool.io.models.proto_tensors import MAX_RANK, MAX_SIZE, TOO_LARGE


def tidy(model: onnx.ModelProto) -> None:
    """Clear sizes below zero in all types of ``model``; write U+FFFD for bytes that are no UTF-8 in its comments and metadata.

    Raises:
        ModelError: a value has more dimensions or elements than any array.
    """
    _mend(model, "producer_name", "producer_version", "domain", "doc_string")
    _mend_metadata(model)
    _tidy_graph(model.graph)
    for function in model.functions:
        _mend(function, "doc_string")
        _mend_metadata(function)
        _tidy_values(function.value_info)
        _tidy_nodes(function.node)


def _tidy_graph(graph: onnx.GraphProto) -> None:
    _mend(graph, "doc_string")
    _mend_metadata(graph)
    for values in (graph.input, graph.output, graph.value_info):
        _tidy_values(values)
    for tensor in graph.initializer:
        _mend(tensor, "doc_string")
    _tidy_nodes(graph.node)


def _tidy_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        _mend(node, "doc_string")
        _mend_metadata(node)
        for attribute in node.attribute:
            _mend(attribute, "doc_string")
            if attribute.HasField("g"):
                _tidy_graph(attribute.g)
            elif attribute.HasField("t"):
                _mend(attribute.t, "doc_string")
            for body in attribute.graphs:
                _tidy_graph(body)


def _tidy_values(values: Iterable[onnx.ValueInfoProto]) -> None:
    for value in values:
        _mend(value, "doc_string")
        _mend_metadata(value)
        kind = value.type
        while inner := kind.WhichOneof("value"):
            if inner not in ("sequence_type", "optional_type"):
                break
            kind = getattr(kind, inner).elem_type
        dims = kind.tensor_type.shape.dim if inner == "tensor_type" else ()
        if len(dims) > MAX_RANK or math.prod(max(dim.dim_value, 1) for dim in dims) >= MAX_SIZE:
            shape = [dim.dim_param or dim.dim_value for dim in dims[:8]]
            raise ModelError(f"it has the shape {shape}", where=f"value {value.name!r}", hint=TOO_LARGE)
        for dim in dims:
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")


def _mend(message: Message, *fields: str) -> None:
    for field in fields:
        text = getattr(message, field)
        if isinstance(text, bytes):
            setattr(message, field, text.decode("utf-8", "replace"))


def _mend_metadata(message: Any) -> None:
    for entry in message.metadata_props:
        _mend(entry, "key", "value")
