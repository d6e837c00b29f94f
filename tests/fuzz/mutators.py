"""Damage to a model: bytes, fields of the protobuf, and what a bug of an exporter or a hostile hand would plausibly write.

A mutated model is a list of steps, each with a seed of its own: any of them can be left out, and the others do the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import numpy_helper

A, T = onnx.AttributeProto, onnx.TensorProto
Rng = random.Random
#: Types of weights whose numbers are damaged, and the bytes of one.
_NUMBERS = {T.FLOAT: 4, T.INT64: 8, T.INT32: 4, T.INT8: 1, T.UINT8: 1}

INTEGERS = (0, 1, -1, 2, 3, 7, 16, 63, 64, 65, 255, -128, 2**31 - 1, -(2**31), 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 1e-45, 1e-30, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "x",
    "\x1b[2J\x1b]0;owned\x07",
    "../../escape",
    "a/b",
    "ü\u202e",
    "n" * 3000,
    "\n",
    "{}",
    "*",
    "NaN",
    "-1",
    "0",
)
#: Values of attributes that are no number.
WORDS = (
    "linear",
    "cubic",
    "nearest",
    "SAME_UPPER",
    "VALID",
    "constant",
    "edge",
    "wrap",
    "none",
    "tanh",
    "bilinear",
    "DCR",
)


def mutated(data: bytes, seeds: Sequence[str], other: bytes) -> bytes:
    """``data`` after one step for each of ``seeds``; ``other`` is a second model to take pieces of."""
    model = onnx.ModelProto.FromString(data)
    byte_steps = []
    for seed in seeds:
        rng = Rng(seed)
        kind = rng.choices((_bytes, field, damage), (1, 3, 6))[0]
        if kind is _bytes:
            byte_steps.append(rng)
        elif kind is field:
            field(model, rng)
        else:
            damage(model, rng)
    made = model.SerializeToString()
    for rng in byte_steps:
        made = _bytes(made, rng, other)
    return made


def _bytes(data: bytes, rng: Rng, other: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 2, 4, 8, 64))
    new = rng.choice((
        bytes(rng.randrange(256) for _ in range(size)), b"", b"\xff" * size, b"\0" * size, data[at : at + size] * 2,
        other[(start := rng.randrange(len(other))) : start + rng.choice((8, 64, 512))],
    ))  # fmt: skip
    return data[:at] if rng.random() < 0.05 else data[:at] + new + data[at + size :]


# --- fields -----------------------------------------------------------------------------------------------------------


def field(model: onnx.ModelProto, rng: Rng) -> None:
    """Change one field of one message, wherever in ``model``."""
    messages = list(_messages(model))
    message = rng.choice(messages)
    fields = [each for each in message.DESCRIPTOR.fields if rng.random() < 0.5 or _is_set(message, each)]
    if not fields:
        return
    chosen = rng.choice(fields)
    try:
        (_repeated if chosen.is_repeated else _single)(message, chosen, messages, rng)
    except ValueError:  # a number that this field's type does not hold, or a text that is no UTF-8
        return


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for each, value in message.ListFields():
        if each.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if each.is_repeated else [value]:
                yield from _messages(inner)


def _is_set(message: Message, each: FieldDescriptor) -> bool:
    return bool(len(getattr(message, each.name))) if each.is_repeated else message.HasField(each.name)


def _single(message: Message, each: FieldDescriptor, messages: Sequence[Message], rng: Rng) -> None:
    if rng.random() < 0.25:
        message.ClearField(each.name)
    elif each.type == FieldDescriptor.TYPE_MESSAGE:
        others = [m for m in messages if m.DESCRIPTOR is each.message_type]
        if others:
            piece = rng.choice(others).SerializeToString()
            getattr(message, each.name).ParseFromString(piece)
    else:
        setattr(message, each.name, _scalar(each, messages, rng))


def _repeated(message: Message, each: FieldDescriptor, messages: Sequence[Message], rng: Rng) -> None:
    values = getattr(message, each.name)
    act = rng.choice(("drop", "double", "swap", "add", "clear", "set"))
    if act == "clear":
        message.ClearField(each.name)
    elif act == "drop" and values:
        del values[rng.randrange(len(values))]
    elif act == "double" and values:
        values.extend([rng.choice(values)])
    elif act == "swap" and len(values) > 1:
        kept = list(values) if each.type != FieldDescriptor.TYPE_MESSAGE else [_copy(v) for v in values]
        i, j = rng.sample(range(len(kept)), 2)
        kept[i], kept[j] = kept[j], kept[i]
        message.ClearField(each.name)
        values.extend(kept)
    elif each.type == FieldDescriptor.TYPE_MESSAGE:
        others = [m for m in messages if m.DESCRIPTOR is each.message_type]
        values.extend([_copy(rng.choice(others))] if others else [])
    elif act == "set" and values:
        values[rng.randrange(len(values))] = _scalar(each, messages, rng)
    else:
        values.append(_scalar(each, messages, rng))


def _copy(message: Message) -> Message:
    return type(message).FromString(message.SerializeToString())


def _scalar(each: FieldDescriptor, messages: Sequence[Message], rng: Rng) -> object:
    if each.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        nodes = [m for m in messages if isinstance(m, onnx.NodeProto)]
        names = [name for m in rng.sample(nodes, min(3, len(nodes))) for name in (*m.input, *m.output, m.op_type)]
        text = rng.choice((*TEXTS, *names, *WORDS))
        return text.encode() if each.type == FieldDescriptor.TYPE_BYTES else text
    if each.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if each.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice([value.number for value in each.enum_type.values])
    return rng.choice((*INTEGERS, rng.randrange(40)))


# --- plausible damage -------------------------------------------------------------------------------------------------


def damage(model: onnx.ModelProto, rng: Rng) -> None:
    """Do what a bug of an exporter, of another editor, or a hostile hand does."""
    graphs = [m for m in _messages(model) if isinstance(m, onnx.GraphProto | onnx.FunctionProto)]
    graph = graphs[0] if graphs and rng.random() < 0.7 else rng.choice([*graphs, onnx.GraphProto()])
    if graph.node:
        rng.choice(DAMAGES)(graph, rng.choice(graph.node), rng)


def _name(graph: onnx.GraphProto, rng: Rng) -> str:
    names = [name for node in graph.node for name in (*node.input, *node.output)]
    return rng.choice([*names, "", "ghost"])


def _rewire(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    if node.input:
        node.input[rng.randrange(len(node.input))] = _name(graph, rng)


def _arity(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    values = rng.choice((node.input, node.output))
    if values and rng.random() < 0.5:
        del values[-1]
    else:
        values.append(_name(graph, rng) if values is node.input else f"extra{rng.randrange(9)}")


def _operator(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    node.op_type = rng.choice([s.name for s in onnx.defs.get_all_schemas()])
    if rng.random() < 0.5:
        node.ClearField("attribute")


def _attribute(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    """Another value, of its kind or of another; of one that is there, or that its operator knows."""
    known = list(onnx.defs.get_schema(node.op_type).attributes) if onnx.defs.has(node.op_type) else []
    name = rng.choice([*(a.name for a in node.attribute), *known, "axis"])
    kept = [a for a in node.attribute if a.name != name]
    old = next((a for a in node.attribute if a.name == name), None)
    value: object = rng.choice((
        rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice((*WORDS, *TEXTS)), [rng.choice(INTEGERS) for _ in range(rng.randrange(1, 5))],
        [rng.choice(FLOATS)], numpy_helper.from_array(np.array(rng.choice(INTEGERS))),
    ))  # fmt: skip
    if old is not None and old.ints and rng.random() < 0.6:
        value = list(old.ints)
        value[rng.randrange(len(value))] = rng.choice(INTEGERS)  # type: ignore[index]
    made = onnx.helper.make_attribute(name, value)
    del node.attribute[:]
    node.attribute.extend([*kept, made])


def _dims(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    infos = [] if isinstance(graph, onnx.FunctionProto) else [*graph.input, *graph.output, *graph.value_info]
    if infos:
        shape = rng.choice(infos).type.tensor_type.shape
        act = rng.randrange(4)
        if act == 0 or not shape.dim:
            shape.dim.add(dim_value=rng.choice(INTEGERS))
        elif act == 1:
            del shape.dim[rng.randrange(len(shape.dim))]
        elif act == 2:
            rng.choice(shape.dim).dim_param = rng.choice(("N", "batch", "2*N", "N-1", "?", ""))
        else:
            rng.choice(shape.dim).dim_value = rng.choice(INTEGERS)


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
    elif (size := _NUMBERS.get(tensor.data_type)) and len(tensor.raw_data) == size * math.prod(tensor.dims):
        array = numpy_helper.to_array(tensor).copy()
        if array.size:
            values = FLOATS if tensor.data_type == T.FLOAT else INTEGERS
            with np.errstate(all="ignore"):
                array.flat[rng.randrange(array.size)] = np.array(rng.choice(values)).astype(array.dtype)
            if act == 5:
                array = array.reshape(-1)[: rng.randrange(array.size + 1)]
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _rename(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    text = rng.choice((*TEXTS, _name(graph, rng)))
    if rng.random() < 0.5 or not node.output:
        node.name = text
    else:
        node.output[rng.randrange(len(node.output))] = text


def _drop(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    if rng.random() < 0.5 or isinstance(graph, onnx.FunctionProto):
        graph.node.remove(node)
    else:
        graph.ClearField(rng.choice(("value_info", "output", "input", "initializer")))


def _insert(graph: onnx.GraphProto, node: onnx.NodeProto, rng: Rng) -> None:
    """A node more: an operator that makes much of little, between two others."""
    if not node.input:
        return
    made = f"made{rng.randrange(10**6)}"
    op, more = rng.choice((
        ("Expand", [2**rng.randrange(40)] * rng.randrange(1, 4)), ("Reshape", [rng.choice(INTEGERS) for _ in range(3)]),
        ("Slice", [rng.choice(INTEGERS)]), ("Squeeze", [rng.choice(INTEGERS)]), ("Unsqueeze", [rng.choice(INTEGERS)]),
        ("Tile", [2**rng.randrange(30)]), ("Gather", [rng.choice(INTEGERS)]), ("Concat", None), ("Transpose", None),
        ("ConstantOfShape", None), ("DequantizeLinear", None), ("QuantizeLinear", None), ("Cast", None), ("Softmax", None),
    ))  # fmt: skip
    inputs = [node.input[0]]
    if more is not None:
        graph.node.insert(
            0, onnx.helper.make_node("Constant", [], [f"{made}_c"], value=numpy_helper.from_array(np.array(more)))
        )
        inputs += [f"{made}_c"] * (2 if op == "Slice" else 1)
    elif op in ("Concat", "DequantizeLinear", "QuantizeLinear"):
        inputs += [_name(graph, rng)] * rng.randrange(1, 3)
    attributes = (
        {"axis": rng.choice(INTEGERS)}
        if op in ("Concat", "Softmax")
        else {"to": rng.randrange(30)}
        if op == "Cast"
        else {}
    )
    at = next(k for k, each in enumerate(graph.node) if each.output == node.output)
    graph.node.insert(at, onnx.helper.make_node(op, inputs, [made], **attributes))
    graph.node[at + 1].input[0] = made


DAMAGES: tuple[Callable[..., None], ...] = (
    _rewire,
    _arity,
    _operator,
    _attribute,
    _attribute,
    _dims,
    _weight,
    _weight,
    _rename,
    _drop,
    _insert,
)
