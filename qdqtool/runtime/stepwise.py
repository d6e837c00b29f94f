"""A model run piece by piece on all samples at once: to some values, and on from there when what lies behind has changed.

What a piece leaves that later nodes read is kept, for each sample; what nobody reads any more is let go of. A node runs once,
when it is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.foreign import tensor_proto, to_proto
from qdq_passes.graph.uses import constant_array, values_read
from qdq_passes.numerics.arrays import Array

from qdqtool.io.models.load import model_of
from qdqtool.runtime.session import open_session


class Stepwise:
    """The main graph of ``model`` on ``feeds``. Nodes that did not run yet may be edited, and nodes inserted.

    Args:
        model: the model; nothing in it is changed.
        feeds: the samples.
        wanted: names of values that are asked for later, and held until then though no node reads them any more.
        threads: threads inside an operator.
    """

    def __init__(
        self, model: ir.Model, feeds: Sequence[Mapping[str, Array]], wanted: Iterable[str] = (), *, threads: int = 1
    ) -> None:
        self._model, self._threads, self._pinned = model, threads, set(wanted)
        self._values: dict[str, list[Array]] = {
            name: [feed[name] for feed in feeds] for name in (feeds[0] if feeds else ())
        }
        self._count, self._ran = len(feeds), set[ir.Node]()

    @property
    def nbytes(self) -> int:
        """Bytes of the values that are held."""
        return sum(array.nbytes for arrays in self._values.values() for array in arrays)

    def take(self, names: Sequence[str]) -> dict[str, list[Array]]:
        """The values called ``names``, one array a sample each; one that was held for this is let go of with the next call.

        A name that the model does not have, or that is gone, is left out.

        Raises:
            UnsupportedError: what lies between two pieces is no tensor.
            QdqError: onnxruntime refuses a piece.
        """
        made = {value.name: value for node in self._model.graph for value in node.outputs}
        asked = [made[name] for name in names if name in made and name not in self._values]
        needed = self._needed(asked)
        rest = [node for node in self._model.graph if node not in self._ran and node not in needed]
        if needed:
            self._run([node for node in self._model.graph if node in needed], rest, names)
        found = {name: self._values[name] for name in names if name in self._values}
        self._pinned -= set(names)
        return found

    def _needed(self, values: Sequence[ir.Value]) -> set[ir.Node]:
        """The nodes that ``values`` are computed by and that did not run."""
        found, todo = set[ir.Node](), list(values)
        while todo:
            node = todo.pop().producer()
            if node is not None and node not in found and node not in self._ran:
                found.add(node)
                todo += [value for value in values_read(node) if value.name not in self._values]
        return found

    def _run(self, piece: Sequence[ir.Node], rest: Sequence[ir.Node], names: Sequence[str]) -> None:
        made = {value.name: value for node in piece for value in node.outputs if value.name}
        read = {value.name for node in rest for value in values_read(node)}
        kept = [name for name in made if name in read or name in names or name in self._pinned]
        inputs, graph = dict[str, ir.Value](), onnx.GraphProto(name="piece")
        stored = set[str]()
        for node in piece:
            graph.node.append(to_proto(node))
            for value in values_read(node):
                name = value.name or ""
                if not name or name in made or name in inputs or name in stored:
                    continue
                if name in self._values:
                    inputs[name] = value
                elif value.const_value is not None and constant_array(value) is not None:
                    stored.add(name)
                    graph.initializer.append(tensor_proto(value.const_value, value.name))
        for name in inputs:
            array = self._values[name][0]
            kind = ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, kind.value, None))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in kept)
        opsets = [onnx.helper.make_opsetid(domain, number) for domain, number in self._model.opset_imports.items()]
        functions = [to_proto(function) for function in self._model.functions.values()]
        proto = onnx.ModelProto(
            ir_version=self._model.ir_version, opset_import=opsets, graph=graph, functions=functions
        )
        session = open_session(model_of(proto), threads=self._threads)
        results: dict[str, list[Array]] = {name: [] for name in kept}
        for index in range(self._count):
            for name, array in session.run({name: self._values[name][index] for name in inputs}).items():
                if not hasattr(array, "dtype"):
                    raise UnsupportedError(f"{name} is no tensor: the model cannot be run piece by piece")
                results[name].append(array)
        session.close()
        self._ran.update(piece)
        alive = read | set(names) | self._pinned
        self._values = {name: arrays for name, arrays in (self._values | results).items() if name in alive}
