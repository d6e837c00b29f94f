"""A node as a shape function sees it: types and dims of its inputs, its attributes, small constants; and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx import TypeProto, numpy_helper

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.dimensions import combined
from qdq_passes.graph.uses import integer_of, integers_of

if TYPE_CHECKING:
    from onnx.shape_inference import InferenceContext

#: A size, the name of one, or None where nothing is known of it.
Dim = int | str | None


@dataclass(frozen=True)
class Spec:
    """Type and shape of a tensor.

    Args:
        dtype: element type by onnx's number, 0 where it is unknown.
        dims: its dims; None where not even their number is known.
    """

    dtype: int
    dims: tuple[Dim, ...] | None

    @property
    def rank(self) -> int | None:
        """How many dims there are, None when unknown."""
        return None if self.dims is None else len(self.dims)

    def dim(self, axis: int) -> Dim:
        """The dim of ``axis``; None where there is none."""
        if self.dims is None or not -len(self.dims) <= axis < len(self.dims):
            return None
        return self.dims[axis]

    def with_dims(self, dims: Sequence[Dim] | None) -> Spec:
        """Of the same type, with these dims."""
        return Spec(self.dtype, None if dims is None else tuple(dims))

    def with_last(self, dim: Dim) -> Spec:
        """With another last dim."""
        return self.with_dims(None if self.dims is None else (*self.dims[:-1], dim))


#: Nothing is known.
UNKNOWN = Spec(0, None)


class Call(Protocol):
    """One call of an operator."""

    def input(self, index: int) -> Spec:
        """Type and shape of input ``index``, `UNKNOWN` where it is left out or nothing is known."""

    def has(self, index: int) -> bool:
        """Whether input ``index`` is given."""

    def data(self, index: int) -> npt.NDArray[Any] | None:
        """Input ``index`` where it is a known constant."""

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""

    def integers(self, name: str) -> list[int]:
        """An attribute of integers; empty where it is left out."""

    @property
    def outputs(self) -> int:
        """How many outputs there are."""


@dataclass(frozen=True)
class NodeCall:
    """A node of ours, with what is known of its inputs.

    Args:
        node: the node.
        types: types and shapes, by value.
        arrays: constants, by value.
    """

    node: ir.Node
    types: Mapping[ir.Value, TypeProto]
    arrays: Mapping[ir.Value, npt.NDArray[Any]]

    def _value(self, index: int) -> ir.Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def input(self, index: int) -> Spec:
        """As `Call.input`."""
        value = self._value(index)
        return spec_of(self.types[value]) if value is not None and value in self.types else UNKNOWN

    def has(self, index: int) -> bool:
        """As `Call.has`."""
        return self._value(index) is not None

    def data(self, index: int) -> npt.NDArray[Any] | None:
        """As `Call.data`."""
        value = self._value(index)
        return None if value is None else self.arrays.get(value)

    def integer(self, name: str, default: int = 0) -> int:
        """As `Call.integer`."""
        return integer_of(self.node, name, default)

    def integers(self, name: str) -> list[int]:
        """As `Call.integers`."""
        return integers_of(self.node, name)

    @property
    def outputs(self) -> int:
        """As `Call.outputs`."""
        return len(self.node.outputs)


class ContextCall:
    """A node in onnx's own inference."""

    def __init__(self, context: InferenceContext) -> None:
        self._context = context

    def input(self, index: int) -> Spec:
        """As `Call.input`."""
        proto = self._context.get_input_type(index) if self.has(index) else None
        return UNKNOWN if proto is None else spec_of(proto)

    def has(self, index: int) -> bool:
        """As `Call.has`."""
        return bool(index < self._context.get_num_inputs() and self._context.has_input(index))

    def data(self, index: int) -> npt.NDArray[Any] | None:
        """As `Call.data`."""
        tensor = self._context.get_input_data(index) if self.has(index) else None
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def integer(self, name: str, default: int = 0) -> int:
        """As `Call.integer`."""
        found = self._context.get_attribute(name)
        return default if found is None else int(found.i)

    def integers(self, name: str) -> list[int]:
        """As `Call.integers`."""
        found = self._context.get_attribute(name)
        return [] if found is None else [int(i) for i in found.ints]

    @property
    def outputs(self) -> int:
        """As `Call.outputs`."""
        return int(self._context.get_num_outputs())

    def answer(self, specs: Sequence[Spec | None]) -> None:
        """Say what the outputs are; None and `UNKNOWN` say nothing, outputs that the node does not have are left out."""
        for index, spec in enumerate(specs[: self.outputs]):
            if spec is not None and spec.dtype and self._context.has_output(index):
                self._context.set_output_type(index, proto_of(spec))


def spec_of(proto: TypeProto) -> Spec:
    """What ``proto`` tells of a tensor; `UNKNOWN` of anything else."""
    if not proto.HasField("tensor_type"):
        return UNKNOWN
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return Spec(tensor.elem_type, None)
    return Spec(tensor.elem_type, tuple(_dim(dim) for dim in tensor.shape.dim))


def _dim(proto: Any) -> Dim:
    if proto.HasField("dim_value"):
        return int(proto.dim_value)
    return str(proto.dim_param) or None


def proto_of(spec: Spec) -> TypeProto:
    """``spec`` as onnx writes it."""
    proto = TypeProto()
    proto.tensor_type.elem_type = spec.dtype
    if spec.dims is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in spec.dims:
            made = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                made.dim_value = dim
            elif dim is not None:
                made.dim_param = dim
    return proto


def product(*dims: Dim) -> Dim:
    """The product, None unless all are numbers and it is a size."""
    found: Dim = 1
    for dim in dims:
        found = combined(found, "*", dim) if isinstance(found, int) and isinstance(dim, int) else None
    return found


def quotient(dim: Dim, by: Dim) -> Dim:
    """``dim`` ÷ ``by`` where both are numbers and it has no remainder, else None."""
    if not isinstance(dim, int) or not isinstance(by, int) or by <= 0 or dim % by:
        return None
    return dim // by


def total(a: Dim, b: Dim) -> Dim:
    """The sum; where one is 0 the other, even a name; None where it is not known."""
    if a == 0 or b == 0:
        return b if a == 0 else a
    return combined(a, "+", b) if isinstance(a, int) and isinstance(b, int) else None


def broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """Dims of two operands broadcast to each other, as far as they are known."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(_either(x, y) for x, y in pairs)


def _either(a: Dim, b: Dim) -> Dim:
    if a == 1 or a == b:
        return b
    if b == 1:
        return a
    sizes = [dim for dim in (a, b) if isinstance(dim, int)]  # a size above 1 wins over what is unknown
    return sizes[0] if sizes else None
