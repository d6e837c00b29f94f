"""EPContext nodes hold what a provider compiled as a text attribute, which need not be text: onnx_ir refuses to read it, and
warns where it writes it. So it goes around onnx_ir, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

#: (place of the node in the main graph, name of the attribute, its bytes).
Payload = tuple[int, str, bytes]


@contextmanager
def payloads_apart(proto: onnx.ModelProto) -> Iterator[list[Payload]]:
    """Attributes of EPContext nodes that are no UTF-8, empty in ``proto`` for as long as the block runs."""
    found: list[Payload] = []
    held: list[tuple[onnx.AttributeProto, bytes]] = []
    for index, node in enumerate(proto.graph.node):
        if node.op_type != "EPContext":
            continue
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.STRING and not _is_text(attribute.s):
                found.append((index, attribute.name, attribute.s))
                held.append((attribute, attribute.s))
                attribute.s = b""
    try:
        yield found
    finally:
        for attribute, data in held:
            attribute.s = data


def put_back(model: ir.Model, payloads: list[Payload]) -> None:
    """Give the nodes of ``model`` their attributes; they are bytes there."""
    nodes = list(model.graph) if payloads else []
    for index, name, data in payloads:
        nodes[index].attributes[name] = ir.Attr(name, ir.AttributeType.STRING, data)


@contextmanager
def payloads_out(model: ir.Model) -> Iterator[list[Payload]]:
    """Attributes of ``model`` that are bytes, empty texts while the block runs; `write_into` puts them into its protobuf."""
    found: list[Payload] = []
    nodes = list(model.graph)
    for index, node in enumerate(nodes):
        if node.op_type == "EPContext":
            found += [(index, name, a.value) for name, a in node.attributes.items() if isinstance(a.value, bytes)]
    for index, name, _ in found:
        nodes[index].attributes[name] = ir.AttrString(name, "")
    try:
        yield found
    finally:
        put_back(model, found)


def write_into(proto: onnx.ModelProto, payloads: list[Payload]) -> None:
    """Give the nodes of ``proto``, made inside of `payloads_out`, their attributes."""
    for index, name, data in payloads:
        for attribute in proto.graph.node[index].attribute:
            if attribute.name == name:
                attribute.s = data


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
