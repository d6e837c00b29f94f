"""How the integers that flow through a graph are to be read: told by who quantizes them and by who computes on or dequantizes
them, and carried along operators that only move elements."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_dynamic_quantize, is_quantize
from qdq_passes.graph.operators.qoperators import MICROSOFT, Parameters, form_of, parameters_of, result_parameters
from qdq_passes.graph.uses import DATA_MOVEMENT, all_nodes, constant_array, input_at, is_constant, is_standard

#: Operators that write integers they read (Pad: or its constant), without computing on them. Their other inputs are indices,
#: sizes and the like. Resize does so in its mode nearest; in the others it interpolates between integers.
MOVES_INTEGERS = DATA_MOVEMENT | {
    "Compress", "GatherElements", "GatherND", "MaxPool", "Pad", "ReduceMax", "ReduceMin", "Resize", "ReverseSequence", "TopK",
    "Upsample",
}  # fmt: skip
#: Operators that do so with several inputs, which must be read alike: the input indices, None for all.
MERGES_INTEGERS: dict[str, tuple[int, ...] | None] = {"Concat": None, "Max": None, "Min": None, "Where": (1, 2)}
#: Operators whose result is the same on integers as on the floats they stand for, because scales are positive.
READS_ONLY = frozenset({"ArgMax", "ArgMin", "Shape", "Size"})
#: Domains whose Q and DQ the integers are followed between.
QDQ_DOMAINS = ("", "ai.onnx", MICROSOFT)


def moved_inputs(node: ir.Node) -> list[int]:
    """Indices of the inputs whose elements ``node`` moves to its output, or only looks at; none when it does neither."""
    if node.domain == MICROSOFT and node.op_type == "NhwcMaxPool":
        return [0]
    if not is_standard(node, *MOVES_INTEGERS, *MERGES_INTEGERS, *READS_ONLY):
        return []
    wanted = MERGES_INTEGERS.get(node.op_type, (0,))
    return [k for k in (range(len(node.inputs)) if wanted is None else wanted) if input_at(node, k) is not None]


def moved_outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs of ``node`` that hold moved elements; MaxPool and TopK also write indices."""
    if node.op_type in READS_ONLY:
        return []
    return list(node.outputs) if node.op_type == "Split" else [node.outputs[0]]


def integer_flow(model: ir.Model) -> dict[ir.Value, Parameters]:
    """How each integer value of ``model`` is to be read, as far as it is told; bodies and functions included.

    Who writes the integers is believed before who reads them.
    """
    nodes = all_nodes(model)
    flow: dict[ir.Value, Parameters] = {}
    for node in nodes:
        written = _written(node)
        if written is not None:
            flow[node.outputs[0]] = written
    movers = [node for node in nodes if moved_inputs(node)]
    _carry_forward(movers, flow)
    for node in nodes:
        for value, parameters in _read(node):
            flow.setdefault(value, parameters)
    for node in reversed(movers):
        for output in moved_outputs(node):
            if output in flow:
                _carry_back(node, flow[output], flow)
    _carry_forward(movers, flow)
    return flow


def _written(node: ir.Node) -> Parameters | None:
    """How the integers that ``node`` writes are to be read, when it quantizes."""
    if is_quantize(node) and node.domain in QDQ_DOMAINS and len(node.inputs) > 1 and node.inputs[1] is not None:
        return _linear(node, node.inputs[1])
    if is_dynamic_quantize(node) and len(node.outputs) == 3:
        return Parameters(node.outputs[1], node.outputs[2])
    form = form_of(node)
    return result_parameters(node, form) if form is not None else None


def _read(node: ir.Node) -> list[tuple[ir.Value, Parameters]]:
    """Integers that ``node`` reads with their parameters."""
    if is_dequantize(node) and node.domain in QDQ_DOMAINS:
        integers, scale = input_at(node, 0), input_at(node, 1)
        return [(integers, _linear(node, scale))] if integers is not None and scale is not None else []
    form = form_of(node)
    if form is None:
        return []
    return [
        (value, parameters_of(node, operand))
        for operand in form.operands
        if (value := input_at(node, operand.value)) is not None
    ]


def _linear(node: ir.Node, scale: ir.Value) -> Parameters:
    numbers = {
        key: node.attributes[key].as_int() if key in node.attributes and not node.attributes[key].is_ref() else default
        for key, default in (("axis", 1), ("block_size", 0))
    }
    return Parameters(scale, input_at(node, 2), numbers["axis"], numbers["block_size"])


def _carry_forward(movers: list[ir.Node], flow: dict[ir.Value, Parameters]) -> None:
    for node in movers:
        sources = [flow.get(value) for k in moved_inputs(node) if (value := node.inputs[k]) is not None]
        first = sources[0]
        if first is None or not all(s is not None and same(first, s) for s in sources):
            continue
        moved = _moved(node, first)
        for output in moved_outputs(node):
            if moved is not None:
                flow.setdefault(output, moved)


def _carry_back(node: ir.Node, parameters: Parameters, flow: dict[ir.Value, Parameters]) -> None:
    """What is known of the output holds for the inputs, where nothing else is known of them."""
    moved = _moved(node, parameters, back=True)
    for k in moved_inputs(node):
        value = node.inputs[k]
        if moved is not None and value is not None:
            flow.setdefault(value, moved)


def is_per_tensor(parameters: Parameters) -> bool:
    """Whether one scale and one zero point hold for all integers. Values of unknown size count as one."""
    return not parameters.block_size and all(
        _size(value) in (None, 1) for value in (parameters.scale, parameters.zero_point)
    )


def _size(value: ir.Value | object) -> int | None:
    if not isinstance(value, ir.Value):
        return getattr(value, "size", None)
    tensor = value.const_value
    if tensor is not None:
        return tensor.size
    shape = value.shape
    if shape is None or not shape.is_static():
        return None
    size = 1
    for dim in shape:
        size *= int(dim) if isinstance(dim, int) else 1
    return size


def _moved(node: ir.Node, parameters: Parameters, *, back: bool = False) -> Parameters | None:
    """``parameters`` behind ``node`` (``back``: before it); None when it cannot carry them."""
    if is_per_tensor(parameters) or node.op_type == "Identity":
        return parameters
    if node.op_type != "Transpose" or parameters.block_size or "perm" not in node.attributes:
        return None
    order = list(node.attributes["perm"].as_ints())
    axis = parameters.axis % len(order)
    return dataclasses.replace(parameters, axis=order[axis] if back else order.index(axis))


def same(a: Parameters, b: Parameters) -> bool:
    """Whether ``a`` and ``b`` read integers alike: the same values, or equal constants."""
    if (a.axis != b.axis and not is_per_tensor(a)) or a.block_size != b.block_size:
        return False
    if a.scale is b.scale and a.zero_point is b.zero_point:
        return True
    if a.scale is not b.scale:
        scales = a.scales, b.scales
        if scales[0] is None or scales[1] is None or not np.array_equal(scales[0].ravel(), scales[1].ravel()):
            return False
    zeros = _zero_point(a), _zero_point(b)
    return a.zero_point is b.zero_point or (zeros[0] is not None and zeros[0] == zeros[1])


def _zero_point(parameters: Parameters) -> list[float] | None:
    """The zero points as numbers, one for all that are equal; None when they are not constant."""
    if parameters.zero_point is None:
        return [0.0]
    if not is_constant(parameters.zero_point):
        return None
    array = constant_array(parameters.zero_point)
    numbers = [] if array is None else [float(z) for z in array.ravel()]
    return numbers[:1] if len(set(numbers)) == 1 else numbers
