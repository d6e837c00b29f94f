"""Models on their way to onnx, onnxscript and onnxruntime: tensors in files reach them with their data, or with their folder.

The protobuf of a tensor in a file only names that file. Who parses it looks in the current directory, and may find another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import onnx
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.shapes.propagation import SHOWN_BYTES
from qdq_passes.graph.uses import GraphLike, bodies_of, is_standard, with_bodies
from qdq_passes.numerics.missing import is_missing

#: Operators whose shape follows from numbers they read → the first of those inputs.
_SHAPED = {
    **dict.fromkeys(
        ("ConstantOfShape", "Range", "BlackmanWindow", "HannWindow", "HammingWindow", "MelWeightMatrix"), 0
    ),
    **dict.fromkeys(("CenterCropPad", "Col2Im", "Expand", "OneHot", "Pad", "Reshape", "Resize", "Slice", "Split"), 1),
    **dict.fromkeys(
        ("SplitToSequence", "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample", "AffineGrid", "DFT", "STFT"), 1
    ),
}


@dataclass(frozen=True)
class Slot:
    """A place that holds a tensor: an initializer, or an attribute of a node.

    Args:
        holder: the initializer's value, or the node.
        attribute: name of the node's attribute, empty for an initializer.
    """

    holder: ir.Value | ir.Node
    attribute: str = ""

    @property
    def tensor(self) -> ir.TensorProtocol:
        """The tensor there."""
        if not self.attribute:  # isinstance is slow for the nodes of onnx_ir
            tensor = cast(ir.Value, self.holder).const_value
            assert tensor is not None
            return tensor
        return cast(ir.Node, self.holder).attributes[self.attribute].as_tensor()

    @property
    def may_lie_outside(self) -> bool:
        """Whether the tensor may go into a data file: an initializer, of numbers that inference of shapes does not read."""
        tensor = self.tensor
        if self.attribute or tensor.dtype == ir.DataType.STRING:
            return False
        if len(tensor.shape) > 1:
            return True
        is_small = tensor.dtype == ir.DataType.INT64 and tensor.nbytes <= SHOWN_BYTES
        readers = cast(ir.Value, self.holder).uses()
        return not is_small and not any(
            is_standard(node, *_SHAPED) and i >= _SHAPED[node.op_type] for node, i in readers
        )

    def put(self, tensor: ir.TensorProtocol) -> None:
        """Put ``tensor`` there."""
        if isinstance(self.holder, ir.Node):
            old = self.holder.attributes[self.attribute]
            self.holder.attributes[self.attribute] = ir.AttrTensor(old.name, tensor, old.doc_string)
        else:
            self.holder.const_value = tensor


def holders(part: ir.Model | GraphLike) -> list[GraphLike]:
    """Everything in ``part`` that holds nodes: the main graph, the local functions, and every body inside of them."""
    parts: list[GraphLike] = [part.graph, *part.functions.values()] if isinstance(part, ir.Model) else [part]
    return [*parts, *(body for one in parts for body in with_bodies(one)[1:])]


def slots(part: ir.Model | GraphLike | ir.Node) -> list[Slot]:
    """Every slot of ``part`` that holds a tensor, initializers of a graph before the attributes of its nodes."""
    if type(part) is ir.Node:  # isinstance is slow for the nodes of onnx_ir
        return [*_slots_of(part), *(slot for body in bodies_of(part) for slot in slots(body))]
    found = []
    for holder in holders(cast("ir.Model | GraphLike", part)):
        if isinstance(holder, ir.Graph):
            found += [Slot(v) for v in holder.initializers.values() if v.const_value is not None]
        for node in holder:
            found += _slots_of(node)
    return found


def _slots_of(node: ir.Node) -> list[Slot]:
    tensors = [name for name, a in node.attributes.items() if a.type == ir.AttributeType.TENSOR and not a.is_ref()]
    return [Slot(node, name) for name in tensors]


@contextmanager
def put(tensors: Mapping[Slot, ir.TensorProtocol]) -> Iterator[None]:
    """Put ``tensors`` into their slots, and what was there back at the end."""
    before = {slot: slot.tensor for slot in tensors}
    names = {slot: tensor.name for slot, tensor in before.items()}
    try:
        for slot, tensor in tensors.items():
            slot.put(tensor)
        yield
    finally:
        for slot, tensor in before.items():
            slot.put(tensor)
            tensor.name = names[slot]


def files_of(part: ir.Model | GraphLike | ir.Node) -> dict[Slot, ir.ExternalTensor]:
    """The tensors of ``part`` that lie in files, by their slots."""
    return {slot: tensor for slot in slots(part) if isinstance(tensor := slot.tensor, ir.ExternalTensor)}


def small_files(files: Mapping[Slot, ir.ExternalTensor]) -> dict[Slot, ir.TensorProtocol]:
    """In memory, those of ``files`` that a library may look into while it infers: shapes, axes, bounds."""
    return {s: in_memory(t) for s, t in files.items() if t.nbytes <= SHOWN_BYTES and not is_missing(t)}


def in_memory(tensor: ir.TensorProtocol, name: str | None = None) -> ir.TensorProtocol:
    """``tensor`` with its data in memory, called ``name`` (default: as it is).

    Raises:
        ModelError: its file is not there.
    """
    called = {"name": name or tensor.name, "doc_string": tensor.doc_string}
    if isinstance(tensor, ir.StringTensor):  # numpy would cut zeros off its texts
        texts = list(tensor.string_data())
        return ir.StringTensor(texts, shape=ir.Shape(tensor.shape), metadata_props=tensor.metadata_props, **called)
    made = ir.tensor(tensor.numpy(), dtype=tensor.dtype, **called)
    made.metadata_props.update(tensor.metadata_props)
    return made


def to_proto(part: ir.Model | GraphLike | ir.Node, *, shown_only: bool = False) -> Any:
    """The protobuf of ``part`` for another library; the data of its tensors stand in it, wherever they lie.

    Args:
        part: what to hand over.
        shown_only: only of small tensors, as inference looks at; those of others are named, and nobody opens them.

    Raises:
        ModelError: a file of data is not there.
    """
    files = files_of(part)
    with put(small_files(files) if shown_only else {slot: in_memory(tensor) for slot, tensor in files.items()}):
        return ir.to_proto(part)


def tensor_proto(tensor: ir.TensorProtocol, name: str | None = None) -> onnx.TensorProto:
    """The protobuf of ``tensor`` with its data, called ``name`` (default: as it is)."""
    return ir.serde.serialize_tensor(in_memory(tensor, name))


@contextmanager
def files_apart(model: ir.Model) -> Iterator[None]:
    """Stand-ins for the large tensors in files of ``model`` while another library rewrites it; small ones come into memory."""
    files = files_of(model)
    small = small_files(files)
    standing: dict[str, ir.ExternalTensor] = {}
    for slot, tensor in files.items():
        location = f"tensor/{len(standing)}"
        if slot not in small:
            standing[location] = tensor
        slot.put(small[slot] if slot in small else ir.ExternalTensor(
            location, None, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name or ""
        ))  # fmt: skip
    yield
    for slot, tensor in files_of(model).items():
        slot.put(standing[os.fspath(tensor.location)])
