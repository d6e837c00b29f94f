"""Model → protobuf, adding nothing to what was loaded.

onnx_ir's serializer writes value_info for every initializer, doubles the metadata of tensors, and sorts metadata; here that is
undone, and nodes that were named at load are nameless again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from qdq_passes.core.names import UNNAMED
from qdq_passes.errors import ModelError, UnsupportedError

from qdqtool.io.models.context_payloads import payloads_out, write_into
from qdqtool.io.models.load import DECLARED, body_pairs, graph_pairs, root_cause
from qdqtool.io.models.parse import PROTOBUF_LIMIT
from qdqtool.io.models.slots import put, slots


def serialize(model: ir.Model) -> onnx.ModelProto:
    """The protobuf of ``model``; tensors in files keep their location, relative to the folder of each.

    Raises:
        ModelError: the model cannot be written: an initializer without data, text that is not UTF-8.
    """
    with payloads_out(model) as payloads:
        try:
            proto = ir.serde.serialize_model(model)
        except Exception as error:
            raise ModelError(
                f"cannot be written ({root_cause(error)[1]})", where=model.graph.name, hint="run check on it"
            ) from error
    write_into(proto, payloads)
    _in_order(proto.metadata_props, model.metadata_props)
    pairs = list(graph_pairs(proto.graph, model.graph))
    for part, function in zip(proto.functions, model.functions.values(), strict=True):
        _in_order(part.metadata_props, function.metadata_props)
        pairs += body_pairs(part.node, function)
        _restore_nodes(part.node, function)
    for graph_part, graph in pairs:
        _restore_graph(graph_part, graph)
    return proto


@dataclass(frozen=True)
class SessionModel:
    """What a runtime session is made of.

    Args:
        data: the model as bytes.
        folder: folder that its external data is relative to; None when it has none.
    """

    data: bytes
    folder: str | None


def model_bytes(model: ir.Model) -> SessionModel:
    """``model`` as bytes for a session; external data stays in its files.

    Raises:
        UnsupportedError: what lies in memory is over 2 GiB, the limit of protobuf.
    """
    files = {slot: slot.tensor for slot in slots(model) if isinstance(slot.tensor, ir.ExternalTensor)}
    folders = sorted({os.path.abspath(os.fspath(tensor.base_dir) or ".") for tensor in files.values()})
    if len(folders) <= 1:
        return SessionModel(to_bytes(serialize(model)), folders[0] if folders else None)
    folder = os.path.commonpath(folders)
    with put({slot: _seen_from(folder, tensor) for slot, tensor in files.items()}):
        return SessionModel(to_bytes(serialize(model)), folder)


def _seen_from(folder: str, tensor: ir.ExternalTensor) -> ir.ExternalTensor:
    location = os.path.relpath(os.path.abspath(tensor.path), folder)
    return ir.ExternalTensor(
        location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=tensor.metadata_props,
        base_dir=folder,
    )


def to_bytes(proto: onnx.ModelProto) -> bytes:
    """``proto`` as bytes, the same ones every time.

    Raises:
        UnsupportedError: it is over 2 GiB.
    """
    try:  # asking for the size first would serialize it twice
        data: bytes = proto.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf only says that it failed; the fields are in order, so it is the size
        raise _too_large() from error
    if len(data) > PROTOBUF_LIMIT:
        raise _too_large()
    return data


def _too_large() -> UnsupportedError:
    hint = "store the weights as external data"
    return UnsupportedError("the model is over 2 GiB, the limit of protobuf", hint=hint)


def _in_order(entries: MutableSequence[onnx.StringStringEntryProto], wanted: Mapping[str, str]) -> None:
    """Give metadata entries the order they have in memory (the file's), each key once."""
    if [entry.key for entry in entries] != list(wanted):
        del entries[:]
        entries.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in wanted.items())


def _restore_nodes(protos: Iterable[onnx.NodeProto], nodes: Iterable[ir.Node]) -> None:
    for proto, node in zip(protos, nodes, strict=True):
        if UNNAMED in node.meta and node.meta[UNNAMED] == node.name:
            proto.ClearField("name")
        if proto.metadata_props:
            _in_order(proto.metadata_props, node.metadata_props)
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.metadata_props:
                _in_order(attribute.t.metadata_props, node.attributes[attribute.name].as_tensor().metadata_props)


def _restore_graph(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    _restore_nodes(proto.node, graph)
    _in_order(proto.metadata_props, graph.metadata_props)
    initializers = graph.initializers
    for tensor in proto.initializer:
        if tensor.metadata_props:
            held = initializers[tensor.name].const_value
            _in_order(tensor.metadata_props, {} if held is None else held.metadata_props)
    _drop_undeclared(proto.value_info, initializers)
    with_metadata = [info for info in (*proto.input, *proto.output, *proto.value_info) if len(info.metadata_props) > 1]
    if with_metadata:
        values = {value.name: value for value in (*graph.inputs, *graph.outputs, *initializers.values())}
        values |= {value.name: value for node in graph for value in node.outputs}
        for info in with_metadata:
            if info.name in values:
                _in_order(info.metadata_props, values[info.name].metadata_props)
    seen: set[str] = set()
    for index in reversed(range(len(proto.quantization_annotation))):
        name = proto.quantization_annotation[index].tensor_name
        if name in seen:
            del proto.quantization_annotation[index]
        seen.add(name)


def _drop_undeclared(infos: MutableSequence[onnx.ValueInfoProto], initializers: Mapping[str, ir.Value]) -> None:
    """Take out the entries of initializers, which stand first, that neither the file had nor carry what a tensor cannot."""
    undeclared = {
        name
        for name, value in initializers.items()
        if DECLARED not in value.meta and not value.metadata_props and not value.doc_string
    }
    count = sum(info.name in undeclared for info in infos[: len(initializers)])
    if all(info.name in undeclared for info in infos[:count]):
        del infos[:count]
        return
    for index in reversed(range(min(len(infos), len(initializers)))):
        if infos[index].name in undeclared:
            del infos[index]
