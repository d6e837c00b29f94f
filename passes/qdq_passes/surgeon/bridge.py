"""The bridge to onnx-graphsurgeon: `to_gs`, `from_gs`, and `surgeon_pass` (defined in its own module). The only importer of
onnx_graphsurgeon, whose log goes to stderr from here on, as all our messages do.

The one graph is built from the other without a protobuf between: weights are not copied (`Weights` reads them when asked),
external data stays external, and every value of onnx_ir is one tensor of graphsurgeon, in bodies too.

*Put back by name*: metadata_props, annotations and doc strings of model, graph, functions, nodes and values; quantization
annotations; denotations and shapes of sequences; domain, versions, producer; device configurations; the order of initializers;
unused initializers; initializers that are graph inputs; weights that bodies capture (one copy, in the graph where it was).
*Refused*: see `qdq_passes.surgeon.snapshot`.
"""

from __future__ import annotations

import sys
from collections import ChainMap
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
import onnx_graphsurgeon.logger.logger as gs_logger
import onnx_ir as ir
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues
from onnx_graphsurgeon.util import misc

from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.edit import IR_OF_PLAIN_INITIALIZERS, Namer
from qdq_passes.graph.foreign import tensor_proto
from qdq_passes.surgeon import putback
from qdq_passes.surgeon.changes import same_array
from qdq_passes.surgeon.edit import FoldsShapes
from qdq_passes.surgeon.snapshot import ModelFacts, NodeFacts, ScopeFacts, is_sorted, refuse_edited, refuse_losses
from qdq_passes.surgeon.surgeon_pass import SurgeonPass, surgeon_pass

__all__ = ["SurgeonPass", "from_gs", "surgeon_pass", "to_gs"]

#: Where `to_gs` leaves the facts on the graph.
_FACTS = "qdqtool_facts"
_NOTHING = ScopeFacts()
_NEW_IR_VERSION = 10
#: A graph and what is known of it, from the main graph (or function) inwards.
_Chain = tuple[tuple[Any, ScopeFacts], ...]

gs_logger.print = lambda message: print(message, file=sys.stderr)


class Weights(LazyValues):  # type: ignore[misc]
    """Values of a ``gs.Constant``: a tensor of the model, called ``name`` there, read when asked for."""

    def __init__(self, source: ir.TensorProtocol, name: str) -> None:
        self.source = source
        self.name = name
        self.shape = list(source.shape.numpy())
        self.dtype = putback.gs_dtype(source.dtype)
        self.nbytes = source.nbytes

    @property
    def tensor(self) -> onnx.TensorProto:
        """The protobuf with its data, for graphsurgeon's own exporter (which constant folding uses)."""
        return tensor_proto(self.source, self.name)

    def load(self) -> npt.NDArray[np.generic]:
        """A copy of the data."""
        return np.array(self.source.numpy())


class Graph(FoldsShapes, gs.Graph):  # type: ignore[misc]
    """A ``gs.Graph`` whose folding is right about Shape."""


class Function(FoldsShapes, gs.Function):  # type: ignore[misc]
    """A ``gs.Function`` whose folding is right about Shape."""


def to_gs(model: ir.Model) -> gs.Graph:
    """``model`` as a graphsurgeon graph. Editing it does not touch ``model``; `from_gs` makes a model of it again.

    The graph remembers what graphsurgeon has no place for (the list is in the module's docstring). ``graph.copy()`` does not
    take that along: give ``like=`` to `from_gs` then. Unused initializers do not appear. An initializer that is a graph input
    is a default the caller may override: it appears as the input it is (before IR version 4, where nobody may, as a constant).

    Raises:
        UnsupportedError: function overloads; optional and sparse types; attributes holding types, sparse tensors, lists of
            tensors or graphs, or bytes that are not UTF-8; initializers without data.
    """
    refuse_losses(model)
    build = _Import(model.ir_version)
    opset = model.opset_imports.get("")
    graph = Graph(
        **build.graph(model.graph, putback.opsets(model.opset_imports, opset)),
        functions=[build.function(function, opset) for function in model.functions.values()],
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        ir_version=model.ir_version,
    )
    setattr(graph, _FACTS, ModelFacts.of(model))
    return graph


class _Import:
    """onnx_ir → graphsurgeon; one tensor per value."""

    def __init__(self, ir_version: int) -> None:
        self.tensors: dict[ir.Value, gs.Tensor] = {}
        self.has_defaults = ir_version >= IR_OF_PLAIN_INITIALIZERS

    def graph(self, graph: ir.Graph, opsets: dict[str, Any]) -> dict[str, Any]:
        """Arguments of ``gs.Graph``."""
        return {
            **opsets,
            "nodes": [self._node(node, opsets) for node in graph],
            "inputs": [self._tensor(value) for value in graph.inputs if not self._is_constant(value)],
            "outputs": [self._tensor(value) for value in graph.outputs],
            "name": graph.name or "",
            "doc_string": graph.doc_string or "",
        }

    def function(self, function: ir.Function, default_opset: int | None) -> gs.Function:
        arguments = self.graph(function.graph, putback.opsets(function.opset_imports, default_opset))
        attributes = {
            name: None if attribute.value is None else self._attribute(attribute, {})
            for name, attribute in function.attributes.items()
        }
        return Function(**{**arguments, "name": function.name}, domain=function.domain, attrs=attributes)

    def _node(self, node: ir.Node, opsets: dict[str, Any]) -> gs.Node:
        return gs.Node(
            op=node.op_type,
            name=node.name or "",
            attrs={name: self._attribute(attribute, opsets) for name, attribute in node.attributes.items()},
            inputs=[self._tensor(value) for value in node.inputs],
            outputs=[self._tensor(value) for value in node.outputs],
            domain=node.domain or None,
        )

    def _attribute(self, attribute: ir.Attr, opsets: dict[str, Any]) -> Any:
        if attribute.is_ref():
            return gs.Node.AttributeRef(attribute.ref_attr_name, misc.convert_from_onnx_attr_type(attribute.type.value))
        if attribute.type == ir.AttributeType.GRAPH:
            return Graph(**self.graph(attribute.as_graph(), opsets))
        if attribute.type == ir.AttributeType.TENSOR:
            name = attribute.value.name or ""
            return gs.Constant(name, Weights(attribute.value, name))
        if attribute.name in ("value_float", "value_floats"):  # graphsurgeon folds Python floats to float64
            values = np.array(attribute.value, np.float32)
            return list(values) if values.ndim else values[()]
        return list(attribute.value) if isinstance(attribute.value, tuple) else attribute.value

    def _tensor(self, value: ir.Value | None) -> gs.Tensor:
        if value is None or not value.name:
            return gs.Variable.empty()
        if value not in self.tensors:
            if value.const_value is not None and self._is_constant(value):
                self.tensors[value] = gs.Constant(value.name, Weights(value.const_value, value.name))
            else:
                kind = "sequence_type" if isinstance(value.type, ir.SequenceType) else "tensor_type"
                dtype = putback.gs_dtype(value.dtype)
                self.tensors[value] = gs.Variable(value.name, dtype, putback.gs_shape(value), kind)
        return self.tensors[value]

    def _is_constant(self, value: ir.Value) -> bool:
        return value.is_initializer() and not (self.has_defaults and value.is_graph_input())


def from_gs(graph: gs.Graph, like: ir.Model | None = None) -> ir.Model:
    """A model of ``graph``, with everything put back, by name, that graphsurgeon dropped.

    Weights that were not edited are the same tensors as before. Nodes stand as in ``graph.nodes``, sorted only where that order
    is wrong; nodes whose outputs were all cleared are left out. New nodes have a name, and scope and origin of what they replace.
    An unknown domain is imported at version 1. With IR version 3, initializers are graph inputs, as it demands.

    Args:
        graph: from `to_gs`, or any other.
        like: the model ``graph`` came from; needed only when ``graph`` is not the object that `to_gs` returned.

    Raises:
        ModelError: two producers or two different constants of one name; a value that nothing produces; an input or output of the
            graph without an element type; an attribute value that ONNX has no type for; a cycle.
        UnsupportedError: edited or new values of sub-byte, float8-fnuz or string type; sparse values.
    """
    facts = ModelFacts.of(like) if like is not None else vars(graph).get(_FACTS)
    return _Export(facts, graph).model()


class _Export:
    """graphsurgeon → onnx_ir."""

    def __init__(self, facts: ModelFacts | None, graph: gs.Graph) -> None:
        self.facts = facts
        self.root = graph
        self.ir_version = graph.ir_version or (facts.ir_version if facts else _NEW_IR_VERSION)
        self.constants: dict[int, dict[str, gs.Constant]] = {}  # by id of the graph they belong to
        self.kept: dict[int, list[tuple[gs.Node, NodeFacts | None]]] = {}  # by id of the graph
        self.new: dict[ir.Node, None] = {}
        self.unsorted = False

    def model(self) -> ir.Model:
        facts, graph = self.facts, self.root
        model = ir.Model(
            self._top(graph, facts.graph if facts else _NOTHING),
            ir_version=self.ir_version,
            producer_name=putback.unless_edited(facts.producer_name if facts else None, graph.producer_name),
            producer_version=putback.unless_edited(facts.producer_version if facts else None, graph.producer_version),
            domain=facts.domain if facts else None,
            model_version=facts.model_version if facts else None,
            functions=[self._function(function) for function in graph.functions],
            device_configurations=facts.device_configurations if facts else (),
        )
        if facts:
            facts.extras.put_back(model)
        namer = Namer(model)
        for node in self.new:
            if not node.name:
                node.name = namer.fresh(f"{node.outputs[0].name}_{node.op_type}")
        return model

    def _function(self, function: gs.Function) -> ir.Function:
        domain = function.domain or ""
        facts = self.facts.functions.get((domain, function.name), _NOTHING) if self.facts else _NOTHING
        attributes = [
            facts.attributes.get(name, ir.Attr(name, ir.AttributeType.UNDEFINED, None))
            if value is None
            else self._attribute(name, value, facts.attributes.get(name), function.name)
            for name, value in function.attrs.items()
        ]
        return ir.Function(domain, function.name, graph=self._top(function, facts), attributes=attributes)

    def _top(self, graph: gs.Graph, facts: ScopeFacts) -> ir.Graph:
        """A main graph or the body of a function."""
        homes: dict[int, tuple[gs.Constant, _Chain]] = {}
        self._collect(graph, facts, (), homes)
        for constant, chain in homes.values():
            here = self.constants.setdefault(id(chain[-1][0]), {})
            if not _equal(here.setdefault(constant.name, constant), constant):
                raise ModelError("two constants of different values have this name", where=constant.name)
        self.unsorted = False
        made = self._graph(graph, facts, ChainMap())
        made.opset_imports.clear()
        made.opset_imports.update(putback.opset_imports(graph, facts))
        if graph is self.root:
            putback.types_of_io(made, facts)
        if self.unsorted:
            try:
                made.sort()
            except ValueError as error:
                raise ModelError("the edited graph has a cycle", where=graph.name) from error
        return made

    def _collect(
        self, graph: gs.Graph, facts: ScopeFacts, outer: _Chain, homes: dict[int, tuple[gs.Constant, _Chain]]
    ) -> None:
        """Match nodes, and find the graph of every constant: the one where it was, else the innermost that holds all its uses."""
        chain = (*outer, (graph, facts))
        found = facts.match(graph.nodes, outer[0][1].inner_by_name if outer else facts.inner_by_name)
        nodes = [(node, found.get(i)) for i, node in enumerate(graph.nodes)]
        nodes = [(node, known) for node, known in nodes if node.outputs or (known is not None and not known.outputs)]
        self.kept[id(graph)] = nodes
        tensors = [*graph.inputs, *(tensor for node, _ in nodes for tensor in node.inputs), *graph.outputs]
        for constant in (tensor for tensor in tensors if isinstance(tensor, gs.Constant)):
            where = [i for i, (_, known) in enumerate(chain) if constant.name in known.initializers]
            home = chain[: where[-1] + 1] if where else chain
            _, former = homes.get(id(constant), (constant, home))
            homes[id(constant)] = constant, tuple(a for a, b in zip(former, home, strict=False) if a[0] is b[0])
        for node, node_facts in nodes:
            for name, value in node.attrs.items():
                if isinstance(value, gs.Graph):
                    self._collect(value, putback.body(node_facts, name), chain, homes)

    def _graph(self, graph: gs.Graph, facts: ScopeFacts, outer: ChainMap[str, ir.Value]) -> ir.Graph:
        found = self.constants.get(id(graph), {})
        constants = [self._initializer(constant, facts) for constant in found.values()]
        tensors = [*graph.inputs, *(out for node, _ in self.kept[id(graph)] for out in node.outputs)]
        variables = [self._variable(t, facts) for t in tensors if t.name and not isinstance(t, gs.Constant)]
        local = putback.by_name([*constants, *variables])
        unused = putback.unused_initializers(facts, local)
        local.update(unused)
        names = [tensor.name for tensor in graph.inputs]
        defaults = putback.defaults(local, names, facts)
        scope = outer.new_child(local)
        nodes = [self._node(node, known, scope) for node, known in self.kept[id(graph)]]
        initializers = putback.in_order([*(v.name or "" for v in constants), *unused, *defaults], facts.initializers)
        if isinstance(graph, gs.Function):  # a function has no initializers
            nodes = [self._constant_node(value, facts) for value in constants] + nodes
            initializers = []
        elif graph is self.root and self.ir_version < IR_OF_PLAIN_INITIALIZERS:
            names = putback.put_in(names, facts.inputs, initializers)
        else:  # a graph that graphsurgeon itself imported has them as constants, and not among its inputs
            lazy = {name for name, c in found.items() if isinstance(c._values, LazyValues)} & set(facts.inputs)
            names = putback.put_in(names, facts.inputs, [name for name in initializers if name in lazy])
        made = ir.Graph(
            [local[name] for name in names],
            [putback.find(local, output.name, "an output of the graph") for output in graph.outputs],
            nodes=nodes,
            initializers=[local[name] for name in initializers],
            opset_imports=dict(facts.opset_imports),
            name=facts.name if isinstance(graph, gs.Function) else putback.unless_edited(facts.name, graph.name),
        )
        facts.extras.put_back(made)
        made.doc_string = putback.unless_edited(facts.extras.doc_string, graph.doc_string)
        known_nodes = [known for _, known in self.kept[id(graph)] if known is not None]
        putback.inherit([node for node in nodes if node in self.new], known_nodes, facts)
        self.unsorted = self.unsorted or (facts.is_sorted and not is_sorted(made))
        return made

    def _node(self, node: gs.Node, known: NodeFacts | None, scope: ChainMap[str, ir.Value]) -> ir.Node:
        where = node.name or node.op
        if any(t.is_empty() and (t.inputs or isinstance(t, gs.Constant)) for t in node.inputs):
            raise ModelError("reads a tensor that has no name", where=where)
        inputs = [None if t.is_empty() else putback.find(scope, t.name, f"an input of {where!r}") for t in node.inputs]
        attributes = []
        for name, value in node.attrs.items():
            original = known.attributes.get(name) if known else None
            if isinstance(value, gs.Graph):
                body = self._graph(value, putback.body(known, name), scope)
                attributes.append(ir.AttrGraph(name, body, original.doc_string if original else None))
            else:
                attributes.append(self._attribute(name, value, original, where))
        outputs = [scope.maps[0][t.name] if t.name else ir.Value(name="") for t in node.outputs]
        made = ir.Node(node.domain or "", node.op, inputs, attributes, outputs=outputs, name=node.name)
        if known is None:
            self.new[made] = None
        else:
            putback.node(made, known, scope)
        return made

    def _constant_node(self, value: ir.Value, facts: ScopeFacts) -> ir.Node:
        """A Constant node in place of an initializer."""
        assert value.const_value is not None
        attribute = ir.AttrTensor("value", value.const_value)
        known = facts.by_output.get(value.name or "")
        made = ir.Node("", "Constant", [], [attribute], outputs=[value], name="")
        if known is None or known.op_type != "Constant":
            self.new[made] = None
        else:
            made.name = known.name
            putback.node(made, known, {})
        return made

    def _attribute(self, name: str, value: Any, original: ir.Attr | None, where: str) -> ir.Attr:
        if isinstance(value, gs.Constant):
            is_tensor = original is not None and original.type == ir.AttributeType.TENSOR
            former = original.as_tensor() if original is not None and is_tensor else None
            tensor = _tensor(value, former)
            return original if original is not None and tensor is former else ir.AttrTensor(name, tensor)
        if isinstance(value, gs.Node.AttributeRef):
            kind = ir.AttributeType(misc.convert_to_onnx_attr_type(value.type))
            is_same = original is not None and (original.ref_attr_name, original.type) == (value.name, kind)
            return original if original is not None and is_same else ir.RefAttr(name, value.name, kind)
        return putback.attribute(name, value, original, where)

    def _initializer(self, constant: gs.Constant, facts: ScopeFacts) -> ir.Value:
        known = facts.values.get(constant.name)
        tensor = _tensor(constant, known.tensor if known else None)
        return putback.value(constant.name, known, *putback.type_of_tensor(tensor, known), tensor)

    def _variable(self, tensor: gs.Variable, facts: ScopeFacts) -> ir.Value:
        known = facts.values.get(tensor.name)
        type_, shape = putback.type_and_shape(tensor.name, tensor.dtype, tensor.shape, tensor.type, known)
        return putback.value(tensor.name, known, type_, shape, None)


def _tensor(constant: gs.Constant, original: ir.TensorProtocol | None) -> ir.TensorProtocol:
    """The tensor of ``constant``: ``original`` itself unless the values were edited."""
    values = constant._values
    if isinstance(values, SparseValues):
        raise UnsupportedError("graphsurgeon cannot edit sparse values", where=constant.name)
    if isinstance(values, Weights):
        return values.source if values.name == constant.name else putback.renamed(values.source, constant.name)
    if isinstance(values, LazyValues):
        tensor: ir.TensorProtocol = ir.from_proto(values.tensor)
        return tensor
    if original is not None and same_array(values, original.numpy()):
        return original
    dtype = putback.ir_dtype(constant.export_dtype, constant.name)
    assert dtype is not None
    refuse_edited(dtype, constant.name)
    return ir.tensor(values.astype(dtype.numpy(), copy=False), name=constant.name)


def _equal(a: gs.Constant, b: gs.Constant) -> bool:
    one, two = (getattr(c._values, "source", c._values) for c in (a, b))
    return one is two or same_array(a.values, b.values)
