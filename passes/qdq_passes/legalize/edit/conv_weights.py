"""Weights of linear layers as those of 1×1 convolutions: [K, N] becomes [N, K, 1, 1], read when it is saved and not before."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.build import Builder
from qdq_passes.graph.edit import Namer, graph_of, make_node, new_constant
from qdq_passes.graph.operators.linears import Linear
from qdq_passes.graph.uses import constant_array, integer_of, integers_of, is_standard


class ConvWeights:
    """Makes each weight once.

    Args:
        builder: the builder of the pass.
        are_computed: let nodes on the graph transpose the weights, which stay as they are.
    """

    def __init__(self, builder: Builder, *, are_computed: bool) -> None:
        self._builder, self._computed = builder, are_computed
        self._made: dict[tuple[ir.Value, bool, ir.Graph | None], ir.Value] = {}
        self._of: list[tuple[ir.Value, ir.Value]] = []

    def weight(self, linear: Linear, anchor: ir.Node) -> ir.Value:
        """[N, K, 1, 1], made before ``anchor``."""
        value, is_turned = linear.weight, linear.is_turned
        while (node := value.producer()) is not None and is_standard(node, "Transpose") and not self._computed:
            if ("perm" in node.attributes and integers_of(node, "perm") != [1, 0]) or node.inputs[0] is None:
                break
            value, is_turned = node.inputs[0], not is_turned
        key = (value, is_turned, None if value.is_initializer() and not self._computed else graph_of(anchor))
        if key not in self._made:
            self._made[key] = self._make(value, is_turned, anchor)
        return self._made[key]

    def bias(self, linear: Linear, anchor: ir.Node) -> ir.Value | None:
        """[N]."""
        value = linear.bias
        if value is None or (value.shape is not None and len(value.shape) == 1):
            return value
        array = constant_array(value)
        if array is None:
            return self._builder.at(anchor).reshape(value, [-1])
        if array.ndim == 1:
            return value
        return new_constant(graph_of(anchor), self._builder.namer, f"{value.name}_flat", array.ravel(), [anchor])

    def copies(self) -> list[tuple[str, int]]:
        """(name, bytes) of weights that others than linear layers read as well: these are stored twice."""
        return [
            (old.name or "", new.const_value.nbytes)
            for old, new in self._of
            if old.uses() and new.const_value is not None
        ]

    def _make(self, value: ir.Value, is_turned: bool, anchor: ir.Node) -> ir.Value:
        node = value.producer()
        tensor = None if self._computed else _tensor(value)
        if tensor is not None:
            return self._stored(value, tensor, is_turned, anchor)
        if node is not None and is_standard(node, "DequantizeLinear") and not self._computed:
            parts = [None if v is None else _tensor(v) for v in node.inputs]
            if all(part is not None or v is None for part, v in zip(parts, node.inputs, strict=True)):
                return self._dequantized(node, is_turned, anchor)
        site = self._builder.at(anchor, base=value.name)
        matrix = value if is_turned else site.transpose(value, 1, 0)
        return site.unsqueeze(matrix, 2, 3)

    def _stored(self, value: ir.Value, tensor: ir.TensorProtocol, is_turned: bool, anchor: ir.Node) -> ir.Value:
        namer, graph = self._builder.namer, graph_of(anchor)
        name = f"{value.name}_conv"
        made = as_conv(tensor, name, is_turned=is_turned)
        owner = value.graph if isinstance(value.graph, ir.Graph) and value.is_initializer() else graph
        new = _new_initializer(owner, namer, name, made, anchor)
        self._of.append((value, new))
        return new

    def _dequantized(self, node: ir.Node, is_turned: bool, anchor: ir.Node) -> ir.Value:
        """DequantizeLinear of a weight in its new form; scales per axis keep their numbers, those of blocks turn with it."""
        inputs: list[ir.Value | None] = []
        for value in node.inputs:
            tensor = _tensor(value) if value is not None else None
            is_matrix = tensor is not None and len(tensor.shape) == 2
            inputs.append(
                self._stored(value, tensor, is_turned, anchor)
                if is_matrix and value is not None and tensor is not None
                else value
            )
        axis = integer_of(node, "axis", 1) % 2
        attributes = [a for key, a in node.attributes.items() if key != "axis"]
        attributes.append(ir.AttrInt64("axis", axis if is_turned else 1 - axis))
        name = self._builder.namer.fresh(f"{node.name}_conv")
        new = make_node(
            "DequantizeLinear", inputs, name=name, output=self._builder.namer.fresh(f"{name}_output"), like=node.outputs[0],
            attributes=attributes, domain=node.domain, stands_for=[node],
        )  # fmt: skip
        new.outputs[0].shape = inputs[0].shape.copy() if inputs[0] is not None and inputs[0].shape is not None else None
        graph_of(anchor).insert_before(anchor, new)
        return new.outputs[0]


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of a constant, not read."""
    if value.is_graph_input():
        return None
    if value.const_value is not None:
        return value.const_value
    array = constant_array(value)
    return None if array is None else ir.tensor(array)


def as_conv(tensor: ir.TensorProtocol, name: str, *, is_turned: bool) -> ir.TensorProtocol:
    """``tensor`` [K, N], or [N, K] where ``is_turned``, as [N, K, 1, 1]: the same bytes in the file where they need not move."""
    rows, columns = tensor.shape.numpy()
    sizes = (rows, columns, 1, 1) if is_turned else (columns, rows, 1, 1)
    if is_turned and isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=ir.Shape(sizes), name=name,
            base_dir=tensor.base_dir,
        )  # fmt: skip

    def made() -> ir.TensorProtocol:
        array = tensor.numpy() if is_turned else tensor.numpy().T
        return ir.Tensor(np.ascontiguousarray(array).reshape(sizes), dtype=tensor.dtype, name=name)

    return ir.LazyTensor(made, tensor.dtype, ir.Shape(sizes), name=name)


def _new_initializer(graph: ir.Graph, namer: Namer, name: str, tensor: ir.TensorProtocol, anchor: ir.Node) -> ir.Value:
    new = new_constant(graph, namer, name, tensor, [anchor])
    if new.const_value is not None and new.const_value.name != new.name:
        new.const_value.name = new.name
    return new
