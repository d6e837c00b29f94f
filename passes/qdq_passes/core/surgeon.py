"""The bridge to onnx-graphsurgeon: `to_gs`, `from_gs`, and `surgeon_pass` (defined in its own module). The only importer of
onnx_graphsurgeon, whose log goes to stderr from here on, as all our messages do.

The one graph is built from the other without a protobuf between: weights are not copied (`Weights` reads them when asked),
external data stays external, and every value of onnx_ir is one tensor of graphsurgeon, in bodies too.

*Put back by name*: metadata_props, annotations and doc strings of model, graph, functions, nodes and values; quantization
annotations; denotations and shapes of sequences; domain, versions, producer; device configurations; the order of initializers;
unused initializers; initializers that are graph inputs; weights that bodies capture (one copy, in the graph where it was).
*Refused*: see `qdq_passes.core.surgeon_losses`.
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
from onnx_graphsurgeon.ir.tensor import LazyValues
from onnx_graphsurgeon.util import misc

from qdq_passes.core import surgeon_putback as putback
from qdq_passes.core.edit import Namer
from qdq_passes.core.surgeon_facts import ModelFacts, NodeFacts, ScopeFacts
from qdq_passes.core.surgeon_losses import refuse_losses
from qdq_passes.core.surgeon_pass import SurgeonPass, surgeon_pass
from qdq_passes.errors import ModelError

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
        if self.source.dtype == ir.DataType.STRING:
            return ir.to_proto(self.source)
        return onnx.TensorProto(
            name=self.name, data_type=self.source.dtype.value, dims=self.shape, raw_data=self.source.tobytes()
        )

    def load(self) -> npt.NDArray[np.generic]:
        """A copy of the data."""
        return np.array(self.source.numpy())


def to_gs(model: ir.Model) -> gs.Graph:
    """``model`` as a graphsurgeon graph. Editing it does not touch ``model``; `from_gs` makes a model of it again.

    The graph remembers what graphsurgeon has no place for (the list is in the module's docstring). ``graph.copy()`` does not
    take that along: give ``like=`` to `from_gs` then. Initializers that are graph inputs appear as constants, unused
    initializers do not appear, both as graphsurgeon imports them.

    Raises:
        UnsupportedError: function overloads; optional and sparse types; attributes holding types, sparse tensors, lists of tensors
            or graphs, or bytes that are not UTF-8; initializers without data.
    """
    refuse_losses(model)
    build = _Import()
    functions = [build.function(function, model) for function in model.functions.values()]
    graph = build.graph(model.graph, model.opset_imports)
    graph = gs.Graph(**graph, functions=functions, ir_version=model.ir_version)
    graph.producer_name = model.producer_name or ""
    graph.producer_version = model.producer_version or ""
    setattr(graph, _FACTS, ModelFacts.of(model))
    return graph


class _Import:
    """onnx_ir → graphsurgeon; one tensor per value."""

    def __init__(self) -> None:
        self.tensors: dict[ir.Value, gs.Tensor] = {}

    def graph(self, graph: ir.Graph, imports: dict[str, int]) -> dict[str, Any]:
        """Arguments of ``gs.Graph``."""
        return {
            "nodes": [self._node(node, imports) for node in graph],
            "inputs": [self._tensor(value) for value in graph.inputs if not value.is_initializer()],
            "outputs": [self._tensor(value) for value in graph.outputs],
            "name": graph.name or "",
            "doc_string": graph.doc_string or "",
            "opset": imports.get(""),
            "import_domains": [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()],
        }

    def function(self, function: ir.Function, model: ir.Model) -> gs.Function:
        arguments = self.graph(function.graph, function.opset_imports or model.opset_imports)
        attributes = {
            name: None if attribute.value is None else self._attribute(attribute, {})
            for name, attribute in function.attributes.items()
        }
        return gs.Function(**{**arguments, "name": function.name}, domain=function.domain, attrs=attributes)

    def _node(self, node: ir.Node, imports: dict[str, int]) -> gs.Node:
        return gs.Node(
            op=node.op_type,
            name=node.name or "",
            attrs={name: self._attribute(attribute, imports) for name, attribute in node.attributes.items()},
            inputs=[self._tensor(value) for value in node.inputs],
            outputs=[self._tensor(value) for value in node.outputs],
            domain=node.domain or None,
        )

    def _attribute(self, attribute: ir.Attr, imports: dict[str, int]) -> Any:
        if attribute.is_ref():
            return gs.Node.AttributeRef(attribute.ref_attr_name, misc.convert_from_onnx_attr_type(attribute.type.value))
        if attribute.type == ir.AttributeType.GRAPH:
            return gs.Graph(**self.graph(attribute.as_graph(), imports))
        if attribute.type == ir.AttributeType.TENSOR:
            name = attribute.value.name or ""
            return gs.Constant(name, Weights(attribute.value, name))
        return list(attribute.value) if isinstance(attribute.value, tuple) else attribute.value

    def _tensor(self, value: ir.Value | None) -> gs.Tensor:
        if value is None or not value.name:
            return gs.Variable.empty()
        if value not in self.tensors:
            if value.is_initializer():
                self.tensors[value] = gs.Constant(value.name, Weights(value.const_value, value.name))
            else:
                kind = "sequence_type" if isinstance(value.type, ir.SequenceType) else "tensor_type"
                dtype = putback.gs_dtype(value.dtype)
                self.tensors[value] = gs.Variable(value.name, dtype, putback.gs_shape(value), kind)
        return self.tensors[value]


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
        self.new: list[ir.Node] = []
        self.unsorted = False

    def model(self) -> ir.Model:
        facts, graph = self.facts, self.root
        main = self._top(graph, facts.graph if facts else _NOTHING)
        model = ir.Model(
            main,
            ir_version=self.ir_version,
            producer_name=_kept_or(facts and facts.producer_name, graph.producer_name),
            producer_version=_kept_or(facts and facts.producer_version, graph.producer_version),
            domain=facts and facts.domain,
            model_version=facts and facts.model_version,
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
        facts = self.facts.functions.get((function.domain or "", function.name), _NOTHING) if self.facts else _NOTHING
        attributes = [
            facts.attributes.get(name, ir.Attr(name, ir.AttributeType.UNDEFINED, None))
            if value is None
            else self._attribute(name, value, facts.attributes.get(name), _NOTHING, ChainMap(), function.name)
            for name, value in function.attrs.items()
        ]
        graph = self._top(function, facts)
        return ir.Function(function.domain or "", function.name, graph=graph, attributes=attributes)

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
        made.opset_imports.update(_opset_imports(graph, facts))
        if self.unsorted:
            try:
                made.sort()
            except ValueError as error:
                raise ModelError("the edited graph has a cycle", where=graph.name) from error
        return made

    def _collect(
        self, graph: gs.Graph, facts: ScopeFacts, outer: _Chain, homes: dict[int, tuple[gs.Constant, _Chain]]
    ) -> None:
        """Match nodes, and find for every constant the graph it belongs to: where it was, or the innermost that holds all uses."""
        chain = (*outer, (graph, facts))
        found = facts.match(graph.nodes)
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
                    bodies = node_facts.bodies if node_facts else {}
                    self._collect(value, bodies.get(name, _NOTHING), chain, homes)

    def _graph(self, graph: gs.Graph, facts: ScopeFacts, outer: ChainMap[str, ir.Value]) -> ir.Graph:
        local: dict[str, ir.Value] = {}
        scope = outer.new_child(local)
        for tensor in graph.inputs:
            if not isinstance(tensor, gs.Constant):
                _define(local, self._variable(tensor, facts))
        constants = [self._initializer(c, facts) for c in self.constants.get(id(graph), {}).values()]
        for value in constants:
            _define(local, value)
        for node, _ in self.kept[id(graph)]:
            for tensor in node.outputs:
                if not tensor.is_empty():
                    _define(local, self._variable(tensor, facts))
        unused = [name for name in facts.initializers if name in facts.unused and name not in local]
        for name in unused:
            local[name] = self._unused(name, facts)
        nodes = [self._node(node, known, scope) for node, known in self.kept[id(graph)]]
        initializers = [value.name or "" for value in constants]
        if isinstance(graph, gs.Function):  # functions have no initializers
            ahead = [self._constant_node(value, facts) for value in constants]
            initializers = []
