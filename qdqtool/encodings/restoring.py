"""Rebuild the pairs of a tensor as its hint says: names, shared parameters, several pairs, integer ends of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.edit import Namer, drop_unread, insert_after, make_node, new_constant, put_first
from qdq_passes.graph.operators.qdq_ops import OPERATORS
from qdq_passes.graph.uses import all_nodes, all_values, constant_array, dtype_of, is_constant
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.qdq.edit.checks import check_encoding
from qdq_passes.qdq.edit.integers import integers_of
from qdq_passes.qdq.edit.pairs import encoding_attributes, neighbour

from qdqtool.encodings.hints import NodeHint, PairHint, Reader, TensorHint

Use = tuple[ir.Node, int]


@dataclass
class Builder:
    """Rebuilds pairs in one model; parameters of one name and content are made once and shared.

    Args:
        model: the model, edited in place.
        rename: names of tensors as hints have them → names in this model.
    """

    model: ir.Model
    rename: Callable[[str], str] = str
    namer: Namer = field(init=False)
    _nodes: dict[str, ir.Node] = field(init=False)
    _taken: dict[type, set[str | None]] = field(init=False)
    _shared: dict[tuple[str, bytes, ir.DataType], ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.namer = Namer(self.model)
        nodes = [node for graph in self.model.graphs() for node in graph]
        self._nodes = {}
        for node in nodes:
            first = next((value.name for value in node.outputs if value.name), None)
            if first is not None:
                self._nodes[first] = node
        self._taken = {
            ir.Value: {value.name for value in all_values(self.model)},
            ir.Node: {node.name for node in all_nodes(self.model)},
        }

    def name(self, kind: type, wanted: str) -> str:
        """``wanted``, where no other value (or node) is called so; a node and a value may share a name."""
        name = self.namer.fresh(wanted)
        if wanted not in self._taken[kind]:
            name = wanted
        self._taken[kind].add(name)
        return name

    def release(self, name: str) -> None:
        """Let another value be called ``name``."""
        self._taken[ir.Value].discard(name)
        self.namer.release(name)

    def uses_of(self, value: ir.Value, readers: Sequence[Reader]) -> list[Use]:
        """The uses of ``value`` that ``readers`` name; those that the model does not have are left out."""
        wanted = {(self._nodes.get(self.rename(tensor)), index) for tensor, index in readers}
        return [(use.node, use.idx) for use in value.uses() if (use.node, use.idx) in wanted]

    def build(self, value: ir.Value, encoding: Encoding, second: Encoding | None, hint: TensorHint) -> int:
        """Put the pairs of ``hint`` on ``value``; returns how many.

        Raises:
            UnsupportedError: the opset cannot hold the encoding.
            UsageError: the scales do not fit the tensor.
        """
        opset = self.model.opset_imports.get("", 1)
        for pair in hint.pairs:
            part = pair.dq or pair.q
            kept = encoding if not pair.on else second
            if part is not None and kept is not None:
                is_stored = pair.q is None and is_constant(value)
                check_encoding(value, kept, opset, stored=is_stored, domain=part.domain)
        return _Site(self, value, encoding, second, hint).build()

    def constant(self, graph: ir.Graph, wanted: str, data: ir.TensorProtocol, near: Sequence[ir.Node]) -> ir.Value:
        """The constant called ``wanted`` with ``data``: one made before, or a new one."""
        key = (wanted, data.tobytes() + str(list(data.shape)).encode(), data.dtype)
        if key not in self._shared:
            self._shared[key] = _existing(graph, wanted, data) or self._new(graph, wanted, data, near)
        return self._shared[key]

    def _new(self, graph: ir.Graph, wanted: str, data: ir.TensorProtocol, near: Sequence[ir.Node]) -> ir.Value:
        made = new_constant(graph, self.namer, wanted, data, near)
        if wanted not in self._taken[ir.Value]:
            made.name = wanted
        self._taken[ir.Value].add(made.name)
        return made


def _existing(graph: ir.Graph, name: str, data: ir.TensorProtocol) -> ir.Value | None:
    """The constant ``name`` of ``graph``, where it holds just these data and nobody may override it."""
    value = graph.initializers.get(name)
    tensor = None if value is None or value.is_graph_input() else value.const_value
    if tensor is None or tensor.dtype != data.dtype or list(tensor.shape) != list(data.shape):
        return None
    return value if tensor.tobytes() == data.tobytes() else None


@dataclass
class _Site:
    builder: Builder
    value: ir.Value
    encoding: Encoding
    second: Encoding | None
    hint: TensorHint
    made: dict[str, ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.near, self.float_type = neighbour(self.value), dtype_of(self.value) or ir.DataType.FLOAT

    def build(self) -> int:
        value, pairs = self.value, self.hint.pairs
        claimed = {id(pair): self.builder.uses_of(value, pair.readers) for pair in pairs if pair.readers is not None}
        taken = {use for uses in claimed.values() for use in uses}
        rest = [(use.node, use.idx) for use in value.uses() if (use.node, use.idx) not in taken]
        base = value.name or "value"
        is_integer_end = any(pair.q is None for pair in pairs) and not is_constant(value)
        if any(pair.output for pair in pairs) or self.hint.stored is not None:
            self._give_up_name(base)
        quantized: dict[str, ir.Value] = {}
        integers = self._integers(base) if self.hint.stored is not None else value if is_integer_end else None
        homes = self._homes(claimed, rest)
        nodes: dict[ir.Graph | None, list[ir.Node]] = {}
        for pair in sorted(pairs, key=lambda pair: bool(pair.on)):
            source, kept = (self.made.get(pair.on, value), self.second) if pair.on else (value, self.encoding)
            if kept is None:  # the file no longer says what the second encoding is
                for node, index in claimed.get(id(pair), ()):
                    node.replace_input_with(index, source)
                continue
            if pair.q is not None and pair.q.name not in quantized:
                q = self._node(pair.q, 0, source, kept, kept.dtype)
                quantized[pair.q.name] = q.outputs[0]
                nodes.setdefault(homes[_of_q(pair)], []).append(q)
            stored = quantized[pair.q.name] if pair.q is not None else integers
            if stored is None:
                continue
            uses, made, part = claimed.get(id(pair), rest), stored, pair.q
            if pair.dq is not None:
                dq = self._node(pair.dq, 1, stored, kept, self.float_type)
                nodes.setdefault(homes[id(pair)], []).append(dq)
                made, part = dq.outputs[0], pair.dq
                self.made[pair.dq.name] = made
            for node, index in uses:
                if (
                    part is not None
                    and not self._replace_identity(node, part.output, made, homes[id(pair)])
                    and pair.dq is not None
                ):
                    node.replace_input_with(index, made)
            if pair.output:
                self._become_output(made, base)
        self._insert(nodes)
        if is_integer_end:
            value.type = ir.TensorType(self.encoding.dtype)
        if self.hint.stored is not None:
            drop_unread([value])
        return len(pairs)

    def _homes(self, claimed: Mapping[int, list[Use]], rest: list[Use]) -> dict[int | str, ir.Graph | None]:
        """The body that each DQ (by its pair) and each Q (by its name) stands in; None for the graph of the tensor.

        A body that returns the dequantized value of a tensor from outside holds the DQ, and the Q too unless others read it.
        """
        homes: dict[int | str, ir.Graph | None] = {}
        of_q: dict[str, set[ir.Graph | None]] = {}
        for pair in self.hint.pairs:
            part, home = pair.dq or pair.q, None
            uses = claimed.get(id(pair), rest)
            bodies = {node.graph for node, _ in uses if part is not None and self._is_carrier(node, part.output)}
            body = bodies.pop() if len(bodies) == 1 and not pair.output else None
            if isinstance(body, ir.Graph) and body is not self._graph():
                inside = set(body.all_nodes())
                home = body if all(node in inside for node, _ in uses) else None
            homes[id(pair)] = home
            of_q.setdefault(_of_q(pair), set()).add(home)
        return homes | {name: graphs.pop() if len(graphs) == 1 else None for name, graphs in of_q.items()}

    def _is_carrier(self, node: ir.Node, wanted: str) -> bool:
        """Whether ``node`` is an Identity that carries the name ``wanted`` of a graph output."""
        is_output = node.op_type == "Identity" and node.graph is not None and node.outputs[0].is_graph_output()
        return is_output and node.outputs[0].name == self.builder.rename(wanted)

    def _replace_identity(self, node: ir.Node, wanted: str, made: ir.Value, home: ir.Graph | None) -> bool:
        """``made`` was the graph output itself, where now an Identity carries the name ``wanted``."""
        output, graph = node.outputs[0], node.graph
        name = self.builder.rename(wanted)
        if graph is None or not self._is_carrier(node, wanted) or graph is not (home or self._graph()):
            return False
        for index, other in enumerate(graph.outputs):
            if other is output:
                graph.outputs[index] = made
        output.replace_all_uses_with(made)
        graph.remove(node, safe=True)
        made.name = name
        return True

    def _give_up_name(self, base: str) -> None:
        """Free the tensor's name for what takes it over."""
        value = self.value
        wanted = self.hint.source if value.is_graph_output() and self.hint.source else f"{base}_replaced"
        value.name = self.builder.name(ir.Value, wanted)
        self.builder.release(base)

    def _become_output(self, value: ir.Value, name: str) -> None:
        graph = self.value.graph
        assert graph is not None
        for index, output in enumerate(graph.outputs):
            if output is self.value:
                graph.outputs[index] = value
        value.name = name

    def _integers(self, base: str) -> ir.Value:
        array, graph = constant_array(self.value), self.value.graph
        assert array is not None
        assert graph is not None
        made = integers_of(self.value, array, self.encoding)
        hinted = [(index, integer) for index, integer in self.hint.integers if 0 <= index < made.size]
        if hinted:
            where, integers = (np.array(column) for column in zip(*hinted, strict=True))
            other = made.copy()
            other.reshape(-1)[where] = integers.astype(made.dtype)
            real = dequantize(other, self.encoding, array.dtype)
            same = real.reshape(-1)[where] == array.reshape(-1)[where]  # else the weight has changed since
            made.reshape(-1)[where[same]] = other.reshape(-1)[where[same]]
        tensor = ir.tensor(made, dtype=self.encoding.dtype)
        return self.builder.constant(graph, self.hint.stored or f"{base}_quantized", tensor, self.near)

    def _node(self, hint: NodeHint, half: int, source: ir.Value, encoding: Encoding, dtype: ir.DataType) -> ir.Node:
        model, name = self.builder.model, self.builder.name
        inputs = [source, *self._parameters(hint, half, encoding)]
        attributes = encoding_attributes(encoding)
        if hint.attributes is not None:
            kept = dict(hint.attributes) | {a.name: a.as_int() for a in attributes}
            attributes = [ir.AttrInt64(key, number) for key, number in kept.items()]
        if hint.domain:
            model.opset_imports.setdefault(hint.domain, 1)
        return make_node(
            OPERATORS[hint.domain][half], inputs, name=name(ir.Node, hint.name), output=name(ir.Value, hint.output),
            like=self.value, dtype=dtype, attributes=attributes, domain=hint.domain, stands_for=self.near,
        )  # fmt: skip

    def _parameters(self, hint: NodeHint, half: int, encoding: Encoding) -> list[ir.Value]:
        value, model = self.value, self.builder.model
        graph = model.graph if not is_constant(value) or value.graph is None else value.graph
        scale, zero_point = encoding.scale_array().astype(self.float_type.numpy()), encoding.zero_point_array()
        if encoding.axis is None:
            scale, zero_point = (
                array.reshape((1,) * rank) for array, rank in zip((scale, zero_point), self.hint.ranks, strict=True)
            )
        made = [self.builder.constant(graph, hint.scale, ir.tensor(scale), self.near)]
        if hint.zero_point is not None or not _is_implied(hint, half, encoding):
            wanted = hint.zero_point or f"{hint.scale}_zero_point"
            tensor = ir.tensor(zero_point, dtype=encoding.dtype)
            made.append(self.builder.constant(graph, wanted, tensor, self.near))
        return made

    def _graph(self) -> ir.Graph | ir.Function | None:
        """Where pairs on the tensor stand."""
        producer = self.value.producer()
        return producer.graph if producer is not None else self.value.graph or self.builder.model.graph

    def _insert(self, by_home: Mapping[ir.Graph | None, Sequence[ir.Node]]) -> None:
        for home, inner in by_home.items():
            if home is not None:
                put_first(home, inner)
        nodes = by_home.get(None, ())
        if self.hint.stored is not None and self.value.graph is not None:
            put_first(self.value.graph, nodes)
        else:
            insert_after(self.builder.model, self.value, nodes)


def _of_q(pair: PairHint) -> str:
    """Pairs that share a QuantizeLinear have one key."""
    return pair.q.name if pair.q is not None else ""


def _is_implied(hint: NodeHint, half: int, encoding: Encoding) -> bool:
    """Whether a node without a zero point has this ``encoding`` all the same."""
    wanted = dict(hint.attributes or ()).get("output_dtype", ir.DataType.UINT8.value)
    return not any(encoding.zero_point) and (half == 1 or wanted == encoding.dtype.value)
