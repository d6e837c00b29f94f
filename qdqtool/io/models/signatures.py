"""Nodes against the signatures of their operators: kinds of attributes, numbers of inputs and outputs.

onnxruntime refuses a file in which one is otherwise, and onnx's shape functions in C++ count on it; passes may then read what the
specification has. Signatures of ONNX are those of the installed onnx, of the version that the model imports; those of
``com.microsoft`` stand in ``contributed.json``."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files

import onnx
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.graph.shapes.guards import LOCK

from qdqtool.io.models.proto_tensors import KNOWN

A = onnx.AttributeProto
MICROSOFT = "com.microsoft"
_KINDS = {
    "f": A.FLOAT, "i": A.INT, "s": A.STRING, "t": A.TENSOR, "g": A.GRAPH, "F": A.FLOATS, "I": A.INTS, "S": A.STRINGS,
}  # fmt: skip
#: What a person calls them.
_WORDS: dict[int, str] = {
    A.FLOAT: "a number", A.INT: "an integer", A.STRING: "a text", A.TENSOR: "a tensor", A.GRAPH: "a graph",
    A.FLOATS: "numbers", A.INTS: "integers", A.STRINGS: "texts", A.TENSORS: "tensors", A.GRAPHS: "graphs",
    A.TYPE_PROTO: "a type", A.TYPE_PROTOS: "types", A.SPARSE_TENSOR: "a sparse tensor", A.SPARSE_TENSORS: "sparse tensors",
}  # fmt: skip
_LATEST = 2**31 - 1
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
#: Attributes that must be positive wherever they stand: onnx divides by them.
POSITIVE = frozenset({"blocksize", "dilations", "group", "kernel_shape", "num_outputs", "strides"})
#: Operators that draw random numbers.
_DRAWING = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
#: Attributes that say a data type, by number.
TYPES = frozenset({"dtype", "output_datatype", "output_dtype", "to"})


@dataclass(frozen=True)
class Signature:
    """What an operator takes.

    Args:
        inputs: the least number of inputs and the greatest.
        outputs: likewise.
        kinds: attribute → its kind; those of other versions of the operator are among them.
        needed: attributes that it must have.
        many: the input from which on it takes any number, none of which may be left out; None where it takes so many, or it is
            not known.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    kinds: Mapping[str, int]
    needed: tuple[str, ...]
    many: int | None = None

    def check(self, node: onnx.NodeProto, where: str) -> None:
        """Raise `ModelError` for the first thing of ``node`` that is not as the operator wants it."""
        for attribute in node.attribute:
            self._check_attribute(attribute, node.op_type, where)
        missing = [name for name in self.needed if all(name != a.name for a in node.attribute)]
        if missing:
            raise ModelError(f"it has no attribute {missing[0]!r}", where=where, hint=f"{node.op_type} needs one")
        if self.many is not None and "" in node.input[self.many :]:  # onnxruntime ends the process on one
            message = f"it leaves out one of the inputs of which {node.op_type} takes any number"
            raise ModelError(message, where=where, hint="export the model again")
        for what, values, (least, most) in (("input", node.input, self.inputs), ("output", node.output, self.outputs)):
            if not least <= len(values) <= most:
                wanted = f"{least}" if least == most else f"{least} to {most}" if most < _LATEST else f"{least} or more"
                message = (
                    f"it has {len(values)} {what}{'s' if len(values) != 1 else ''}, where {node.op_type} has {wanted}"
                )
                raise ModelError(message, where=where, hint="export the model again")

    def _check_attribute(self, attribute: onnx.AttributeProto, op_type: str, where: str) -> None:
        name, kind = attribute.name, attribute.type
        wanted = self.kinds.get(name, kind)
        problem = ""
        if kind != wanted:
            problem = f"is {_WORDS.get(kind, 'nothing')}, where {op_type} takes {_WORDS[wanted]}"
        elif attribute.ref_attr_name or name not in self.kinds:
            return
        elif kind == A.INT and name in TYPES and attribute.i not in (KNOWN if name == "to" else KNOWN | {0}):
            problem = f"is {attribute.i}, which is no data type"
        elif name == "batch_dims" and attribute.i < 0:  # onnx reads before its arrays
            problem = f"is {attribute.i}, and must not be negative"
        elif kind in (A.INT, A.INTS) and name in POSITIVE:
            values = [attribute.i] if kind == A.INT else list(attribute.ints)
            problem = f"is {values[:8]}, and must be positive" if any(value < 1 for value in values) else ""
        if problem:
            raise ModelError(f"its attribute {name!r} {problem}", where=where, hint="export the model again")


def _check_distribution(node: onnx.NodeProto, where: str) -> None:
    """Refuse random numbers of no width: onnxruntime ends the process on them, by an assertion of its standard library."""
    given = {"scale": 1.0, "low": 0.0, "high": 1.0} | {a.name: a.f for a in node.attribute if a.type == A.FLOAT}
    if not (given["scale"] > 0 and given["low"] <= given["high"]):
        raise ModelError(
            "it draws from a range of no width", where=where, hint="its scale is above 0, and low not above high"
        )


@dataclass(frozen=True)
class Signatures:
    """The signatures that hold in a model or function.

    Args:
        versions: of the operator sets that it imports.
        own: those of the local functions, by domain, name and overload.
    """

    versions: Mapping[str, int]
    own: Mapping[tuple[str, str, str], Signature]

    def check(self, node: onnx.NodeProto, where: str) -> None:
        """`Signature.check` of ``node``; what nobody knows passes."""
        signature = self._signature(node)
        if signature is not None:
            signature.check(node, where)
        if node.op_type in _DRAWING and node.domain in ("", "ai.onnx"):
            _check_distribution(node, where)

    def _signature(self, node: onnx.NodeProto) -> Signature | None:
        own = self.own.get((node.domain, node.op_type, node.overload))
        domain = "" if node.domain == "ai.onnx" else node.domain
        known = own if own is not None else _contributed().get(f"{domain}::{node.op_type}")
        if known is None and domain in self.versions and domain != MICROSOFT:
            known = _known(node.op_type, domain, self.versions[domain])
        return known


def function_signature(function: onnx.FunctionProto) -> Signature:
    """The signature of a local function: it has no further inputs and outputs; its parameters are of the kinds that its
    nodes take them for."""
    taken = [attribute for node in function.node for attribute in node.attribute if attribute.ref_attr_name]
    kinds = {attribute.ref_attr_name: attribute.type for attribute in taken if attribute.type in _WORDS}
    return Signature((0, len(function.input)), (0, len(function.output)), kinds, ())


@functools.cache
def _known(op_type: str, domain: str, version: int) -> Signature | None:
    with LOCK:  # what inference lays over the schemas is none
        return _of_onnx(op_type, domain, version)


def _of_onnx(op_type: str, domain: str, version: int) -> Signature | None:
    schema = next(_versions(op_type, domain, version), None)
    if schema is None:
        return None
    is_newer = not domain and version > onnx.defs.onnx_opset_version()  # it may take more by now
    most = (_LATEST, _LATEST) if is_newer else (schema.max_input, schema.max_output)
    kinds = {
        name: _number(a)
        for each in reversed([*_versions(op_type, domain, _LATEST)])
        for name, a in each.attributes.items()
    }
    kinds |= {name: _number(a) for name, a in schema.attributes.items()}
    if op_type == "Cast" and not domain:
        kinds["to"] = A.INT  # no runtime has the Cast to a text of opset 5
    needed = tuple(name for name, a in schema.attributes.items() if a.required)
    many = next((place for place, formal in enumerate(schema.inputs) if formal.option == _VARIADIC), None)
    return Signature((schema.min_input, most[0]), (schema.min_output, most[1]), kinds, needed, many)


def _versions(op_type: str, domain: str, most: int) -> Iterator[onnx.defs.OpSchema]:
    """The schemas of an operator, the newest first."""
    while onnx.defs.has(op_type, most, domain):
        schema = onnx.defs.get_schema(op_type, most, domain)
        yield schema
        most = schema.since_version - 1


def _number(attribute: onnx.defs.OpSchema.Attribute) -> int:
    return int(A.AttributeType.Value(str(attribute.type).rpartition(".")[2]))


@functools.cache
def _contributed() -> dict[str, Signature]:
    """Signatures of onnxruntime's operators; later versions may take more inputs and outputs than are known here."""
    rows = json.loads((files(__package__) / "contributed.json").read_text(encoding="utf-8"))
    return {
        name: Signature(
            (row["least"][0], _LATEST), (row["least"][1], _LATEST),
            {key: _KINDS[kind] for key, kind in row["kinds"].items()}, tuple(row["needed"]),
        )
        for name, row in rows.items()
    }  # fmt: skip
