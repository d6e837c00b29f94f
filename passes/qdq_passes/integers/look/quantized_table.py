"""Everything quantized in a model as rows of one table: pairs, halves, what operators on integers hold; for people and JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.nesting import place_of_nodes
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import label
from qdq_passes.integers.look.integer_ops import IntegerTensor, integer_tensors
from qdq_passes.numerics.encoding import Encoding, nested
from qdq_passes.qdq.look.pairs import Half, Kind, Pair, half_pairs, qdq_pairs

#: How a tensor is quantized: Q and DQ; integers in the file and a DQ; one node that does both (FixNeuron); a Q or DQ alone, as
#: the integers cross the border of the graph; operators on integers (QLinearConv, MatMulInteger); packed weights (MatMulNBits);
#: a scale computed at run time.
Form = Literal["pair", "stored", "fused", "half", "qoperator", "integer", "nbits", "dynamic"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantized tensor.

    Args:
        tensor: name of the float value; for stored integers without a ``_quantized`` suffix.
        kind: what it is to those who read it.
        form: how it is quantized.
        dtype: type of the integers; None when nothing tells it.
        encoding: how it is stored; None when that is computed at run time or is no grid.
        stored: name of the initializer concerned, None for activations.
        node_q: name of the node that quantizes, None for stored integers.
        node_dq: name of the node that dequantizes, None where none does.
        domain: domain of those nodes; empty for the standard one.
        graph: path of the body or function they stand in; empty in the main graph.
        readers: names of the nodes that read the dequantized value.
        place: order of reading: place of the first reader, and the input it reads at.
        nodes: the nodes themselves.
        values: the values by which a selector may name the row.
    """

    tensor: str
    kind: Kind
    form: Form
    dtype: ir.DataType | None
    encoding: Encoding | None
    stored: str | None
    node_q: str | None
    node_dq: str | None
    domain: str
    graph: str
    readers: tuple[str, ...]
    place: tuple[int, int]
    nodes: tuple[ir.Node, ...]
    values: tuple[ir.Value, ...]

    @property
    def is_pair(self) -> bool:
        """Whether QuantizeLinear and DequantizeLinear, or one of the two, are all that it is made of."""
        return self.form in ("pair", "stored", "fused", "half")

    def is_hit(
        self, nodes: Collection[ir.Node], values: Collection[ir.Value], named: Collection[ir.Node] | None = None
    ) -> bool:
        """Whether a selection of ``nodes`` and ``values`` names the row.

        ``named``: the nodes that are meant themselves, not as producers of ``values``: an operator on integers that merely
        writes a selected value does not select what it reads.
        """
        meant = nodes if self.is_pair or named is None else named
        return any(n in meant for n in self.nodes) or any(v in values for v in self.values)

    def to_json(self) -> dict[str, Any]:
        """The keys of the command's contract, and more."""
        encoding = self.encoding
        data = encoding.to_json() if encoding is not None else {}
        position = encoding.position if encoding is not None else None
        return {
            "tensor": self.tensor,
            "initializer": self.stored,
            "dtype": None if self.dtype is None else self.dtype.name.lower(),
            "scale": data.get("scale"),
            "zero_point": data.get("zero_point"),
            "axis": data.get("axis"),
            "block_size": data.get("block_size") or None,
            "position": nested(position, encoding.shape) if position is not None and encoding is not None else None,
            "kind": self.kind,
            "form": self.form,
            "node_q": self.node_q,
            "node_dq": self.node_dq,
            "domain": self.domain,
            "graph": self.graph,
            "readers": list(self.readers),
        }


def qdq_rows(model: ir.Model) -> list[Row]:
    """Everything quantized in ``model``, in the order in which it is read."""
    where = place_of_nodes(model)
    order = {node: number for number, node in enumerate(where)}
    pairs, integers = qdq_pairs(model), integer_tensors(model)
    paired = {node for pair in pairs for node in (pair.q, pair.dq) if node is not None}
    alone = [tensor for tensor in integers if tensor.q not in paired and (tensor.q or tensor.dq) not in paired]
    shown = {node for tensor in alone for node in (tensor.q, tensor.dq)}
    rows = [_of_pair(pair, where, order) for pair in pairs]
    rows += [_of_integers(tensor, where, order) for tensor in alone]
    rows += [_of_half(half, where, order) for half in half_pairs(model) if half.node not in shown]
    return sorted(rows, key=lambda row: row.place)


def _of_pair(pair: Pair, where: dict[ir.Node, str], order: dict[ir.Node, int]) -> Row:
    form: Form = "stored" if pair.q is None else "fused" if pair.q is pair.dq else "pair"
    nodes = tuple(dict.fromkeys(n for n in (pair.q, pair.dq) if n is not None))
    return Row(
        tensor=pair.tensor,
        kind=pair.kind,
        form=form,
        dtype=_dtype(pair.encoding, None if pair.q is pair.dq else pair.dq.inputs[0]),
        encoding=pair.encoding,
        stored=pair.stored.name if pair.stored is not None else None,
        node_q=pair.q.name if pair.q is not None else None,
        node_dq=pair.dq.name,
        domain=_plain_domain(pair.dq),
        graph=where[pair.dq],
        readers=_readers([pair.output]),
        place=_first_use([pair.output], order),
        nodes=nodes,
        values=tuple(dict.fromkeys(v for v in (pair.source, pair.output, pair.stored) if v is not None)),
    )


def _of_half(half: Half, where: dict[ir.Node, str], order: dict[ir.Node, int]) -> Row:
    node = half.node
    values = [v for v in (node.inputs[0], node.outputs[0]) if v is not None]
    return Row(
        tensor=half.tensor,
        kind="activation",
        form="half",
        dtype=_dtype(half.encoding, node.outputs[0] if half.is_q else node.inputs[0]),
        encoding=half.encoding,
        stored=None,
        node_q=node.name if half.is_q else None,
        node_dq=None if half.is_q else node.name,
        domain=_plain_domain(node),
        graph=where[node],
        readers=_readers(node.outputs),
        place=_first_use(node.outputs, order),
        nodes=(node,),
        values=tuple(values),
    )


def _of_integers(tensor: IntegerTensor, where: dict[ir.Node, str], order: dict[ir.Node, int]) -> Row:
    first = tensor.nodes[0]
    written = [] if tensor.dq is None or not is_dequantize(tensor.dq) else [tensor.dq.outputs[0]]
    touched = [v for n in tensor.nodes for v in (*n.inputs, *n.outputs) if v is not None]
    near = [v for v in touched if v.name == tensor.tensor]
    if tensor.q is not None and is_quantize(tensor.q):
        near += [v for v in tensor.q.inputs[:1] if v is not None]
    places = [(order[node], 0) for node in tensor.readers]
    return Row(
        tensor=tensor.tensor,
        kind=tensor.kind,
        form=tensor.form,
        dtype=tensor.dtype,
        encoding=tensor.encoding,
        stored=tensor.stored.name if tensor.stored is not None else None,
        node_q=tensor.q.name if tensor.q is not None else None,
        node_dq=tensor.dq.name if tensor.dq is not None else None,
        domain=_plain_domain(first),
        graph=where[first],
        readers=tuple(dict.fromkeys(label(node) for node in tensor.readers)),
        place=min(places, default=(order[first], 0)),
        nodes=tuple(tensor.nodes),
        values=tuple(dict.fromkeys(v for v in [*near, tensor.value, *written] if v is not None)),
    )


def _dtype(encoding: Encoding | None, integers: ir.Value | None) -> ir.DataType | None:
    """Type of the integers, as the encoding or the value itself tells it."""
    return encoding.dtype if encoding is not None else integers.dtype if integers is not None else None


def _plain_domain(node: ir.Node) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _readers(values: Sequence[ir.Value]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label(use.node) for value in values for use in value.uses()))


def _first_use(values: Sequence[ir.Value], order: dict[ir.Node, int]) -> tuple[int, int]:
    return min(((order[use.node], use.idx) for value in values for use in value.uses()), default=(len(order), 0))
