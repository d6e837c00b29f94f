"""Stable text form of a model: what golden tests check and `opt --print-each` writes.

One line a value or node, in the order of the file. Weights show type, shape and data (up to `MAX_SHOWN` elements, else the first
eight digits of the SHA-256); Q/DQ nodes show scale and zero point; annotations and scopes end a line."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.graph.annotate import ENCODING, ORIGIN, Annotatable, annotation_kinds
from qdq_passes.graph.nesting import NAME_SCOPES, SCOPE, scope_of
from qdq_passes.graph.uses import constant_array

MAX_SHOWN = 8


def dump(model: ir.Model) -> str:
    """The whole model as text; the same model gives the same text."""
    opsets = " ".join(f"{domain or 'ai.onnx'}={version}" for domain, version in sorted(model.opset_imports.items()))
    lines = [f"model ir={model.ir_version} {opsets}"]
    lines += _graph("graph", model.graph, "")
    for function in model.functions.values():
        inputs = ", ".join(f"%{v.name}" for v in function.inputs)
        outputs = ", ".join(f"%{v.name}" for v in function.outputs)
        attributes = ", ".join(str(a) for a in function.attributes)
        overload = f":{function.overload}" if function.overload else ""
        lines.append(f"function {function.domain}::{function.name}{overload}<{attributes}>({inputs}) -> ({outputs}) {{")
        lines += _nodes(function, "  ")
        lines.append("}")
    return "\n".join(lines) + "\n"


def _graph(word: str, graph: ir.Graph, indent: str) -> list[str]:
    inputs = ", ".join(_typed(v) for v in graph.inputs)
    outputs = ", ".join(_typed(v) for v in graph.outputs)
    lines = [f"{indent}{word} {graph.name or '<unnamed>'}({inputs}) -> ({outputs}) {{"]
    for value in graph.inputs:
        if notes := _notes(value):
            lines.append(f"{indent}  %{value.name}{notes}")
    for value in graph.initializers.values():
        lines.append(f"{indent}  {_typed(value)} = {_tensor(value.const_value)}{_notes(value)}")
    lines += _nodes(graph, indent + "  ")
    lines.append(f"{indent}}}")
    return lines


def _nodes(graph: ir.Graph | ir.Function, indent: str) -> list[str]:
    lines = []
    for node in graph:
        bodies = []
        attributes = []
        for attribute in sorted(node.attributes.values(), key=lambda a: a.name):
            if attribute.is_ref():
                attributes.append(f"{attribute.name}=@{attribute.ref_attr_name}")
            elif attribute.type == ir.AttributeType.GRAPH:
                bodies += _graph(f"{attribute.name} =", attribute.as_graph(), indent + "  ")
            elif attribute.type == ir.AttributeType.GRAPHS:
                for i, body in enumerate(attribute.as_graphs()):
                    bodies += _graph(f"{attribute.name}[{i}] =", body, indent + "  ")
            else:
                attributes.append(f"{attribute.name}={_attribute(attribute)}")
        domain = f"{node.domain}::" if node.domain not in ("", "ai.onnx") else ""
        outputs = ", ".join(_typed(v) for v in node.outputs)
        options = f" {{{' '.join(attributes)}}}" if attributes else ""
        inputs = ", ".join(_input(node, i) for i in range(len(node.inputs)))
        output_notes = "".join(_notes(v) for v in node.outputs)
        lines.append(
            f"{indent}{outputs} = {domain}{node.op_type}({inputs}){options} @{node.name or ''}{_notes(node)}{output_notes}"
        )
        lines += bodies
    return lines


def _input(node: ir.Node, index: int) -> str:
    """An input's name; for scale and zero point of Q/DQ nodes the value as well."""
    value = node.inputs[index]
    if value is None:
        return "_"
    if index in (1, 2) and node.op_type.endswith(("QuantizeLinear", "DequantizeLinear")):
        array = constant_array(value)
        if array is not None:
            return f"%{value.name}={_array(array)}"
    return f"%{value.name}"


def _typed(value: ir.Value) -> str:
    return f"%{value.name or ''}: {_type(value)}"


def _type(value: ir.Value) -> str:
    if value.type is None:
        return "?"
    if not isinstance(value.type, ir.TensorType):
        return str(value.type)
    shape = (
        "[?]" if value.shape is None else "[" + ",".join(str(d) if d is not None else "?" for d in value.shape) + "]"
    )
    return value.type.dtype.name.lower() + shape.replace("None", "?")


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype.name.lower()}{list(tensor.shape)}{_tensor(tensor)}"
    value = attribute.value
    if isinstance(value, bytes):
        return f"{len(value)} bytes sha256:{hashlib.sha256(value).hexdigest()[:8]}"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple | list):
        return "[" + ",".join(str(v) for v in value) + "]"
    return str(value)


def _tensor(tensor: ir.TensorProtocol | None) -> str:
    if tensor is None:
        return "<no data>"
    return (
        _array(tensor.numpy())
        if tensor.size <= MAX_SHOWN
        else f"sha256:{hashlib.sha256(tensor.tobytes()).hexdigest()[:8]}"
    )


def _array(array: npt.NDArray[np.generic]) -> str:
    if array.size > MAX_SHOWN:
        return f"sha256:{hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:8]}"
    items = [_number(x) for x in array.ravel()]
    return items[0] if array.ndim == 0 else "[" + ",".join(items) + "]"


def _number(x: np.generic) -> str:
    if x.dtype.name.startswith(("int", "uint")):  # int4 and its like are no integers to numpy
        return repr(int(x))
    value = x.item() if x.dtype.kind in "bOSU" else float(x)
    if isinstance(value, bytes):
        return json.dumps(value.decode("utf-8", "replace"))
    return repr(value)


def _notes(holder: Annotatable) -> str:
    """Annotations (encodings in short form) and the scope that metadata gives, after a `;`."""
    notes = []
    if isinstance(holder, ir.Node) and (NAME_SCOPES in holder.metadata_props or SCOPE in holder.metadata_props):
        notes.append(f"scope={scope_of(holder)}")
    for annotation in annotation_kinds():
        value = annotation.get(holder)
        if value is None:
            continue
        if annotation is ENCODING:
            zero_points = "" if value.is_symmetric else f" zp={_short(value.zero_point)}"
            axis = "" if value.axis is None else f" axis={value.axis}"
            notes.append(f"encoding={value.dtype.name.lower()}×{_short(value.scale)}{zero_points}{axis}")
        elif annotation is ORIGIN:
            notes.append(f"origin={','.join(value.nodes)}")
        else:
            data = json.dumps(annotation.to_json(value), sort_keys=True, separators=(",", ":"))
            notes.append(f"{annotation.key.removeprefix('qdqtool.')}={data}")
    return f" ; {' '.join(notes)}" if notes else ""


def _short(numbers: tuple[int | float, ...]) -> str:
    return repr(numbers[0]) if len(numbers) == 1 else f"[{len(numbers)}×]"
