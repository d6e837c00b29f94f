"""What a model holds that graphsurgeon has no place for, by name, so that it can be put back after an edit.

A snapshot: later edits of the model do not reach it, while tensors and attributes are shared, never copied.

What graphsurgeon cannot carry at all is found before the conversion, and refused with the loss named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, NoReturn, Protocol

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import all_nodes, graph_likes, label


class Documented(Protocol):
    """What has a doc string and metadata: `ir.Value`, `ir.Node`, `ir.Graph`, `ir.Model`."""

    doc_string: str | None

    @property
    def meta(self) -> Any: ...
    @property
    def metadata_props(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class Extras:
    """Doc string, metadata and annotations (``meta``, where onnx_ir also keeps ``quantization_annotation``)."""

    doc_string: str | None = None
    metadata_props: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, holder: Documented) -> Extras:
        """The present extras of ``holder``."""
        return cls(holder.doc_string, dict(holder.metadata_props), dict(holder.meta))

    def put_back(self, holder: Documented) -> None:
        """Give them to ``holder``."""
        holder.doc_string = self.doc_string
        holder.metadata_props.update(self.metadata_props)
        holder.meta.update(self.meta)


@dataclass(frozen=True)
class ValueFacts:
    """One value: its full type (with denotations), shape, and the tensor when it is an initializer."""

    extras: Extras
    type: ir.TypeProtocol | None
    shape: ir.Shape | None
    tensor: ir.TensorProtocol | None

    @classmethod
    def of(cls, value: ir.Value) -> ValueFacts:
        """The present facts of ``value``."""
        shape = value.shape.copy() if value.shape is not None else None
        return cls(Extras.of(value), value.type, shape, value.const_value if value.is_initializer() else None)


@dataclass(frozen=True)
class NodeFacts:
    """One node. ``bodies`` are the facts of its graph attributes, by attribute name."""

    extras: Extras
    name: str
    domain: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, ir.Attr]
    version: int | None
    device_configurations: tuple[Any, ...]
    bodies: Mapping[str, ScopeFacts]

    @classmethod
    def of(cls, node: ir.Node) -> NodeFacts:
        """The present facts of ``node``, bodies included."""
        return cls(
            extras=Extras.of(node),
            name=node.name or "",
            domain=node.domain,
            op_type=node.op_type,
            inputs=tuple((value.name or "") if value is not None else "" for value in node.inputs),
            outputs=tuple(value.name or "" for value in node.outputs),
            attributes=dict(node.attributes),
            version=node.version,
            device_configurations=node.device_configurations,
            bodies={
                attribute.name: ScopeFacts.of(attribute.as_graph())
                for attribute in node.attributes.values()
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref()
            },
        )


@dataclass(frozen=True)
class ScopeFacts:
    """One graph: the main graph, the body of a control-flow node, or that of a function."""

    extras: Extras = field(default_factory=Extras)
    name: str | None = None
    opset_imports: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    initializers: tuple[str, ...] = ()
    unused: frozenset[str] = frozenset()  # initializers nobody reads: graphsurgeon does not see them
    is_sorted: bool = True
    values: Mapping[str, ValueFacts] = field(default_factory=dict)
    nodes: tuple[NodeFacts, ...] = ()
    attributes: Mapping[str, ir.Attr] = field(default_factory=dict)  # of a function

    @classmethod
    def of(cls, graph: ir.Graph | ir.Function) -> ScopeFacts:
        """The present facts of ``graph``, bodies included."""
        attributes = dict(graph.attributes) if isinstance(graph, ir.Function) else {}
        graph = graph.graph if isinstance(graph, ir.Function) else graph
        values = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
        return cls(
            extras=Extras.of(graph),
            name=graph.name,
            opset_imports=dict(graph.opset_imports),
            inputs=tuple(value.name or "" for value in graph.inputs),
            initializers=tuple(graph.initializers),
            unused=frozenset(
                name for name, v in graph.initializers.items() if not v.uses() and not v.is_graph_output()
            ),
            is_sorted=is_sorted(graph),
            values={value.name: ValueFacts.of(value) for value in values if value.name},
            nodes=tuple(NodeFacts.of(node) for node in graph),
            attributes=attributes,
        )

    @cached_property
    def by_name(self) -> dict[str, NodeFacts]:
        """Nodes whose name is theirs alone."""
        names = [node.name for node in self.nodes]
        once = {name for name in names if name} - _twice(names)
        return {node.name: node for node in self.nodes if node.name in once}

    @cached_property
    def by_output(self) -> dict[str, NodeFacts]:
        """The node that produced a value."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    def domains(self) -> frozenset[str]:
        """Domains of the nodes, bodies included."""
        inner = (body.domains() for node in self.nodes for body in node.bodies.values())
        return frozenset(node.domain for node in self.nodes).union(*inner)

    @cached_property
    def inner_by_name(self) -> dict[str, NodeFacts]:
        """Nodes of this graph and of all bodies in it whose name is theirs alone."""
        nodes = list(self.nodes)
        for node in nodes:  # grows while it is walked
            nodes += [inner for body in node.bodies.values() for inner in body.nodes]
        twice = _twice(node.name for node in nodes)
        return {node.name: node for node in nodes if node.name and node.name not in twice}

    def match(self, nodes: Sequence[NamedNode], anywhere: Mapping[str, NodeFacts]) -> dict[int, NodeFacts]:
        """Which of the present ``nodes`` (by position) is which node of the snapshot.

        By its name; else, where that name does not identify it, by the value it produces; else by its name in another graph
        (``anywhere``), from where it was moved. The latter two only if the operator is the same.
        """
        names = _twice([node.name for node in nodes])
        found = {i: self.by_name[n.name] for i, n in enumerate(nodes) if n.name in self.by_name and n.name not in names}
        taken = {id(facts) for facts in found.values()}
        for i, node in enumerate(nodes):
            former = next((self.by_output[t.name] for t in node.outputs if t.name in self.by_output), None)
            if i not in found and former is not None and id(former) not in taken and former.op_type == node.op:
                found[i] = former
                taken.add(id(former))
            elif i not in found and node.name in anywhere and anywhere[node.name].op_type == node.op:
                found[i] = anywhere[node.name]
        return found


class NamedTensor(Protocol):
    """A tensor, as far as matching looks at it."""

    name: str


class NamedNode(Protocol):
    """A node of graphsurgeon, as far as matching looks at it."""

    name: str
    op: str

    @property
    def outputs(self) -> Sequence[NamedTensor]: ...


@dataclass(frozen=True)
class ModelFacts:
    """A whole model."""

    extras: Extras
    graph: ScopeFacts
    functions: Mapping[tuple[str, str], ScopeFacts]
    ir_version: int
    producer_name: str | None
    producer_version: str | None
    domain: str | None
    model_version: int | None
    device_configurations: tuple[Any, ...]

    @classmethod
    def of(cls, model: ir.Model) -> ModelFacts:
        """The present facts of ``model``."""
        return cls(
            extras=Extras.of(model),
            graph=ScopeFacts.of(model.graph),
            functions={(f.domain, f.name): ScopeFacts.of(f) for f in model.functions.values()},
            ir_version=model.ir_version,
            producer_name=model.producer_name,
            producer_version=model.producer_version,
            domain=model.domain,
            model_version=model.model_version,
            device_configurations=model.device_configurations,
        )


def is_sorted(graph: ir.Graph) -> bool:
    """Whether every node of ``graph`` stands after the nodes it reads from, its bodies included."""
    waiting = {id(node) for node in graph}
    for node in graph:
        if any(id(producer) in waiting for producer in _read_from(node) if producer is not node):
            return False
        waiting.discard(id(node))
    return True


def _read_from(node: ir.Node) -> Iterator[ir.Node]:
    """Producers of what ``node`` and its bodies read."""
    inner = (n for a in node.attributes.values() for g in _graphs(a) for n in g.all_nodes())
    for reader in (node, *inner):
        for value in reader.inputs:
            if value is not None and (producer := value.producer()) is not None:
                yield producer


def _graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else ()


def _twice(names: Iterable[str]) -> set[str]:
    """Names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


_HINT = "edit this model with passes over onnx_ir instead"
#: Attribute types that graphsurgeon leaves out of the node with a warning.
_DROPPED = {
    ir.AttributeType.TYPE_PROTO: "a type",
    ir.AttributeType.TYPE_PROTOS: "types",
    ir.AttributeType.SPARSE_TENSOR: "a sparse tensor",
    ir.AttributeType.SPARSE_TENSORS: "sparse tensors",
    ir.AttributeType.TENSORS: "a list of tensors",
    ir.AttributeType.GRAPHS: "a list of graphs",
    ir.AttributeType.UNDEFINED: "no type",
}
#: Element types whose edited values graphsurgeon writes wrongly (measured on 0.6.1): sub-byte values unpacked, float8e4m3fnuz
#: tagged as float8e4m3fn (values doubled), strings not at all.
_FNUZ = frozenset({ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2FNUZ})


def refuse_losses(model: ir.Model) -> None:
    """Refuse a model that graphsurgeon would corrupt.

    Raises:
        UnsupportedError: overloads of functions; optional or sparse types; attributes that hold types, sparse tensors, lists of
            tensors or graphs, or bytes that are not UTF-8; initializers without data.
    """
    for function in model.functions.values():
        if function.overload:
            _refuse(f"overload {function.overload!r} of a function", f"{function.domain}::{function.name}")
        for attribute in function.attributes.values():
            if attribute.value is not None:
                _check_attribute(attribute, f"{function.domain}::{function.name}")
    for node in all_nodes(model):
        if node.overload:
            _refuse(f"call of the function overload {node.overload!r}", label(node))
        for attribute in node.attributes.values():
            _check_attribute(attribute, label(node))
        for output in node.outputs:
            _check_type(output)
    for graph_like in graph_likes(model):
        main = graph_like.graph if isinstance(graph_like, ir.Function) else graph_like
        for graph in (main, *graph_like.subgraphs()):
            for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs):
                _check_type(value)
                if value.is_initializer() and value.const_value is None:
                    _refuse("initializer without data", value.name or "<unnamed value>")


def refuse_edited(dtype: ir.DataType, name: str) -> None:
    """Refuse new or edited values of an element type that graphsurgeon writes wrongly; untouched ones are put back as they were.

    Raises:
        UnsupportedError: 2- and 4-bit (and other sub-byte) types, float8 fnuz, strings.
    """
    if dtype == ir.DataType.STRING or dtype in _FNUZ or dtype.itemsize < 1:
        raise UnsupportedError(
            f"its {dtype.name} values were edited (or are new), and graphsurgeon writes {dtype.name} wrongly",
            where=name,
            hint="leave them untouched, or edit them in a pass over onnx_ir",
        )


def _check_attribute(attribute: ir.Attr, where: str) -> None:
    if attribute.is_ref():
        return
    if attribute.type in _DROPPED:
        _refuse(f"attribute {attribute.name!r}, which holds {_DROPPED[attribute.type]}", where)
    values = attribute.value if isinstance(attribute.value, tuple) else (attribute.value,)
    if any(isinstance(value, bytes) for value in values):
        _refuse(f"attribute {attribute.name!r}, whose bytes are not UTF-8", where)


def _check_type(value: ir.Value) -> None:
    kind: object = value.type
    while isinstance(kind, ir.SequenceType):
        kind = kind.elem_type
    if isinstance(kind, ir.OptionalType):
        _refuse("optional type", value.name or "<unnamed value>")
    if isinstance(kind, ir.SparseTensorType):
        _refuse("sparse tensor type", value.name or "<unnamed value>")


def _refuse(loss: str, where: str) -> NoReturn:
    raise UnsupportedError(f"graphsurgeon would lose the {loss}", where=where, hint=_HINT)
