"""Find what differs between two models, matched by name: graph ends, nodes, attributes, initializers, encodings, opsets."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import UNNAMED
from qdq_passes.graph.nesting import places
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.encoding import nested
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.qdq.look.pairs import Pair, encoding_of, qdq_pairs

#: Elements up to which an initializer's values are shown instead of its hash.
SHOWN = 8


@dataclass(frozen=True)
class Difference:
    """One difference.

    Args:
        kind: ``opset``, ``ir_version``, ``input``, ``output``, ``node``, ``operator``, ``attribute``, ``wiring``,
            ``initializer`` or ``encoding``.
        where: name of the node, value or tensor; in a body or function followed by `` (in PATH)``.
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


def differences(a: ir.Model, b: ir.Model) -> list[Difference]:
    """Differences of B against A; empty when they are equal up to metadata and order.

    QDQ pairs and their parameters appear once, as the ``encoding`` of the tensor they stand on.
    """
    left, right = _Side(a), _Side(b)
    left.match_nameless(right)
    right.match_nameless(left)
    found = _mapping("opset", _opsets(a), _opsets(b))
    found += _mapping("ir_version", {"model": a.ir_version}, {"model": b.ir_version})
    for kind in ("input", "output"):
        found += _mapping(kind, left.ends(kind), right.ends(kind))
    pairs_a, pairs_b = left.by_tensor(), right.by_tensor()
    found += _mapping("encoding", *({key: _encoding(p) for key, p in pairs.items()} for pairs in (pairs_a, pairs_b)))
    found += _nodes(left, right)
    for key in [key for key in pairs_a if key in pairs_b]:
        readers_a, readers_b = left.readers(pairs_a[key]), right.readers(pairs_b[key])
        if readers_a != readers_b:
            found.append(Difference("wiring", f"{key} (readers of the pair)", readers_a, readers_b))
    requantized = {key for key in pairs_a if key in pairs_b and _is_requantized(pairs_a[key], pairs_b[key])}
    weights = _mapping("initializer", left.initializers(), right.initializers())
    return found + [d for d in weights if d.where not in requantized]


class _Side:
    """One of the models, with its QDQ pairs looked through.

    Args:
        model: the model.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.places = places(model)
        self.place = {node: path for path, graph in self.places.items() for node in graph}
        self.pairs = qdq_pairs(model)
        self.paired = {node for pair in self.pairs for node in (pair.q, pair.dq) if node is not None}
        self.by_result: set[ir.Node] = set()
        self._names: dict[ir.Value, str] = {}
        for pair in self.pairs:
            for value in (pair.source, pair.output):
                if value is not None and not (
                    value.is_graph_input() or (value is pair.output and value.is_graph_output())
                ):
                    self._names.setdefault(value, pair.tensor)

    def name(self, value: ir.Value | None) -> str | None:
        """Name of ``value``; of what a pair makes of a value, the name of that value."""
        return None if value is None else self._names.get(value, value.name or "")

    def ends(self, kind: str) -> dict[str, Any]:
        """Inputs or outputs: of the main graph by name, type and shape; of each body and function its names in order."""
        lists = {path: graph.inputs if kind == "input" else graph.outputs for path, graph in self.places.items()}
        inner = {path: [self.name(v) for v in values] for path, values in lists.items() if path}
        return {**{v.name or "": f"{v.type} {v.shape}" for v in lists[""]}, **inner}

    def by_tensor(self) -> dict[str, Pair]:
        """Each pair by the name of its tensor."""
        found: dict[str, Pair] = {}
        for pair in self.pairs:
            key = _in(self.place[pair.dq], pair.tensor)
            found[key if key not in found else f"{key} ({pair.dq.name})"] = pair
        return found

    def match_nameless(self, other: _Side) -> None:
        """Let nodes have a label that one of ``other`` has which its file gives no name, where their own name is not there."""
        named = {(path, node.name) for node, path in other.place.items() if _is_named(node)}
        nameless = {(path, other.result(node)) for node, path in other.place.items() if not _is_named(node)}
        for node, path in self.place.items():
            if _is_named(node) and (path, node.name) not in named and (path, self.result(node)) in nameless:
                self.by_result.add(node)

    def label(self, node: ir.Node) -> str:
        """Name of ``node``, or what it writes where its file, or that of the other model, gives it none."""
        return node.name or "" if _is_named(node) and node not in self.by_result else self.result(node)

    def result(self, node: ir.Node) -> str:
        """What ``node`` writes: ``Relu → h``."""
        written = [name for value in node.outputs if (name := self.name(value))]
        return f"{node.op_type} → {', '.join(written)}" if written else node.op_type

    def nodes(self) -> dict[str, ir.Node]:
        """Every node that is in no pair, by name."""
        found: dict[str, ir.Node] = {}
        for node, path in self.place.items():
            if node not in self.paired:
                key = _in(path, self.label(node))
                while key in found:
                    key += "'"
                found[key] = node
        return found

    def readers(self, pair: Pair) -> list[str]:
        """Who reads what the pair makes, not the float value before it."""
        return sorted({self.label(node) for node in pair.output.consumers()})

    def initializers(self) -> dict[str, Any]:
        """Every initializer by name, those left out that are only parameters of pairs; a stored weight by its float name."""
        parameters = {v for node in self.paired for v in node.inputs[1:] if v is not None}
        parameters = {v for v in parameters if all(use.node in self.paired and use.idx for use in v.uses())}
        found: dict[str, Any] = {}
        for path, graph in self.places.items():
            values = graph.initializers.values() if isinstance(graph, ir.Graph) else ()
            taken = {v.name for v in values}
            for value in values:
                if value in parameters or value.const_value is None:
                    continue
                name = self.name(value)
                found[_in(path, (value.name if name in taken else name) or "")] = _tensor(value.const_value)
        return found


def _is_named(node: ir.Node) -> bool:
    """Whether ``node`` has a name in its file; in memory each has one."""
    return bool(node.name) and node.meta.get(UNNAMED) != node.name


def _in(path: str, name: str) -> str:
    return f"{name} (in {path})" if path else name


def _mapping(kind: str, a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    keys = list(dict.fromkeys([*a, *b]))
    return [Difference(kind, key, a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)]


def _opsets(model: ir.Model) -> dict[str, Any]:
    return {domain or "ai.onnx": version for domain, version in model.opset_imports.items()}


def _encoding(pair: Pair) -> dict[str, Any]:
    """The encoding of the pair, and under ``quantized_with`` what its QuantizeLinear does otherwise."""
    data = {
        **_half(pair.dq),
        "kind": pair.kind,
        "stored": pair.q is None,
        "domain": pair.dq.domain.removeprefix("ai.onnx"),
    }
    half = _half(pair.q) if pair.q is not None else {}
    other = {key: value for key, value in half.items() if value != data.get(key)}
    return {**data, "quantized_with": other} if other else data


def _is_requantized(a: Pair, b: Pair) -> bool:
    """Whether both store one tensor, in two encodings: no value differs by more than half a step of each."""
    integers = [constant_array(pair.stored) if pair.q is None else None for pair in (a, b)]
    encodings = [pair.encoding for pair in (a, b)]
    if encodings[0] == encodings[1] or any(x is None for x in (*integers, *encodings)):
        return False
    shapes = {x.shape for x in integers if x is not None}
    if len(shapes) != 1:
        return False
    real, step = [], np.zeros(())
    for x, encoding in zip(integers, encodings, strict=True):
        assert x is not None
        assert encoding is not None
        real.append(dequantize(x, encoding, np.float64))
        step = step + encoding.granularity.expand(np.array(encoding.scale).reshape(encoding.shape), x.shape)
    return bool((np.abs(real[0] - real[1]) <= step / 2).all())


def _half(node: ir.Node) -> dict[str, Any]:
    encoding = encoding_of(node)
    if encoding is None:
        scale = node.inputs[1].name if len(node.inputs) > 1 and node.inputs[1] is not None else "nothing"
        data: dict[str, Any] = {"scale": f"computed at run time ({scale})"}
    else:
        position = encoding.position
        data = {**encoding.to_json(), "position": None if position is None else nested(position, encoding.shape)}
    attributes = {name: value for name, value in _attributes(node).items() if name not in ("axis", "block_size")}
    return {**data, "attributes": attributes} if attributes else data


def _nodes(a: _Side, b: _Side) -> list[Difference]:
    in_a, in_b = a.nodes(), b.nodes()
    found = []
    for name in dict.fromkeys([*in_a, *in_b]):
        left, right = in_a.get(name), in_b.get(name)
        if left is None or right is None:
            found.append(Difference("node", name, left and left.op_type, right and right.op_type))
            continue
        if _operator(left) != _operator(right):
            found.append(Difference("operator", name, _operator(left), _operator(right)))
        attributes = _mapping("attribute", _attributes(left), _attributes(right))
        found += [Difference("attribute", f"{name}.{d.where}", d.a, d.b) for d in attributes]
        for what, x, y in (("", left.inputs, right.inputs), (" (outputs)", left.outputs, right.outputs)):
            names_a, names_b = [a.name(v) for v in x], [b.name(v) for v in y]
            if names_a != names_b:
                found.append(Difference("wiring", f"{name}{what}", names_a, names_b))
    return found


def _operator(node: ir.Node) -> str:
    return "::".join(filter(None, (node.domain.removeprefix("ai.onnx"), node.op_type, node.overload)))


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


def _tensor(tensor: ir.TensorProtocol | None) -> str:
    if tensor is None:
        return "no data"
    head = f"{tensor.dtype.name.lower()}{list(tensor.shape.numpy())}"
    if tensor.size <= SHOWN:
        return f"{head} {tensor.numpy().tolist()}"
    return f"{head} sha256:{hashlib.sha256(tensor.tobytes()).hexdigest()[:12]}"


def described_difference(kind: str, value: Any) -> str:
    """One side of a difference in words, for people: ``int8 scale 2^-5, weight pair``; ``-`` for what is not there."""
    if value is None:
        return "-"
    if kind == "encoding" and isinstance(value, dict):
        return _encoding_text(value)
    if isinstance(value, list):
        return f"[{', '.join('' if item is None else str(item) for item in value)}]"
    return str(value)


def _encoding_text(data: dict[str, Any]) -> str:
    other = data.get("quantized_with")
    unlike = f", quantized with {_half_text({**data, **other})}" if other else ""
    domain = f" of {data['domain']}" if data.get("domain") else ""
    return f"{_half_text(data)}, {data['kind']}, {'stored integers' if data['stored'] else 'pair'}{domain}{unlike}"


def _half_text(data: dict[str, Any]) -> str:
    """What one of the two nodes does."""
    attributes = "".join(f", {name} {value}" for name, value in data.get("attributes", {}).items())
    if "dtype" not in data or isinstance(data["scale"], str):
        return f"scale {data['scale']}{attributes}"
    scales, zero_points = _flat(data["scale"]), _flat(data.get("zero_point", 0))
    axis = "" if data.get("axis") is None else f" on axis {data['axis']}"
    blocks = f" in blocks of {data['block_size']}" if data.get("block_size") else ""
    scale = _scale_text(scales[0]) if len(scales) == 1 else f"{_scale_text(min(scales))}..{_scale_text(max(scales))}"
    many = f" ({len(scales)}{axis}{blocks})" if len(scales) > 1 else axis
    zero = f", zero point {min(zero_points)}" if any(zero_points) and min(zero_points) == max(zero_points) else ""
    zero = zero or (f", zero points {min(zero_points)}..{max(zero_points)}" if any(zero_points) else "")
    return f"{data['dtype']} scale {scale}{many}{zero}{attributes}"


def _scale_text(scale: float) -> str:
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:.6g}"


def _flat(value: Any) -> list[Any]:
    return [x for item in value for x in _flat(item)] if isinstance(value, list) else [value]
