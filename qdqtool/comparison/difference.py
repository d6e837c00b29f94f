"""What differs between two models, matched by name: graph ends, nodes, attributes, initializers, QDQ encodings, opsets."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir
from qdq_passes.analysis.qdq_pairs import Pair, is_dequantize, is_quantize, qdq_pairs
from qdq_passes.analysis.uses import all_nodes

#: Elements up to which an initializer's values are shown instead of its hash.
SHOWN = 8


@dataclass(frozen=True)
class Difference:
    """One difference.

    Args:
        kind: ``opset``, ``ir_version``, ``input``, ``output``, ``node``, ``operator``, ``attribute``, ``wiring``,
            ``initializer`` or ``encoding``.
        where: name of the node, value or tensor.
        a: what A has, None when it lacks it.
        b: what B has, None when it lacks it.
    """

    kind: str
    where: str
    a: Any
    b: Any

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def describe(kind: str, value: Any) -> str:
    """One side of a difference in words, for people: ``int8 scale 2^-5, weight pair``; ``-`` for what is not there."""
    if value is None:
        return "-"
    if kind == "encoding" and isinstance(value, dict):
        return _encoding_text(value)
    if isinstance(value, list):
        return f"[{', '.join('' if item is None else str(item) for item in value)}]"
    return str(value)


def _encoding_text(data: dict[str, Any]) -> str:
    form = "stored integers" if data["stored"] else "pair"
    if "dtype" not in data:
        return f"scale {data['scale']}, {data['kind']}, {form}"
    scales, zero_points = _flat(data["scale"]), _flat(data["zero_point"])
    axis = "" if data["axis"] is None else f" on axis {data['axis']}"
    blocks = f" in blocks of {data['block_size']}" if data["block_size"] else ""
    scale = _scale_text(scales[0]) if len(scales) == 1 else f"{_scale_text(min(scales))}..{_scale_text(max(scales))}"
    many = f" ({len(scales)}{axis}{blocks})" if len(scales) > 1 else axis
    zero = f", zero point {min(zero_points)}" if any(zero_points) and min(zero_points) == max(zero_points) else ""
    zero = zero or (f", zero points {min(zero_points)}..{max(zero_points)}" if any(zero_points) else "")
    return f"{data['dtype']} scale {scale}{many}{zero}, {data['kind']}, {form}"


def _scale_text(scale: float) -> str:
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:.6g}"


def _flat(value: Any) -> list[Any]:
    return [x for item in value for x in _flat(item)] if isinstance(value, list) else [value]


def differences(a: ir.Model, b: ir.Model) -> list[Difference]:
    """Differences of B against A; empty when they are equal up to metadata and order.

    Q and DQ nodes and their parameters appear once, as the ``encoding`` of the tensor they stand on.
    """
    found = _mapping("opset", _opsets(a), _opsets(b))
    found += _mapping("ir_version", {"model": a.ir_version}, {"model": b.ir_version})
    found += _mapping("input", _ends(a.graph.inputs), _ends(b.graph.inputs))
    found += _mapping("output", _ends(a.graph.outputs), _ends(b.graph.outputs))
    found += _mapping("encoding", _encodings(a), _encodings(b))
    found += _nodes(a, b)
    return found + _mapping("initializer", _initializers(a), _initializers(b))


def _mapping(kind: str, a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    keys = list(dict.fromkeys([*a, *b]))
    return [Difference(kind, key, a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)]


def _opsets(model: ir.Model) -> dict[str, Any]:
    return {domain or "ai.onnx": version for domain, version in model.opset_imports.items()}


def _ends(values: Any) -> dict[str, Any]:
    return {v.name or "": f"{v.type} {v.shape}" for v in values}


def _encodings(model: ir.Model) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in qdq_pairs(model):
        key = pair.tensor if pair.tensor not in found else f"{pair.tensor} ({pair.dq.name})"
        found[key] = _encoding(pair)
    return found


def _encoding(pair: Pair) -> dict[str, Any]:
    encoding = pair.encoding
    data: dict[str, Any] = encoding.to_json() if encoding is not None else {"scale": "computed at run time"}
    return {**data, "kind": pair.kind, "stored": pair.q is None}


def _nodes(a: ir.Model, b: ir.Model) -> list[Difference]:
    in_a, in_b = _by_name(a), _by_name(b)
    found = []
    for name in dict.fromkeys([*in_a, *in_b]):
        left, right = in_a.get(name), in_b.get(name)
        if left is None or right is None:
            found.append(Difference("node", name, left and left.op_type, right and right.op_type))
            continue
        if (left.domain, left.op_type) != (right.domain, right.op_type):
            found.append(Difference("operator", name, left.op_type, right.op_type))
        attributes = _mapping("attribute", _attributes(left), _attributes(right))
        found += [Difference("attribute", f"{name}.{d.where}", d.a, d.b) for d in attributes]
        if _inputs(left) != _inputs(right):
            found.append(Difference("wiring", name, _inputs(left), _inputs(right)))
    return found


def _by_name(model: ir.Model) -> dict[str, ir.Node]:
    found: dict[str, ir.Node] = {}
    for node in all_nodes(model):
        if not (is_quantize(node) or is_dequantize(node)):
            key = node.name or node.op_type
            while key in found:
                key += "'"
            found[key] = node
    return found


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {a.name: _attribute(a) for a in node.attributes.values()}


def _attribute(attribute: ir.Attr) -> Any:
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "graph"
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor(attribute.as_tensor())
    value = attribute.value
    return (
        list(value)
        if isinstance(value, tuple | list)
        else value
        if isinstance(value, int | float | str)
        else str(value)
    )


def _inputs(node: ir.Node) -> list[str | None]:
    """Names of the inputs, looking through QDQ pairs to the float value."""
    return [None if v is None else _float_name(v) for v in node.inputs]


def _float_name(value: ir.Value) -> str:
    producer = value.producer()
    if producer is None or not is_dequantize(producer) or producer.inputs[0] is None:
        return value.name or ""
    integers = producer.inputs[0]
    q = integers.producer()
    if q is not None and is_quantize(q) and q.inputs[0] is not None:
        return (q.inputs[0].name or "").removesuffix("_QuantizeLinear_Input")
    return (integers.name or "").removesuffix("_quantized")


def _initializers(model: ir.Model) -> dict[str, Any]:
    parameters = {v for n in all_nodes(model) if is_quantize(n) or is_dequantize(n) for v in n.inputs[1:]}
    return {
        name.removesuffix("_quantized"): _tensor(value.const_value)
        for graph in model.graphs()
        for name, value in graph.initializers.items()
        if value not in parameters and value.const_value is not None
    }


def _tensor(tensor: ir.TensorProtocol | None) -> str:
    if tensor is None:
        return "no data"
    head = f"{tensor.dtype.name.lower()}{list(tensor.shape.numpy())}"
    if tensor.size <= SHOWN:
        return f"{head} {tensor.numpy().tolist()}"
    return f"{head} sha256:{hashlib.sha256(tensor.tobytes()).hexdigest()[:12]}"
