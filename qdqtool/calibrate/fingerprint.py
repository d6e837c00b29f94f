"""Fingerprint of what a model computes: operators, wiring, attributes and weights; not names of nodes, docs or metadata.

Ranges carry it, so that ranges of another model are noticed."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
import onnx_ir as ir


def _data(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """The bytes of ``tensor`` as a file holds them; of an array in memory without a copy."""
    if tensor.dtype == ir.DataType.STRING:
        texts = tensor.string_data() if isinstance(tensor, ir.StringTensor) else tensor.numpy().ravel()
        return b"\0".join(text.encode() if isinstance(text, str) else bytes(text) for text in texts)
    if type(tensor) is ir.Tensor and tensor.dtype.bitwidth >= 8 and sys.byteorder == "little":
        return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data
    return tensor.tobytes()


def model_sha256(model: ir.Model) -> str:
    """64 hex digits; weights are read one at a time."""
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        digest.update(("\x1f".join(map(str, parts)) + "\x1e").encode())

    def add_tensor(tensor: ir.TensorProtocol) -> None:
        add(tensor.dtype.name, list(tensor.shape.numpy()))
        digest.update(_data(tensor))

    def add_attribute(name: str, value: Any) -> None:
        add(name)
        if isinstance(value, ir.Graph):
            add_graph(value)
        elif isinstance(value, ir.TensorProtocol):
            add_tensor(value)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], ir.Graph | ir.TensorProtocol):
            for item in value:
                add_attribute(name, item)
        else:
            add(repr(value))

    def add_nodes(graph: ir.Graph | ir.Function) -> None:
        add("in", *(f"{v.name}:{v.type}:{v.shape}" for v in graph.inputs))
        for node in graph:
            add(node.domain, node.op_type, node.overload)
            add("reads", *("" if v is None else v.name for v in node.inputs))
            add("writes", *(v.name for v in node.outputs))
            for name in sorted(node.attributes):
                attribute = node.attributes[name]
                add_attribute(name, f"@{attribute.ref_attr_name}" if attribute.is_ref() else attribute.value)
        add("out", *(v.name for v in graph.outputs))

    def add_graph(graph: ir.Graph) -> None:
        add_nodes(graph)
        for name in sorted(graph.initializers):
            tensor = graph.initializers[name].const_value
            add("weight", name)
            if tensor is not None:
                add_tensor(tensor)

    add(*(f"{domain}={number}" for domain, number in sorted(model.opset_imports.items())))
    add_graph(model.graph)
    for identifier in sorted(model.functions):
        add("function", *identifier)
        add_nodes(model.functions[identifier])
    return digest.hexdigest()
