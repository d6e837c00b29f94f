"""QLinear operators, integer products and recurrent operators as float operators between DequantizeLinear and QuantizeLinear;
part of convert-qoperators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import drop_unread, graph_of, inherit, make_node, new_constant, remove, replace_nodes
from qdq_passes.graph.operators.qdq_ops import OPSET_OF_BLOCKS, opset_at
from qdq_passes.graph.operators.qoperators import (
    Form,
    Parameters,
    bias_parameters,
    parameters_of,
    recurrent_weights,
    result_parameters,
    storage_type,
)
from qdq_passes.graph.uses import constant_array, input_at
from qdq_passes.integers._convert_movement import rank_of, to_channels_first, to_channels_last
from qdq_passes.integers.edit.flow import OPSET_OF_DYNAMIC, Floats, float_name_of, float_twin, take_place, why_not
from qdq_passes.integers.look.integer_products import FLOAT_OPS, IntegerProduct
from qdq_passes.numerics.quantize import dequantize

#: First opset whose ReduceMean has its axes as an input, and whose Softmax works on one axis.
OPSET_OF_AXES_INPUT, OPSET_OF_SOFTMAX = 18, 13


def convert_form(node: ir.Node, form: Form, floats: Floats, flow: dict[ir.Value, Parameters]) -> Iterator[Change]:
    """``QLinearX(x_q, …)`` → ``Q(X(DQ(x_q), …))``; ``flow`` then knows the new integers."""
    reason = _why_not(node, form, floats, flow)
    if reason is not None:
        yield skip(node, reason)
        return
    inputs = _inputs(node, form, floats)
    nodes = _float_nodes(node, form, inputs, floats)
    graph_of(node).insert_before(node, nodes)
    results = list(nodes[-1].outputs)
    parameters = result_parameters(node, form)
    if parameters is not None:
        old, real = node.outputs[0], results[0]
        if _is_channels_last(node):
            real = to_channels_last(node, real, floats)
        if old.shape is not None:
            real.shape = old.shape.copy()
        floats.name_floats(real, old)
        quantizer = floats.quantized(real, old, parameters, [node], dtype=_storage_type(node, form))
        quantizer.outputs[0].shape = real.shape.copy() if real.shape is not None else None
        graph_of(node).insert_before(node, quantizer)
        results = [quantizer.outputs[0]]
        flow[quantizer.outputs[0]] = parameters
    for old, new in zip(node.outputs, results, strict=True):
        take_place(old, new, floats.namer)
    old_inputs = list(node.inputs)
    yield from remove(node, f"{form.float_op} on floats")
    drop_unread(old_inputs)


def _storage_type(node: ir.Node, form: Form) -> ir.DataType | None:
    """Type of the integers that ``node`` writes: all its integers have the type of the first operand."""
    operand = form.operands[0]
    value = input_at(node, operand.value)
    return None if value is None else storage_type(value, parameters_of(node, operand))


def _why_not(node: ir.Node, form: Form, floats: Floats, flow: dict[ir.Value, Parameters]) -> str | None:
    opset = opset_at(floats.model, node)
    if not form.operands:
        return "lacks an operand or its scale"
    for operand in form.operands:
        value = input_at(node, operand.value)
        reason = None if value is None else why_not(value, parameters_of(node, operand), flow)
        if reason is not None:
            return reason
    bias, parameters = input_at(node, form.bias) if form.bias is not None else None, bias_parameters(node, form)
    count = 1 if parameters is None or parameters.scales is None else parameters.scales.size
    if bias is not None and count > 1 and bias.shape is not None and list(bias.shape)[-1:] != [count]:
        return f"its bias of shape {list(bias.shape)} has {count} scales"
    if _is_channels_last(node) and rank_of(node) is None:
        return "its channels are last and the rank of its input is not known"
    if form.dynamic is not None and opset < OPSET_OF_DYNAMIC:
        return f"needs DynamicQuantizeLinear, which opset {opset} does not have"
    if form.float_op == "Softmax" and _softmax_opset(node) >= OPSET_OF_SOFTMAX > opset and not _is_last_axis(node):
        return f"its axis is not the last one, and Softmax of opset {opset} takes all axes behind it"
    return None


def _inputs(node: ir.Node, form: Form, floats: Floats) -> list[ir.Value | None]:
    """Inputs of the float operator: floats for integers, everything else as it is."""
    operands = {operand.value: operand for operand in form.operands}
    inputs: list[ir.Value | None] = []
    for index in form.inputs:
        value = input_at(node, index)
        if value is not None and index in operands:
            real = floats.of(node, value, parameters_of(node, operands[index]))
            is_image = index == form.inputs[0] and _is_channels_last(node)
            value = to_channels_first(node, real, floats) if is_image else real
        elif value is not None and index == form.bias:
            value = floats.of(node, value, bias_parameters(node, form) or _computed_bias(node, form, floats))
        elif value is not None and index == form.dynamic:
            value = floats.dynamic(node, value)
        inputs.append(value)
    return inputs


def _computed_bias(node: ir.Node, form: Form, floats: Floats) -> Parameters:
    """The parameters of a bias whose scale s_x·s_w (·alpha) is computed at run time, by Mul nodes before ``node``."""
    scales = [input_at(node, operand.scale) for operand in form.operands[:2]]
    if "alpha" in node.attributes:
        alpha = np.float32(node.attributes["alpha"].as_float())
        scales.append(new_constant(graph_of(node), floats.namer, f"{node.name}_alpha", np.asarray(alpha), [node]))
    product = scales[0]
    for scale in scales[1:]:
        mul = make_node(
            "Mul", [product, scale], name=floats.namer.fresh(f"{node.name}_bias_scale_Mul"), stands_for=[node],
            output=floats.namer.fresh(f"{node.name}_bias_scale"), like=_longer(product, scale),
        )  # fmt: skip
        graph_of(node).insert_before(node, mul)
        product = mul.outputs[0]
    assert product is not None
    return Parameters(product)


def _longer(a: ir.Value | None, b: ir.Value | None) -> ir.Value | None:
    """The one whose shape the product has, as far as shapes are known."""
    return b if b is not None and b.shape is not None and len(b.shape) else a


def _float_nodes(node: ir.Node, form: Form, inputs: list[ir.Value | None], floats: Floats) -> list[ir.Node]:
    """The float operator, and what must stand around it; the last one writes the results."""
    namer, added = floats.namer, None
    if form.adds:
        added = inputs.pop()
    while inputs and inputs[-1] is None:
        inputs.pop()
    attributes = {k: a for k, a in node.attributes.items() if k not in form.dropped}
    if form.float_op == "ReduceMean" and opset_at(floats.model, node) >= OPSET_OF_AXES_INPUT and "axes" in attributes:
        axes = np.array(attributes.pop("axes").as_ints(), np.int64)
        inputs.append(new_constant(graph_of(node), namer, f"{node.name}_axes", axes, [node]))
    if form.float_op == "Softmax":
        attributes["axis"] = ir.AttrInt64("axis", _softmax_axis(node))
    name = float_name_of(node, form.float_op, namer)
    outputs = [float_twin(v, namer) for v in node.outputs]
    first = parameters_of(node, form.operands[0])
    outputs[0].type = ir.TensorType(first.float_type)
    if _is_channels_last(node):
        outputs[0].shape = None
    new = inherit(
        ir.Node(form.domain, form.float_op, inputs, list(attributes.values()), outputs=outputs, name=name), [node]
    )
    nodes = [new]
    takes_one_axis = opset_at(floats.model, node) >= OPSET_OF_SOFTMAX
    if (
        form.float_op == "Softmax"
        and _softmax_opset(node) < OPSET_OF_SOFTMAX
        and takes_one_axis
        and not _is_last_axis(node)
    ):
        nodes = _flattened(new, _softmax_axis(node), floats)
    if added is not None:
        nodes.append(
            make_node(
                "Add", [nodes[-1].outputs[0], added], name=namer.fresh(f"{name}_Add"), stands_for=[node],
                output=namer.fresh(f"{node.outputs[0].name}_sum"), like=node.outputs[0],
            )
        )  # fmt: skip
    return nodes


def _flattened(softmax: ir.Node, axis: int, floats: Floats) -> list[ir.Node]:
    """Softmax over all axes from ``axis`` on: Flatten, Softmax of the last axis, Reshape to the shape there was."""
    namer, source = floats.namer, softmax.inputs[0]
    assert source is not None

    def step(op_type: str, inputs: list[ir.Value], attributes: list[ir.Attr] | None = None) -> ir.Node:
        name = namer.fresh(f"{softmax.name}_{op_type}")
        made = make_node(
            op_type,
            inputs,
            name=name,
            output=namer.fresh(f"{name}_output"),
            attributes=attributes or [],
            stands_for=[softmax],
        )
        made.outputs[0].type = source.type
        return made

    flat = step("Flatten", [source], [ir.AttrInt64("axis", axis)])
    softmax.replace_input_with(0, flat.outputs[0])
    softmax.attributes["axis"] = ir.AttrInt64("axis", -1)
    softmax.outputs[0].shape = None
    shape = step("Shape", [source])
    shape.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    return [flat, softmax, shape, step("Reshape", [softmax.outputs[0], shape.outputs[0]])]


def _softmax_opset(node: ir.Node) -> int:
    return node.attributes["opset"].as_int() if "opset" in node.attributes else OPSET_OF_SOFTMAX


def _softmax_axis(node: ir.Node) -> int:
    if "axis" in node.attributes:
        return node.attributes["axis"].as_int()
    return -1 if _softmax_opset(node) >= OPSET_OF_SOFTMAX else 1


def _is_last_axis(node: ir.Node) -> bool:
    axis, source = _softmax_axis(node), node.inputs[0]
    return axis == -1 or (source is not None and source.shape is not None and axis == len(source.shape) - 1)


def _is_channels_last(node: ir.Node) -> bool:
    return "channels_last" in node.attributes and bool(node.attributes["channels_last"].as_int())


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
    inputs = [input_at(node, k) for k in range(8)]
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
