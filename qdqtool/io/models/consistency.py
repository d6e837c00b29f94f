"""What a file declares against what onnx infers from its inputs: shapes that its graph contradicts give way, sizes below zero are
refused, and what else does not fit is noted, for a pass that fails on it.

onnx gets a copy without large weights, of which it needs the sizes alone, without local functions, which it would expand as often
as they are called, and without declared shapes, which it would believe."""

from __future__ import annotations

import onnx
from qdq_passes.errors import ModelError
from qdq_passes.graph.shapes.guards import GUARDS, guarding

#: Bytes of a tensor up to which onnx sees its numbers: shapes and axes follow from them.
SHOWN_BYTES = 1024
T = onnx.TensorProto


def contradiction_in(model: onnx.ModelProto) -> str:
    """What of ``model`` does not fit, in onnx's words, empty if all does; shapes that are contradicted become those inferred.

    Raises:
        ModelError: a value has a size below zero.
    """
    light = _light(model)
    reason = ""
    with guarding(GUARDS):
        try:
            inferred = onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=True, data_prop=True)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            try:
                inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
            except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError):
                return reason
    found = {info.name: info.type.tensor_type for info in (*inferred.graph.value_info, *inferred.graph.output)}
    _refuse_negative(inferred.graph)
    for info in (*model.graph.value_info, *model.graph.output):
        kind = info.type.tensor_type
        if info.name in found and kind.HasField("shape") and _differ(kind.shape, found[info.name].shape):
            kind.shape.CopyFrom(found[info.name].shape)
    return reason


def _refuse_negative(graph: onnx.GraphProto) -> None:
    """Of ``graph`` and its bodies: onnxruntime, too, ends the process on a Slice of such a value."""
    for info in (*graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if any(dim.dim_value < 0 for dim in dims):
            sizes = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]
            message = f"comes out with the shape {sizes[:8]}"
            raise ModelError(
                message, where=f"value {info.name!r}", hint="no size is below zero: export the model again"
            )
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _refuse_negative(attribute.g)


def _differ(declared: onnx.TensorShapeProto, inferred: onnx.TensorShapeProto) -> bool:
    if len(declared.dim) != len(inferred.dim):
        return True
    return any(
        mine.HasField("dim_value") and theirs.HasField("dim_value") and mine.dim_value != theirs.dim_value
        for mine, theirs in zip(declared.dim, inferred.dim, strict=True)
    )


def _light(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.name = "light"
    light.graph.input.extend(graph.input)
    known = {info.name for info in graph.input}
    for tensor in graph.initializer:
        if tensor.ByteSize() <= SHOWN_BYTES and tensor.data_location != T.EXTERNAL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in known:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for node in graph.node:
        stored = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if stored is not None and stored.ByteSize() > SHOWN_BYTES and node.output:
            light.graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], stored.data_type, stored.dims))
        elif node.op_type != "EPContext":
            light.graph.node.append(node)
    unknown = {v for n in graph.node if not onnx.defs.has(n.op_type, domain=n.domain) for v in n.output}
    light.graph.value_info.extend(info for info in graph.value_info if info.name in unknown)
    for output in graph.output:
        kept = light.graph.output.add(name=output.name)
        if output.name in unknown or output.type.WhichOneof("value") != "tensor_type":
            kept.type.CopyFrom(output.type)
        else:
            kept.type.tensor_type.elem_type = output.type.tensor_type.elem_type
    return light
