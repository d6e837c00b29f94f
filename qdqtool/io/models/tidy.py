"""What a file says and nothing can mean gives way in its protobuf at `load`: sizes below zero, which some exporters write for
unknown ones, bytes that are no text, shapes that the graph contradicts; what else does not fit is noted, for a pass that fails.

What contradicts is told by onnx, which gets a copy without large weights, of which it needs the sizes alone, and without declared
shapes, which it would believe."""

from __future__ import annotations

import math
from typing import Any

import onnx
from qdq_passes.errors import ModelError
from qdq_passes.graph.shapes.guards import GUARDS, guarding
from qdq_passes.graph.shapes.propagation import FAILURES, SHOWN_BYTES, by_onnx

from qdqtool.io.models.proto_tensors import MAX_RANK, MAX_SIZE, TOO_LARGE

A, T = onnx.AttributeProto, onnx.TensorProto
#: Texts on which nothing hangs, by the kind of message; of others its comment.
_TEXTS = {
    "ModelProto": ("producer_name", "producer_version", "domain", "doc_string"), "StringStringEntryProto": ("key", "value"),
}  # fmt: skip


def tidy(message: Any) -> None:
    """Clear sizes below zero of all values in a protobuf; write U+FFFD for bytes that are no UTF-8 in comments and metadata.

    Raises:
        ModelError: a value has more dimensions or elements than any array.
    """
    for name in _TEXTS.get(type(message).__name__, ("doc_string",)):
        text = getattr(message, name, "")
        if isinstance(text, bytes):
            setattr(message, name, text.decode("utf-8", "replace"))
    if isinstance(message, onnx.ValueInfoProto):
        _tidy_sizes(message)
    if not isinstance(message, T | onnx.TypeProto):
        for field, value in message.ListFields():
            if field.message_type is not None:
                for inner in (value,) if hasattr(value, "ListFields") else value:
                    tidy(inner)


def _tidy_sizes(value: onnx.ValueInfoProto) -> None:
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


def contradiction_in(model: onnx.ModelProto) -> str:
    """What of ``model`` does not fit, in onnx's words, empty if all does; shapes that are contradicted become those inferred.

    Raises:
        ModelError: a node is what ends the process in onnx, and in onnxruntime too; see `guards`.
    """
    light = _light(model)
    reason = ""
    try:
        with guarding(GUARDS, strict=True) as kept:
            inferred = by_onnx(light.SerializeToString(), strict=True)
    except FAILURES as error:
        reason = " ".join(str(error).split())[:200]
        with guarding(GUARDS) as kept:
            try:
                inferred = by_onnx(light.SerializeToString())
            except FAILURES:
                inferred = light
    if kept:
        raise ModelError(kept[0][1], where=kept[0][0], hint="onnx ends the process on that: export the model again")
    known = {info.name: info.type.tensor_type for info in (*inferred.graph.value_info, *inferred.graph.output)}
    found = {name: kind.shape for name, kind in known.items() if kind.HasField("shape")}
    for infos, differ in ((model.graph.value_info, _differ), (model.graph.output, _differ_in_rank)):
        for info in infos:
            kind = info.type.tensor_type
            if info.name in found and kind.HasField("shape") and differ(kind.shape, found[info.name]):
                kind.shape.CopyFrom(found[info.name])
    return reason


def _differ_in_rank(declared: onnx.TensorShapeProto, inferred: onnx.TensorShapeProto) -> bool:
    """Sizes that outputs declare are what the caller was promised."""
    return len(declared.dim) != len(inferred.dim)


def _differ(declared: onnx.TensorShapeProto, inferred: onnx.TensorShapeProto) -> bool:
    return _differ_in_rank(declared, inferred) or any(
        mine.HasField("dim_value") and theirs.HasField("dim_value") and mine.dim_value != theirs.dim_value
        for mine, theirs in zip(declared.dim, inferred.dim, strict=True)
    )


def _is_large(tensor: onnx.TensorProto) -> bool:
    """Whether shape inference does without the data: to ask for the size copies them, which is not needed of raw ones."""
    elements = math.prod(tensor.dims)
    return (tensor.HasField("raw_data") and elements > 8 * SHOWN_BYTES) or bool(tensor.ByteSize() > SHOWN_BYTES)


def _light(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    light.graph.name = "light"
    light.graph.input.extend(graph.input)
    known = {info.name for info in graph.input}
    for tensor in graph.initializer:
        if not _is_large(tensor) and tensor.data_location != T.EXTERNAL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in known:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for node in graph.node:
        stored = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if stored is not None and stored.ByteSize() > SHOWN_BYTES and node.output:
            light.graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], stored.data_type, stored.dims))
        elif stored is not None and node.output:
            light.graph.initializer.add().CopyFrom(stored)
            light.graph.initializer[-1].name = node.output[0]
        elif node.op_type != "EPContext":
            light.graph.node.append(_light_node(node) if any(a.type == A.GRAPH for a in node.attribute) else node)
    shown = {tensor.name: tensor for tensor in light.graph.initializer}
    for node in light.graph.node:
        _show(node, shown)
    unknown = {v for n in graph.node if not onnx.defs.has(n.op_type, domain=n.domain) for v in n.output}
    light.graph.value_info.extend(info for info in graph.value_info if info.name in unknown)
    for output in graph.output:
        kept = light.graph.output.add(name=output.name)
        if output.name in unknown or output.type.WhichOneof("value") != "tensor_type":
            kept.type.CopyFrom(output.type)
        else:
            kept.type.tensor_type.elem_type = output.type.tensor_type.elem_type
    return light


def _light_node(node: onnx.NodeProto) -> onnx.NodeProto:
    """``node``, whose bodies have the sizes of large weights alone."""
    light = onnx.NodeProto(
        op_type=node.op_type, domain=node.domain, name=node.name, input=node.input, output=node.output
    )
    for attribute in node.attribute:
        if attribute.type != A.GRAPH:
            light.attribute.append(attribute)
            continue
        body = light.attribute.add(name=attribute.name, type=attribute.type).g
        body.name = attribute.g.name
        body.input.extend(attribute.g.input)
        body.output.extend(attribute.g.output)
        body.node.extend(map(_light_node, attribute.g.node))
        for tensor in attribute.g.initializer:
            is_small = tensor.ByteSize() <= SHOWN_BYTES
            body.initializer.append(
                tensor if is_small else T(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            )
    return light


def _show(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> None:
    """Give bodies of ``node`` the ``constants`` that they read from around them: onnxruntime sees those, onnx does not."""
    for body in (attribute.g for attribute in node.attribute if attribute.type == A.GRAPH):
        read = {name for inner in body.node for name in inner.input}
        known = {value.name: value for value in body.initializer}
        body.initializer.extend(constants[name] for name in sorted(read & constants.keys() - known.keys()))
        inside = {**constants, **known}
        for inner in body.node:
            _show(inner, inside)
