"""Building nodes into a graph: builders of nodes in place of others, replacements, chains that go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, hand_over, make_node, new_constant, remove
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.uses import dtype_of, label, values_read

#: First opsets whose Unsqueeze and Squeeze, and whose ReduceMean, take their axes as an input.
OPSET_OF_AXES, OPSET_OF_MEAN_AXES = 13, 18

#: Attributes as plain values.
Plain = int | float | str | Sequence[int]


class Builder:
    """Makes the nodes of one pass; `at` says where and for whom.

    Args:
        model: edited in place.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model, self.namer = model, Namer(model)
        self._constants: dict[tuple[ir.Graph, bytes, tuple[int, ...], ir.DataType], ir.Value] = {}

    def at(self, anchor: ir.Node, *, base: str | None = None, stands_for: Iterable[ir.Node] = ()) -> Site:
        """Nodes right before ``anchor``, called ``<base>_<operator>`` (base: its name), standing for it or ``stands_for``."""
        return Site(self, anchor, base or label(anchor), tuple(stands_for) or (anchor,))

    def constant(
        self, graph: ir.Graph, data: npt.NDArray[Any], dtype: ir.DataType, base: str, old: ir.Node
    ) -> ir.Value:
        """The constant ``data`` of ``graph``, made once, called ``base`` then."""
        key = (graph, np.ascontiguousarray(data).tobytes(), data.shape, dtype)
        if key not in self._constants or not self._is_alive(self._constants[key]):
            self._constants[key] = new_constant(graph, self.namer, base, ir.tensor(data, dtype=dtype), [old])
        return self._constants[key]

    @staticmethod
    def _is_alive(value: ir.Value) -> bool:
        producer = value.producer()
        return value.is_initializer() or (producer is not None and producer.graph is not None)


class Site:
    """A place in a graph where nodes are made; see `Builder.at`."""

    def __init__(self, builder: Builder, anchor: ir.Node, base: str, stands_for: tuple[ir.Node, ...]) -> None:
        self._builder, self._anchor, self._base, self._olds = builder, anchor, base, stands_for
        self.graph = graph_of(anchor)
        self.opset = opset_at(builder.model, anchor)
        self.nodes: list[ir.Node] = []

    def __call__(
        self, op_type: str, *inputs: ir.Value | None, name: str = "", domain: str = "", **attributes: Plain
    ) -> ir.Value:
        """The output of a new node ``op_type``; ``name`` stands for the operator in its name."""
        name = self._builder.namer.fresh(f"{self._base}_{name or op_type}")
        node = make_node(
            op_type, inputs, name=name, output=self._builder.namer.fresh(f"{name}_Output"), domain=domain,
            attributes=[attribute_of(key, value) for key, value in attributes.items()], stands_for=self._olds,
        )  # fmt: skip
        dtype = _type_written(op_type, node, attributes)
        node.outputs[0].type = ir.TensorType(dtype) if dtype is not None else None
        self.graph.insert_before(self._anchor, node)
        self.nodes.append(node)
        return node.outputs[0]

    def before(self, anchor: ir.Node) -> Site:
        """The same, right before ``anchor``."""
        other = Site(self._builder, anchor, self._base, self._olds)
        other.nodes = self.nodes
        return other

    def constant(self, data: Any, dtype: ir.DataType = ir.DataType.INT64, word: str | None = None) -> ir.Value:
        """``data`` as a constant of ``dtype``, called ``<base>_<word>``; shared with other places of the graph."""
        array = np.asarray(data).astype(dtype.numpy())
        if word is None:
            word = "ints" if array.ndim else "int"
        return self._builder.constant(self.graph, array, dtype, f"{self._base}_{word}", self._olds[0])

    def dim(self, value: ir.Value, axis: int) -> ir.Value:
        """Size of ``value`` along ``axis``, int64 scalar: a constant where it is known, else Gather of its Shape."""
        size = value.shape[axis] if value.shape is not None else None
        if isinstance(size, int):
            return self.constant(size)
        return self("Gather", self("Shape", value), self.constant(axis), name="Size", axis=0)

    def arange(self, length: ir.Value) -> ir.Value:
        """0 … length − 1, int64 [length]."""
        return self("Range", self.constant(0), length, self.constant(1))

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """``value`` in ``shape``; 0 copies a size."""
        return self("Reshape", value, self.constant(list(shape)))

    def transpose(self, value: ir.Value, *order: int) -> ir.Value:
        """``value`` with its axes in another order."""
        return self("Transpose", value, perm=order)

    def unsqueeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """``value`` with axes of size 1."""
        if self.opset < OPSET_OF_AXES:
            return self("Unsqueeze", value, axes=axes)
        return self("Unsqueeze", value, self.constant(list(axes)))

    def squeeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """``value`` without axes of size 1."""
        if self.opset < OPSET_OF_AXES:
            return self("Squeeze", value, axes=axes)
        return self("Squeeze", value, self.constant(list(axes)))

    def mean(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """The mean along ``axes``, which stay with size 1."""
        if self.opset < OPSET_OF_MEAN_AXES:
            return self("ReduceMean", value, axes=axes, keepdims=1)
        return self("ReduceMean", value, self.constant(list(axes)), keepdims=1)

    def slice(self, value: ir.Value, axis: int, start: int, end: int, step: int = 1) -> ir.Value:
        """Elements start, start + step, … < end along ``axis``."""
        return self("Slice", value, *(self.constant([number]) for number in (start, end, axis, step)))

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """``value`` as ``dtype``."""
        return self("Cast", value, to=int(dtype))


#: Operators of which the element type of the output is fixed.
_FIXED = {
    **dict.fromkeys(("And", "Greater", "IsNaN", "Less", "LessOrEqual"), ir.DataType.BOOL),
    **dict.fromkeys(("Range", "Shape"), ir.DataType.INT64),
}


def _type_written(op_type: str, node: ir.Node, attributes: Mapping[str, Plain]) -> ir.DataType | None:
    """Element type that ``node`` writes, by the rules of the operators made here: mostly that of its first input."""
    to = attributes.get("to")
    if op_type == "Cast" and isinstance(to, int):
        return ir.DataType(to)
    data = node.inputs[1 if op_type == "Where" else 0]
    return _FIXED.get(op_type) or (dtype_of(data) if data is not None else None)


def attribute_of(name: str, value: Plain) -> ir.Attr:
    """An attribute of a plain value."""
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    return ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrInt64s(name, list(value))


class Once:
    """Values that are made once for all that ask for them by the same key."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], ir.Value] = {}

    def __call__(self, key: tuple[object, ...], make: Callable[[], ir.Value]) -> ir.Value:
        """The value of ``key``."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def take_place(node: ir.Node, values: Sequence[ir.Value | None], namer: Namer, because: str) -> Change:
    """Let ``values`` take over from the outputs of ``node``, names, types and shapes included, and remove it.

    None stands for an output that nobody reads.
    """
    for old, new in zip(node.outputs, values, strict=False):
        if new is not None and old.name:
            new.type = new.type or old.type
            new.shape = new.shape if new.shape is not None or old.shape is None else old.shape.copy()
            hand_over(old, new, namer)
            new.metadata_props.update({**old.metadata_props, **new.metadata_props})
    remove(node, because)
    return Change("replace", label(node), because)


def drop_chains(values: Iterable[ir.Value | None], because: str = "is no longer read") -> Iterator[Change]:
    """Remove the makers of those of ``values`` that nobody reads, and theirs in turn; graph inputs stay."""
    stack = [value for value in values if value is not None]
    while stack:
        value = stack.pop()
        producer = value.producer()
        if producer is None or producer.graph is None:
            yield from drop_unread([value])
            continue
        if any(output.uses() or output.is_graph_output() for output in producer.outputs):
            continue
        stack += values_read(producer)
        yield from remove(producer, because)


def drop_input(model: ir.Model, value: ir.Value | None) -> Iterator[Change]:
    """Take ``value`` out of the graph's inputs if nobody reads it."""
    if value is not None and value.is_graph_input() and not value.uses() and not value.is_graph_output():
        model.graph.inputs.remove(value)
        yield Change("remove", value.name or "", "input is no longer read")
