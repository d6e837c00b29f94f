"""Damage to a model: bytes, fields of the protobuf, and what a bug of an exporter or a hostile hand would plausibly write.

A mutated model is a list of steps, each with a seed of its own: any of them can be left out, and the others do the same."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from onnx import helper, numpy_helper

T = onnx.TensorProto
Rng = random.Random
#: Types of weights whose numbers are damaged.
_NUMBERS = {T.FLOAT: "f4", T.INT64: "i8", T.INT32: "i4", T.INT8: "i1", T.UINT8: "u1"}

INTEGERS = (0, 1, -1, 2, 3, 7, 16, 63, 64, 65, 255, -128, 2**31 - 1, -(2**31), 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 1e-45, 1e-30, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "\x1b[2J\x1b]0;owned\x07", "../../escape", "a/b", "ü\u202e", "n" * 3000, "\n", "{}", "*", "NaN", "-1")
#: Names of dimensions: some are arithmetic, some look like it and take forever where they are computed.
DIMENSIONS = (
    "N", "batch", "2*N", "N-1", "?", "", "N // 2", "(N + 3)*M//4", "N % 8", "9**9**9**9", "(" * 200 + "N" + ")" * 200, "9" * 5000,
    "N//0", "N*" * 500 + "N", "+".join(f"(a{i} + b)*c{i}" for i in range(99)), f"{2**62}*N", "floor(" * 99, "a) + (b", "-" * 999,
)  # fmt: skip
#: Values of attributes that are no number.
WORDS = ("linear", "cubic", "nearest", "SAME_UPPER", "VALID", "edge", "wrap", "none", "tanh", "DCR")
#: Operators that make much of little, and the attribute by which they do.
OPERATORS = {
    "Expand": "", "Reshape": "", "Slice": "", "Squeeze": "", "Unsqueeze": "", "Tile": "", "Gather": "axis", "Concat": "axis",
    "Transpose": "", "ConstantOfShape": "", "DequantizeLinear": "axis", "QuantizeLinear": "axis", "Cast": "to", "Softmax": "axis",
}  # fmt: skip


def mutated(data: bytes, seeds: Sequence[str], other: bytes) -> bytes:
    """``data`` after one step for each of ``seeds``; ``other`` is a second model to take pieces of."""
    model = onnx.ModelProto.FromString(data)
    to_bytes: list[Rng] = []
    for seed in seeds:
        rng = Rng(seed)
        kind = rng.choices(
            (to_bytes.append, partial(_field, model), partial(_damage, model), partial(_call, model)), (2, 6, 12, 1)
        )[0]
        with contextlib.suppress(
            ValueError
        ):  # a number that a field does not hold, a text that is no UTF-8, bytes that are no numbers
            kind(rng)
    made = model.SerializeToString()
    for rng in to_bytes:
        made = _bytes(made, rng, other)
    return made


def _bytes(data: bytes, rng: Rng, other: bytes) -> bytes:
    at, start, size = rng.randrange(len(data) + 1), rng.randrange(len(other)), rng.choice((1, 1, 2, 4, 8, 64))
    doubled, foreign = data[at : at + size] * 2, other[start : start + 8 * size]
    new = rng.choice((rng.randbytes(size), b"", b"\xff" * size, b"\0" * size, doubled, foreign))
    return data[:at] if rng.random() < 0.05 else data[:at] + new + data[at + size :]


# --- fields -----------------------------------------------------------------------------------------------------------


def _field(model: onnx.ModelProto, rng: Rng) -> None:
    """Change one field of one message, wherever in ``model``, half of the time one that is set."""
    messages = list(walk(model))
    message = rng.choice(messages)
    there = [each for each, _ in message.ListFields()] if rng.random() < 0.5 else []
    each = rng.choice(there or message.DESCRIPTOR.fields)
    new = _value(each, messages, rng)
    if each.is_repeated:
        values = _with(new, list(getattr(message, each.name)), rng)
        message.ClearField(each.name)
        getattr(message, each.name).extend(values)
    elif rng.random() < 0.25:
        message.ClearField(each.name)
    elif isinstance(new, Message):
        getattr(message, each.name).CopyFrom(new)
    else:
        setattr(message, each.name, new)


def walk(message: Message) -> Iterator[Message]:
    """``message`` and all in it."""
    yield message
    for each, value in message.ListFields():
        if each.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in list(value) if each.is_repeated else [value]:
                yield from walk(inner)


def _with(new: object, values: list[Any], rng: Rng) -> list[Any]:
    """``values`` with one dropped, doubled, set to ``new`` or behind it; or in another order, or none."""
    values, at = copy.deepcopy(values), rng.randrange(len(values) + 1)
    here = values[at : at + 1]
    put = rng.choice(([], here * 2, [new], [new, *here]))
    return rng.choices(([], values[:at][::-1] + values[at:], values[:at] + put + values[at + 1 :]), (1, 1, 4))[0]


def _value(each: FieldDescriptor, messages: Sequence[Message], rng: Rng) -> object:
    """A value for the field ``each``: a number, a text, or a message from elsewhere in the model."""
    if each.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        others = [message for message in messages if message.DESCRIPTOR is each.message_type]
        return copy.deepcopy(rng.choice(others)) if others else GetMessageClass(each.message_type)()
    if each.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        nodes = [m for m in messages if isinstance(m, onnx.NodeProto)]
        names = [name for m in rng.sample(nodes, min(3, len(nodes))) for name in (*m.input, *m.output, m.op_type)]
        text = rng.choice((*TEXTS, *names, *WORDS))
        return text.encode() if each.type == FieldDescriptor.TYPE_BYTES else text
    if each.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if each.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([value.number for value in each.enum_type.values])
    return rng.choice((*INTEGERS, rng.randrange(40)))


# --- plausible damage -------------------------------------------------------------------------------------------------


def _damage(model: onnx.ModelProto, rng: Rng) -> None:
    """Do what a bug of an exporter, of another editor, or a hostile hand does."""
    graphs = [m for m in walk(model) if isinstance(m, onnx.GraphProto | onnx.FunctionProto)]
    graph = graphs[0] if graphs and rng.random() < 0.7 else rng.choice([*graphs, onnx.GraphProto()])
    if graph.node:
        rng.choice(DAMAGES)(graph, rng.choice(graph.node), rng)


def _name(graph: onnx.GraphProto, rng: Rng) -> str:
    names = [name for node in graph.node for name in (*node.input, *node.output)]
    return rng.choice([*names, "", "ghost"])


def _rewire(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    """Another name for what the node reads or makes."""
    if names := rng.choice((node.input, node.input, node.output)):
        names[rng.randrange(len(names))] = rng.choice((_name(graph, rng), _name(graph, rng), rng.choice(TEXTS)))


def _arity(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    values = rng.choice((node.input, node.output))
    if values and rng.random() < 0.5:
        del values[-1]
    else:
        values.append(rng.choice((_name(graph, rng), f"extra{rng.randrange(9)}")))


def _operator(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    node.op_type = rng.choice([s.name for s in onnx.defs.get_all_schemas()])
    if rng.random() < 0.5:
        node.ClearField("attribute")


def _attribute(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    """Another value, of its kind or of another; of one that is there, or that its operator knows."""
    known = list(onnx.defs.get_schema(node.op_type).attributes) if onnx.defs.has(node.op_type) else []
    name = rng.choice([*(a.name for a in node.attribute), *known, "axis"])
    old = [a for a in node.attribute if a.name == name]
    value = rng.choice((
        rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice((*WORDS, *TEXTS)), rng.choices(INTEGERS, k=rng.randrange(1, 5)),
        [rng.choice(FLOATS)], numpy_helper.from_array(np.array(rng.choice(INTEGERS))),
    ))  # fmt: skip
    if old and old[0].ints and rng.random() < 0.6:
        value = list(old[0].ints)
        value[rng.randrange(len(value))] = rng.choice(INTEGERS)
    for each in old:
        node.attribute.remove(each)
    node.attribute.append(helper.make_attribute(name, value))


def _call(model: onnx.ModelProto, rng: Rng) -> None:
    """A call of a function that calls the one before it, once or twice, as do those; some call themselves, or nobody's function."""
    domain, count, times = rng.choice(("made", "", "ai.onnx")), rng.choice((1, 3, 9, 99, 400)), rng.choice((1, 1, 2))
    for number in range(count):
        inner = f"F{number - 1 if rng.random() < 0.999 else rng.randrange(count)}"
        names = ["a", *(f"t{i}" for i in range(1, times if number else 1))]
        nodes = [helper.make_node(inner, [a], [b], domain=domain) for a, b in itertools.pairwise(names)]
        nodes.append(helper.make_node(inner if number else "Relu", names[-1:], ["b"], domain=domain if number else ""))
        opsets = [helper.make_opsetid(each, 21) for each in {"", domain}]
        model.functions.append(helper.make_function(domain, f"F{number}", ["a"], ["b"], nodes, opsets))
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 21))
    node = rng.choice(list(model.graph.node) or [onnx.NodeProto()])
    if node.input:
        call = helper.make_node(f"F{count - 1}", node.input[:1], ["made"], domain=domain)
        model.graph.node.insert(list(model.graph.node).index(node), call)
        node.input[0] = "made"


def _dims(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    infos = [] if isinstance(graph, onnx.FunctionProto) else [*graph.input, *graph.output, *graph.value_info]
    if infos:
        dims = rng.choice(infos).type.tensor_type.shape.dim
        at, name = rng.randrange(len(dims) + 1), rng.choice(DIMENSIONS)
        if rng.random() < 0.25:
            del dims[at : at + 1]
        else:
            each = dims[at] if at < len(dims) else dims.add()
            setattr(each, *rng.choice((("dim_param", name), ("dim_value", rng.choice(INTEGERS)))))


def _weight(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    """A weight of other numbers, another type, another shape; or that is none any more."""
    weights = [] if isinstance(graph, onnx.FunctionProto) else graph.initializer
    small = [w for w in weights if w.ByteSize() < 4096] or weights
    if not small:
        return
    tensor, act = rng.choice(small), rng.randrange(6)
    if act == 0:
        tensor.data_type = rng.choice(T.DataType.values())
    elif act == 1 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(INTEGERS)
    elif act == 2:
        graph.initializer.remove(tensor)
    elif act == 3:
        graph.input.add(name=tensor.name).type.tensor_type.elem_type = tensor.data_type
    elif tensor.raw_data and tensor.data_type in _NUMBERS:
        array = np.frombuffer(tensor.raw_data, _NUMBERS[tensor.data_type]).copy()
        with np.errstate(all="ignore"):
            new = np.array(rng.choice(FLOATS if tensor.data_type == T.FLOAT else INTEGERS)).astype(array.dtype)
        array[rng.randrange(array.size)] = new
        if act == 5:
            array = array[: rng.randrange(array.size + 1)]
            tensor.dims[:] = array.shape
        tensor.raw_data = array.tobytes()


def _drop(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    if rng.random() < 0.5 or isinstance(graph, onnx.FunctionProto):
        graph.node.remove(node)
    else:
        graph.ClearField(rng.choice(("value_info", "output", "input", "initializer")))


def _insert(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    """A node more, one of `OPERATORS`, that reads a constant or another value beside the one it stands behind."""
    if not node.input:
        return
    made, at = f"made{rng.randrange(10**6)}", list(graph.node).index(node)
    op, attribute = rng.choice(list(OPERATORS.items()))
    least = onnx.defs.get_schema(op).min_input
    more = rng.choices((f"{made}_c", f"{made}_c", _name(graph, rng)), k=rng.randrange(least, least + 2) - 1)
    inputs, node.input[0] = [node.input[0], *more], made
    numbers = rng.choice(([2 ** rng.randrange(40)] * rng.randrange(1, 4), rng.choices(INTEGERS, k=rng.randrange(1, 4))))
    constant = numpy_helper.from_array(np.array(numbers))
    attributes = {attribute: rng.choice(INTEGERS)} if attribute else {}
    graph.node.insert(at, helper.make_node(op, inputs, [made], **attributes))
    graph.node.insert(0, helper.make_node("Constant", [], [f"{made}_c"], value=constant))


DAMAGES = (_rewire, _arity, _operator, _attribute, _attribute, _dims, _weight, _weight, _drop, _insert)
