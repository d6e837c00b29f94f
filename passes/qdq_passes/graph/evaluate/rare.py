"""Operators on constants that `exact` does not compute: by onnx's reference, or by a runtime where their floats round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes.errors import QdqError
from qdq_passes.graph.evaluate.node import NodeEvaluator
from qdq_passes.graph.uses import DATA_MOVEMENT, is_standard
from qdq_passes.numerics.arrays import Array

#: Computes a model for several feeds: outputs by name, one mapping a feed.
Compute = Callable[[ir.Model, Sequence[Mapping[str, Array]]], Sequence[Mapping[str, Array]]]

#: Elements of an initializer up to which it is a constant to compute with; larger ones are weights.
LARGEST_INPUT = 8192
#: Terms of a sum of floats up to which it is computed: two orders of summing differ by 2^-24·sqrt(2^13) of it, signs at random.
MOST_TERMS = 8192
#: Operators whose results are not constant although their inputs are.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
#: Operators that onnx's reference and onnxruntime compute differently, beyond their rounding.
_DISPUTED = frozenset({"Attention", "MaxUnpool", "Resize", "Upsample"})
#: Operators that only place or pick elements, of whatever type.
_MOVING = DATA_MOVEMENT | {
    "Compress", "Concat", "GatherElements", "GatherND", "OneHot", "Pad", "ScatterElements", "ScatterND", "Where",
}  # fmt: skip
#: Operators that onnx's reference computes element by element in Python: their operands stay as small as `LARGEST_INPUT`.
_SLOW = frozenset({
    "AveragePool", "Conv", "ConvTranspose", "DFT", "Einsum", "GRU", "GridSample", "LSTM", "LpPool", "MaxPool", "RNN", "RoiAlign",
})  # fmt: skip
#: Operators that sum many terms: up to `MOST_TERMS` of them.
_SUMMING = frozenset({
    "Einsum", "Gemm", "LayerNormalization", "LogSoftmax", "LpNormalization", "MatMul", "MeanVarianceNormalization",
    "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Softmax",
})  # fmt: skip


class RareEvaluator:
    """Computes nodes: operators of integers and booleans alone, movement, and what may round where that is wanted.

    Args:
        versions: domain → version of the operator set that the nodes are written for.
        compute: a runtime for what may round; None: onnx's reference.
        rounds: whether arithmetic of floats that may round is computed.
    """

    def __init__(self, versions: Mapping[str, int], compute: Compute | None, *, rounds: bool) -> None:
        self._versions, self._compute, self._rounds = dict(versions), compute, rounds
        self._reference = NodeEvaluator(versions.get("", versions.get("ai.onnx", 1)))

    def outputs(
        self, node: ir.Node, known: Mapping[ir.Value, Array], dtypes: Sequence[ir.DataType | None]
    ) -> list[Array] | None:
        """The outputs of ``node``, of ``dtypes``; None where they are no constants or cannot be had."""
        inputs = [known[value] for value in node.inputs if value is not None]
        types = [dtype for value, dtype in zip(node.outputs, dtypes, strict=True) if value.name]
        moves = is_standard(node, *_MOVING)
        if not inputs or (not moves and None in types):
            return None
        if moves or _is_whole(inputs, types):
            found = None if is_standard(node, *_DISPUTED) else self._by_reference(node, known)
        elif not self._rounds or not _is_rounding(node):
            return None
        elif self._compute is not None:
            found = self._by_runtime(node, known, types)
        else:
            is_coarse = any(t is not None and t.is_floating_point() and t.itemsize < 4 for t in types)
            allowed = _is_affordable(node, inputs) and not is_coarse and not is_standard(node, *_DISPUTED)
            found = self._by_reference(node, known) if allowed else None
        made = [] if found is None else [a.dtype for value, a in zip(node.outputs, found, strict=True) if value.name]
        agree = moves or made == [dtype.numpy() for dtype in types if dtype is not None]
        return found if agree and all(dtype.kind != "O" for dtype in made) else None

    def _by_reference(self, node: ir.Node, known: Mapping[ir.Value, Array]) -> list[Array] | None:
        found = self._reference.arrays(node, known)
        return None if isinstance(found, str) else found

    def _by_runtime(
        self, node: ir.Node, known: Mapping[ir.Value, Array], types: Sequence[ir.DataType | None]
    ) -> list[Array] | None:
        """By the runtime, of a model that has ``node`` alone."""
        assert self._compute is not None
        twins = {
            value: ir.Value(name=f"i{k}", const_value=ir.tensor(known[value], name=f"i{k}"))
            for k, value in enumerate(dict.fromkeys(value for value in node.inputs if value is not None))
        }
        outputs = [ir.Value(name=f"o{k}" if value.name else "") for k, value in enumerate(node.outputs)]
        named = [value for value in outputs if value.name]
        for value, dtype in zip(named, types, strict=True):
            value.type = None if dtype is None else ir.TensorType(dtype)
        for value in twins.values():
            assert value.const_value is not None
            value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(value.const_value.shape.numpy())
        given = [None if value is None else twins[value] for value in node.inputs]
        alone = ir.Node("", node.op_type, given, list(node.attributes.values()), outputs=outputs, name="node")
        graph = ir.Graph(
            [], named, nodes=[alone], initializers=list(twins.values()), opset_imports=self._versions, name="node"
        )
        try:
            (found,) = self._compute(ir.Model(graph, ir_version=10), [{}])
        except QdqError:  # the runtime has no such operator, or not of these types
            return None
        return [np.asarray(found[value.name or ""]) if value.name else np.zeros(0) for value in outputs]


def _is_rounding(node: ir.Node) -> bool:
    """Whether ``node`` rounds at most; casts to what cannot hold its numbers do more, and other domains say nothing."""
    if node.domain not in ("", "ai.onnx") or is_standard(node, "CastLike"):
        return False
    if not is_standard(node, "Cast"):
        return True
    to = ir.DataType(node.attributes["to"].as_int())
    return to.is_floating_point() and to.itemsize > 1


def _is_affordable(node: ir.Node, inputs: Sequence[Array]) -> bool:
    if is_standard(node, *_SLOW):
        return all(array.size <= LARGEST_INPUT for array in inputs)
    if not is_standard(node, *_SUMMING):
        return True
    reduced = node.op_type.startswith("Reduce")
    return all((array.size if reduced else max(array.shape, default=1)) <= MOST_TERMS for array in inputs)


def _is_whole(inputs: Sequence[Array], types: Sequence[ir.DataType | None]) -> bool:
    """Whether integers and booleans alone go in and come out."""
    out = all(t is not None and (t.is_integer() or t == ir.DataType.BOOL) for t in types)
    return out and all(array.dtype.kind in "biu" for array in inputs)
