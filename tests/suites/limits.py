"""Operators of new opsets that onnxruntime has no kernel for, although it reads the opset. test_limits.py holds each entry against
the installed onnxruntime: one that has gained its kernel is taken out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

#: Operator → first opset at which onnxruntime refuses it. The quantizers changed in opset 28, which 1.32 reads without kernels for
#: them. Swish never had one: at opset 24 the function that defines it takes its place, at later ones it is not applied.
REFUSED = {"DequantizeLinear": 28, "QuantizeLinear": 28, "Swish": 25}
#: Operator → first opset at which onnxruntime computes the ONNX function that defines it, and no kernel of its own, which sums and
#: rounds in another order: ReduceSum and Log for ReduceLogSum, with Exp in float64 before them for ReduceLogSumExp.
TAKEN_APART = {"ReduceLogSum": 28, "ReduceLogSumExp": 28}
_FIRST = {**REFUSED, **TAKEN_APART}


def without_kernel(model: bytes) -> frozenset[str]:
    """Operators of the tables above that occur in ``model``, at opsets where they have no kernel. Two models are compared in
    onnxruntime where this is the same for both; otherwise it would not run one of them, or round on two different ways."""
    proto = onnx.ModelProto.FromString(model)
    found = _beyond(proto.graph.node, proto.opset_import)
    return found.union(*(_beyond(function.node, function.opset_import) for function in proto.functions))


def _beyond(nodes: Iterable[onnx.NodeProto], imports: Iterable[onnx.OperatorSetIdProto]) -> frozenset[str]:
    opset = next((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), 0)
    if opset < min(_FIRST.values()):
        return frozenset()
    standard = {node.op_type for node in _all_nodes(nodes) if node.domain in ("", "ai.onnx")}
    return frozenset(op for op in standard if opset >= _FIRST.get(op, opset + 1))


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)
