"""Integer products and recurrent operators as float operators over DequantizeLinear nodes; part of convert-qoperators."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import drop_unread, graph_of, inherit, make_node, new_constant, remove, replace_nodes
from qdq_passes.graph.operators.qdq_opsets import OPSET_OF_BLOCKS, opset_at
from qdq_passes.graph.operators.qoperators import Parameters, given, recurrent_weights
from qdq_passes.graph.uses import constant_array
from qdq_passes.integers.edit.flow import Floats, float_name_of, float_twin, take_place, why_not
from qdq_passes.integers.look.integer_products import FLOAT_OPS, IntegerProduct
from qdq_passes.numerics.quantize import dequantize


def convert_product(product: IntegerProduct, floats: Floats, flow: dict[ir.Value, Parameters]) -> Iterator[Change]:
    """``MatMulInteger → Cast → Mul`` → ``MatMul`` over the floats of both operands."""
    node, namer = product.node, floats.namer
    operands = list(zip(node.inputs[:2], (product.a, product.b), strict=True))
    reason = next((r for v, p in operands if v is not None and (r := why_not(v, p, flow)) is not None), None)
    if reason is not None:
        yield skip(node, reason)
        return
    inputs = [floats.of(node, value, parameters) for value, parameters in operands if value is not None]
    op_type = FLOAT_OPS[node.op_type]
    chain = [node, *product.chain]
    new = make_node(
        op_type, inputs, name=float_name_of(node, op_type, namer),
        output=namer.fresh(f"{product.result.name}_float"), like=product.result, stands_for=chain,
        attributes=node.attributes,
    )  # fmt: skip
    factors = [value for link in product.chain for value in link.inputs]
    old_inputs = list(node.inputs)
    yield replace_nodes(chain, [new], namer, f"{op_type} on floats")
    yield from _drop_muls(factors)
    drop_unread(old_inputs)


def _drop_muls(values: list[ir.Value | None]) -> Iterator[Change]:
    """Remove the products of scales that nobody reads any more, and constants among their factors."""
    for value in values:
        producer = value.producer() if value is not None else None
        if producer is None or producer.graph is None or producer.op_type != "Mul":
            drop_unread([value])
        elif not producer.outputs[0].uses() and not producer.outputs[0].is_graph_output():
            factors = list(producer.inputs)
            yield from remove(producer, "nobody reads this product of scales any more")
            yield from _drop_muls(factors)


def convert_recurrent(node: ir.Node, floats: Floats) -> Iterator[Change]:
    """``DynamicQuantizeLSTM`` → ``LSTM`` over ``Transpose(DQ(W))``: it holds [D, I, 4H], LSTM takes [D, 4H, I]."""
    namer, graph = floats.namer, graph_of(node)
    weights = recurrent_weights(node)
    reason = next((r for v, p in weights if (r := why_not(v, p)) is not None), None)
    if reason is not None or len(weights) != 2:
        yield skip(node, reason or "lacks a weight or its scale")
        return
    inputs = [given(node, k) for k in range(8)]
    for k, (value, parameters) in enumerate(weights, start=1):
        if parameters.block_size and opset_at(floats.model, node) < OPSET_OF_BLOCKS:
            array, encoding = constant_array(value), parameters.encoding(value)
            if array is None or encoding is None:
                yield skip(node, f"{value.name} is not constant")
                return
            real = new_constant(graph, namer, f"{value.name}_float", dequantize(array, encoding), [node])
        else:
            real = floats.of(node, value, parameters)
        transpose = make_node(
            "Transpose", [real], name=namer.fresh(f"{value.name}_Transpose"), attributes=[ir.AttrInt64s("perm", [0, 2, 1])],
            output=namer.fresh(f"{value.name}_transposed"), stands_for=[node],
        )  # fmt: skip
        transpose.outputs[0].type = ir.TensorType(parameters.float_type)
        graph.insert_before(node, transpose)
        inputs[k] = transpose.outputs[0]
    while inputs and inputs[-1] is None:
        inputs.pop()
    outputs = [float_twin(v, namer) for v in node.outputs]
    new = ir.Node(
        "", "LSTM", inputs, list(node.attributes.values()), outputs=outputs,
        name=float_name_of(node, "LSTM", namer),
    )  # fmt: skip
    inherit(new, [node])
    graph.insert_before(node, new)
    old_inputs = list(node.inputs)
    for old, output in zip(node.outputs, outputs, strict=True):
        take_place(old, output, namer)
    yield from remove(node, "LSTM on floats")
    drop_unread(old_inputs)
