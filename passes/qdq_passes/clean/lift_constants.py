"""lift-constants"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import IR_OF_PLAIN_INITIALIZERS, move_annotations
from qdq_passes.graph.uses import constant_array, is_standard, label
from qdq_passes.numerics.missing import tensor_of


@dataclass(frozen=True)
class LiftConstants(Pass):
    """Turn Constant nodes into initializers of the same name.

    Graph: ``Constant → c → Add`` → initializer ``c → Add``; in bodies too, where the initializer is the body's own.
    Requires: nothing.
    Keeps: inputs, outputs and their names, names and data of constants; numerics bit-exact.
    Skips: local functions, which have no initializers; models of IR version 3 and older, where an initializer is an input;
        a Constant that is an output of its graph; sparse tensors.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Lift in the order of the file."""
        is_old = (model.ir_version or IR_OF_PLAIN_INITIALIZERS) < IR_OF_PLAIN_INITIALIZERS
        for graph in model.graphs():
            for node in [node for node in graph if is_standard(node, "Constant")]:
                value = node.outputs[0]
                tensor = _tensor(value)
                if is_old:
                    yield skip(node, "in this IR version an initializer is an input as well")
                elif value.is_graph_output():
                    yield skip(node, "is an output of its graph")
                elif tensor is None:
                    yield skip(node, "is sparse")
                else:
                    yield Change("remove", label(node), f"is the initializer {value.name} now")
                    _lift(graph, node, tensor)


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of a Constant's output, the file's own where it is given as one."""
    producer = value.producer()
    assert producer is not None
    given = producer.attributes.get("value")
    if given is not None:
        return given.as_tensor()
    array = constant_array(value)
    return None if array is None else tensor_of(array)


def _lift(graph: ir.Graph, node: ir.Node, tensor: ir.TensorProtocol) -> None:
    old = node.outputs[0]
    new = ir.Value(
        name=old.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    new.metadata_props.update(old.metadata_props)
    move_annotations(old, new)
    old.replace_all_uses_with(new)
    graph.remove(node, safe=True)
    graph.register_initializer(new)
