"""Local functions of an attention: equal ones are made once, and a call becomes its nodes again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from qdq_passes.errors import ModelError
from qdq_passes.graph.annotate import ORIGIN, Origin
from qdq_passes.graph.build import Builder
from qdq_passes.graph.edit import graph_of, inherit
from qdq_passes.graph.nesting import INHERITED_KEYS
from qdq_passes.graph.uses import constant_array, is_standard
from qdq_passes.numerics.documents import json_of, typed

#: Domain of the functions, and the version of it.
DOMAIN, VERSION = "qdqtool.llm", 1

#: Metadata of a call: name, outputs, origin and scope of each node that stood in its place, in the order of the function; JSON.
REMEMBERED = "qdqtool.nodes"


class Functions:
    """The functions of one model; a body that is there already is used again.

    Args:
        model: gets the functions.
        name: name of the first one; others are called ``name_1``…
    """

    def __init__(self, model: ir.Model, name: str) -> None:
        self._model, self._name = model, name
        self._known = {
            signature_of(function): function for function in model.functions.values() if function.domain == DOMAIN
        }

    def call(
        self, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], input_names: Sequence[str],
        outputs: Sequence[ir.Value], output_names: Sequence[str],
    ) -> ir.Node:  # fmt: skip
        """A call that computes ``outputs`` of ``inputs``, not yet in a graph and without a name; ``nodes`` stay where they are.

        Constants stand inside of the function. The call remembers what the nodes are called, as `REMEMBERED`.

        Args:
            nodes: in order, without bodies.
            inputs: all that they read and do not make, but small constants.
            input_names: names of the function's inputs.
            outputs: what they make and others read.
            output_names: names of the function's outputs.
        """
        given = [ir.Value(name=name, type=v.type, shape=v.shape) for v, name in zip(inputs, input_names, strict=True)]
        values: dict[ir.Value, ir.Value] = {}
        for old, new in zip(inputs, given, strict=True):
            values.setdefault(old, new)
        named = dict(zip(outputs, output_names, strict=True))
        body, records = list[ir.Node](), list[dict[str, list[str]]]()
        for node in nodes:
            for operand in node.inputs:
                if operand is not None and operand not in values:
                    body.append(_constant(operand, f"constant_{len(body)}", node))
                    records.append({"name": [operand.name or ""]})
                    values[operand] = body[-1].outputs[0]
            copy = _inside(node, len(body), values, named)
            body.append(copy)
            records.append(_record(node))
            values |= dict(zip(node.outputs, copy.outputs, strict=True))
        imports = {domain: version for domain, version in self._model.opset_imports.items() if domain == ""}
        graph = ir.Graph(given, [values[v] for v in outputs], nodes=body, opset_imports=imports)
        results = [ir.Value(name=old.name, type=old.type, shape=old.shape) for old in outputs]
        made = ir.Node(DOMAIN, self._shared(graph).name, inputs, outputs=results)
        made.metadata_props[REMEMBERED] = json.dumps(records, separators=(",", ":"))
        return inherit(made, nodes)

    def _shared(self, graph: ir.Graph) -> ir.Function:
        name, count = self._name, 0
        while (DOMAIN, name, "") in self._model.functions:
            count += 1
            name = f"{self._name}_{count}"
        graph.name = name
        function = ir.Function(DOMAIN, name, graph=graph, attributes=[])
        signature = signature_of(function)
        if signature not in self._known:
            self._known[signature] = function
            self._model.functions[function.identifier()] = function
            self._model.opset_imports[DOMAIN] = VERSION
        return self._known[signature]


def signature_of(function: ir.Function) -> tuple[object, ...]:
    """Equal for functions that compute the same by the same nodes, on values of the same types and shapes."""
    numbers = {value: number for number, value in enumerate(function.inputs)}
    lines: list[object] = [(str(value.type), str(value.shape)) for value in function.inputs]
    for node in function:
        read = tuple(None if v is None else numbers[v] for v in node.inputs)
        written = tuple((str(value.type), str(value.shape)) for value in node.outputs)
        lines.append((node.domain, node.op_type, read, _attributes(node), written))
        for output in node.outputs:
            numbers[output] = len(numbers)
    return (*lines, tuple(numbers[output] for output in function.outputs))


def _attributes(node: ir.Node) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((attribute.name, _text(attribute)) for attribute in node.attributes.values()))


def _text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        tensor = attribute.as_tensor()
        return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.numpy().tobytes().hex()}"
    return f"{attribute.type} {attribute.ref_attr_name or attribute.value}"


def _constant(value: ir.Value, name: str, near: ir.Node) -> ir.Node:
    if value.const_value is not None:
        tensor = value.const_value
    else:
        array = constant_array(value)
        assert array is not None
        tensor = ir.tensor(array)
    held = ir.tensor(tensor.numpy(), dtype=tensor.dtype)
    output = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    return inherit(ir.Node("", "Constant", [], [ir.AttrTensor("value", held)], outputs=[output], name=name), [near])


def _inside(node: ir.Node, number: int, values: Mapping[ir.Value, ir.Value], named: Mapping[ir.Value, str]) -> ir.Node:
    """``node`` as the one of this ``number`` in a function; it reads ``values`` and writes ``named`` ones."""
    name = f"{node.op_type}_{number}"
    outputs = [
        ir.Value(name=named.get(old, f"{name}_Output{i or ''}"), type=old.type, shape=old.shape)
        for i, old in enumerate(node.outputs)
    ]
    read = [None if v is None else values[v] for v in node.inputs]
    copy = ir.Node(node.domain, node.op_type, read, list(node.attributes.values()), outputs=outputs, name=name)
    return inherit(copy, [node])


def _record(node: ir.Node) -> dict[str, list[str]]:
    origin = ORIGIN.get(node)
    return {
        "name": [node.name or ""],
        "outputs": [value.name or "" for value in node.outputs],
        "origin": list(origin.nodes) if origin is not None else [],
        "scope": [node.metadata_props.get(key, "") for key in INHERITED_KEYS],
    }


class Inliner:
    """Puts the nodes of functions where they are called; nodes that would compute the same of the same are made once.

    Args:
        builder: of this pass.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder, self.namer = builder, builder.namer
        self._made: dict[tuple[object, ...], ir.Node] = {}

    def inline(self, call: ir.Node, function: ir.Function) -> list[ir.Value]:
        """The outputs of ``call``, by nodes before it that stand for it and have the names that it remembers."""
        values: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, call.inputs, strict=True))
        kept = set(function.outputs)
        for node, record in zip(function, _remembered(call, function), strict=True):
            if is_standard(node, "Constant"):
                tensor, base = node.attributes["value"].as_tensor(), record.get("name", [f"{call.name}_constant"])[0]
                held = self._builder.constant(graph_of(call), tensor.numpy(), tensor.dtype, base, call)
                values[node.outputs[0]] = held
                continue
            read = [None if v is None else values[v] for v in node.inputs]
            key = (node.domain, node.op_type, *read, *_attributes(node))
            if key not in self._made or kept & set(node.outputs):
                self._made[key] = self._copy(node, read, call, record)
            values |= dict(zip(node.outputs, self._made[key].outputs, strict=True))
        return [value for value in (values[output] for output in function.outputs) if value is not None]

    def _copy(
        self, node: ir.Node, read: Sequence[ir.Value | None], call: ir.Node, record: Mapping[str, tuple[str, ...]]
    ) -> ir.Node:
        """``node`` of a function before ``call``, called as it was."""
        name = record.get("name", [f"{call.name}_{node.op_type}"])[0]
        names = record.get("outputs", [f"{name}_Output{i or ''}" for i in range(len(node.outputs))])
        outputs = [
            ir.Value(name=self.namer.fresh(wanted), type=old.type, shape=old.shape)
            for wanted, old in zip(names, node.outputs, strict=True)
        ]
        is_own = any(output.name == name for output in outputs)  # a node may be called like what it writes
        name = name if is_own else self.namer.fresh(name)
        made = ir.Node(node.domain, node.op_type, read, list(node.attributes.values()), outputs=outputs, name=name)
        inherit(made, [call])
        if record:
            scopes = zip(INHERITED_KEYS, record["scope"], strict=True)
            made.metadata_props.update((key, text) for key, text in scopes if text)
            ORIGIN.clear(made)
            if record["origin"]:
                ORIGIN.set(made, Origin(tuple(record["origin"])))
        graph_of(call).insert_before(call, made)
        return made


def _remembered(call: ir.Node, function: ir.Function) -> list[dict[str, tuple[str, ...]]]:
    """What ``call`` remembers of each node of ``function``; nothing of those that are new in it.

    Raises:
        ModelError: it is of other nodes, or broken.
    """
    try:
        found = list(typed(tuple[dict[str, tuple[str, ...]], ...], json_of(call.metadata_props.get(REMEMBERED, "[]"))))
        for node, record in zip(function, found, strict=False):
            counts = {"name": 1}
            if not is_standard(node, "Constant"):
                counts |= {
                    "outputs": len(node.outputs),
                    "scope": len(INHERITED_KEYS),
                    "origin": len(record.get("origin", ())),
                }
            if record and {key: len(texts) for key, texts in record.items()} != counts:
                raise ValueError(f"it does not fit {node.op_type}")
    except ValueError as error:
        hint = "remove that entry"
        raise ModelError(f"its metadata {REMEMBERED} is broken: {error}", where=call.name, hint=hint) from error
    return [*found, *({} for _ in range(len(function) - len(found)))][: len(function)]
