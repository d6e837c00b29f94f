"""Single nodes of a model, run by onnxruntime without optimization: what the CPU computes beside an NPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.foreign import tensor_proto, to_proto
from qdq_passes.graph.uses import constant_array
from qdq_passes.npu.reference.run import captured_values
from qdq_passes.numerics.arrays import Array

from qdqtool.io.models.load import model_of
from qdqtool.runtime.session import Session, open_session


class NodeRuns:
    """Runs nodes of ``model`` one by one. A session is made for each node when it is first run, and kept.

    Constants stand in the session as constants, so that kernels prepare them as they do in the whole model.

    Args:
        model: the model.
        threads: threads inside an operator.
    """

    def __init__(self, model: ir.Model, *, threads: int = 1) -> None:
        self._model, self._threads = model, threads
        self._sessions: dict[ir.Node, tuple[Session, dict[str, int]]] = {}

    def __call__(self, node: ir.Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The outputs of ``node``; one left out is an empty array.

        Args:
            node: a node of the main graph.
            inputs: its inputs (None where left out), then the values that its bodies read from outside (`captured_values`).

        Raises:
            UnsupportedError: it writes something else than tensors, or onnxruntime does not have it.
            ModelError: onnxruntime refuses it.
        """
        if node not in self._sessions:
            self._sessions[node] = self._open(node, inputs)
        session, places = self._sessions[node]
        found = session.run({name: np.asarray(inputs[place]) for name, place in places.items()})
        outputs = [found[value.name] if value.name else np.empty(0) for value in node.outputs]
        if not all(isinstance(array, np.ndarray) for array in outputs):
            raise UnsupportedError(f"{node.op_type} writes something else than tensors", where=node.name)
        return outputs

    def _open(self, node: ir.Node, inputs: Sequence[Array | None]) -> tuple[Session, dict[str, int]]:
        """The session, and which of ``inputs`` each of its inputs is."""
        graph = onnx.GraphProto(name="node", node=[to_proto(node)])
        places: dict[str, int] = {}
        stored: set[str] = set()
        for place, value in enumerate([*node.inputs, *captured_values(node)]):
            array = inputs[place]
            if value is None or not value.name or array is None or value.name in places or value.name in stored:
                continue
            if constant_array(value) is not None and value.const_value is not None:
                graph.initializer.append(tensor_proto(value.const_value, value.name))
                stored.add(value.name)
                continue
            places[value.name] = place
            kind = ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(value.name, kind.value, None))
        graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in node.outputs if value.name)
        opsets = [onnx.helper.make_opsetid(domain, number) for domain, number in self._model.opset_imports.items()]
        functions = [to_proto(function) for function in self._model.functions.values()]
        proto = onnx.ModelProto(
            ir_version=self._model.ir_version, opset_import=opsets, graph=graph, functions=functions
        )
        return open_session(model_of(proto), threads=self._threads), places
