"""Slots: the places of a model that hold tensors, so that a tensor can be looked at or replaced wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir


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
        if isinstance(self.holder, ir.Node):
            return self.holder.attributes[self.attribute].as_tensor()
        assert self.holder.const_value is not None
        return self.holder.const_value

    def put(self, tensor: ir.TensorProtocol) -> None:
        """Put ``tensor`` there."""
        if isinstance(self.holder, ir.Node):
            old = self.holder.attributes[self.attribute]
            self.holder.attributes[self.attribute] = ir.AttrTensor(old.name, tensor, old.doc_string)
        else:
            self.holder.const_value = tensor


def holders(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """Everything that holds nodes: the main graph, the local functions, and every body inside of them."""
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return [*parts, *(body for part in parts for body in part.subgraphs())]


def slots(model: ir.Model) -> list[Slot]:
    """Every slot of ``model`` that holds a tensor, initializers of a graph before the attributes of its nodes."""
    found = []
    for holder in holders(model):
        if isinstance(holder, ir.Graph):
            found += [Slot(v) for v in holder.initializers.values() if v.const_value is not None]
        for node in holder:
            for name, attribute in node.attributes.items():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    found.append(Slot(node, name))
    return found


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
