"""Records of pairs before they are removed from a model: names, parameters, readers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.edit.pairs import encoding_attributes
from qdq_passes.qdq.look.pairs import Half, Pair, encoding_of

from qdqtool.encodings.entries import Lpbq
from qdqtool.encodings.hints import NodeHint
from qdqtool.encodings.lpbq import remembered

#: A graph that lists a value among its outputs, and at which place.
Place = tuple[ir.Graph | ir.Function, int]


@dataclass
class PairRecord:
    """One pair, or half of one at the end of the graph, as it stands before it is removed.

    Args:
        q: names of the QuantizeLinear, None without.
        dq: names of the DequantizeLinear, None without.
        nodes: the two nodes.
        encoding: its encoding.
        lpbq: the factors of its scales, where they were computed.
        ranks: ranks of scale and zero point per-tensor.
        stored: name of the stored integers, None without.
        integers: the stored integers.
        parent: DequantizeLinear of the pair whose output is quantized once more here.
        source: the float value that is quantized; None for stored integers.
        source_name: its name.
        uses: who reads the dequantized value, Qs of other pairs left out.
        outputs: where it is a graph output.
    """

    q: NodeHint | None
    dq: NodeHint | None
    nodes: tuple[ir.Node | None, ir.Node | None]
    encoding: Encoding
    lpbq: Lpbq | None
    ranks: tuple[int, int]
    stored: str | None
    integers: ir.TensorProtocol | None
    parent: ir.Node | None
    source: ir.Value | None
    source_name: str
    uses: list[tuple[ir.Node, int]] = field(default_factory=list)
    outputs: list[Place] = field(default_factory=list)

    @property
    def is_one_node(self) -> bool:
        """Whether one node is both halves (FixNeuron)."""
        return self.nodes[0] is not None and self.nodes[0] is self.nodes[1]


def record_of_pair(
    pair: Pair, by_output: Mapping[ir.Value, Pair], quantizers: Collection[ir.Node], factors: Mapping[ir.Node, Lpbq]
) -> PairRecord:
    """The record of ``pair``.

    Args:
        pair: the pair.
        by_output: pairs by their dequantized value.
        quantizers: the QuantizeLinear of all pairs.
        factors: factors of LPBQ scales by DequantizeLinear.

    Raises:
        ModelError: its scale is not constant, or Q and DQ differ.
    """
    encoding, is_one_node = pair.encoding, pair.q is pair.dq
    if encoding is None:
        raise ModelError(
            "its scale or zero point is not constant", where=pair.dq.name, hint="fold-constants may make it so"
        )
    if pair.q is not None and encoding_of(pair.q) != encoding:
        raise ModelError("Q and DQ have different encodings", where=pair.dq.name, hint="see `qdqtool check`")
    parent = by_output.get(pair.source) if pair.q is not None and pair.source is not None else None
    stored = pair.stored if pair.q is None else None
    uses = [(use.node, use.idx) for use in pair.output.uses() if not (use.idx == 0 and use.node in quantizers)]
    return PairRecord(
        q=None if pair.q is None or is_one_node else _node_hint(pair.q, encoding),
        dq=None if is_one_node else _node_hint(pair.dq, encoding),
        nodes=(pair.q, pair.dq),
        encoding=encoding,
        lpbq=factors.get(pair.dq) or remembered(pair.dq, encoding),
        ranks=(0, 0) if is_one_node else _ranks(pair.dq, encoding),
        stored=None if stored is None else stored.name,
        integers=_tensor(stored),
        parent=None if parent is None else parent.dq,
        source=pair.source if pair.q is not None else None,
        source_name=(pair.source.name or "") if pair.source is not None else "",
        uses=uses,
        outputs=_places(pair.output),
    )


def record_of_half(half: Half) -> PairRecord:
    """The record of ``half``: an integer input or output of the graph.

    Raises:
        ModelError: its scale is not constant.
    """
    encoding, node = half.encoding, half.node
    if encoding is None:
        raise ModelError(
            "its scale or zero point is not constant", where=node.name, hint="fold-constants may make it so"
        )
    hint = _node_hint(node, encoding)
    return PairRecord(
        q=hint if half.is_q else None,
        dq=None if half.is_q else hint,
        nodes=(node, None) if half.is_q else (None, node),
        encoding=encoding,
        lpbq=None,
        ranks=_ranks(node, encoding),
        stored=None,
        integers=None,
        parent=None,
        source=node.inputs[0],
        source_name=(node.inputs[0].name or "") if node.inputs[0] is not None else "",
        uses=[] if half.is_q else [(use.node, use.idx) for use in node.outputs[0].uses()],
        outputs=_places(node.outputs[0]),
    )


def is_end(half: Half, model: ir.Model) -> bool:
    """Whether ``half`` quantizes an output, or dequantizes an input, of the main graph."""
    value = half.node.outputs[0] if half.is_q else half.node.inputs[0]
    assert value is not None
    return value.graph is model.graph and (value.is_graph_output() if half.is_q else value.is_graph_input())


def _tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    if value is None or value.const_value is not None:
        return value.const_value if value is not None else None
    array = constant_array(value)
    return None if array is None else ir.tensor(array, dtype=value.dtype)


def _places(value: ir.Value) -> list[Place]:
    graph = value.graph
    if graph is None or not value.is_graph_output():
        return []
    return [(graph, index) for index, output in enumerate(graph.outputs) if output is value]


def _node_hint(node: ir.Node, encoding: Encoding) -> NodeHint:
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    scale = node.inputs[1]
    attributes = {a.name: a.as_int() for a in node.attributes.values() if a.type == ir.AttributeType.INT}
    implied = {a.name: a.as_int() for a in encoding_attributes(encoding)}
    return NodeHint(
        name=node.name or "",
        output=node.outputs[0].name or "",
        scale=(scale.name or "") if scale is not None else "",
        zero_point=None if zero_point is None else zero_point.name,
        domain="" if node.domain == "ai.onnx" else node.domain,
        attributes=None if attributes == implied else tuple(sorted(attributes.items())),
    )


def _ranks(node: ir.Node, encoding: Encoding) -> tuple[int, int]:
    """Ranks of scale and zero point per-tensor, where both [] and [1] mean the same."""
    if encoding.axis is not None:
        return 0, 0
    arrays = [constant_array(value) for value in (*node.inputs, None)[1:3]]
    scale, zero_point = (0 if array is None else array.ndim for array in arrays)
    return scale, zero_point
