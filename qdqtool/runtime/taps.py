"""Taps: values inside a model, fetched feed by feed from one session."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.progress import Warn
from qdqtool.runtime.session import FLOATS, Session, open_session

_FLOAT_TYPES = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


class Taps:
    """One session on ``model`` (which is not changed) whose extra outputs are the wanted tensors.

    Args:
        model: the model. Bodies of If, Loop and Scan are not tapped.
        tensors: names of graph inputs, graph outputs and node outputs of the main graph.
        threads: threads inside an operator.
        optimize: let onnxruntime optimize the graph around the tensors: sums associate differently, in the last bits.
        any_order: the elements of the tensors that are no graph outputs may come in any order; told where they do not.

    Raises:
        UsageError: a tensor is none of these.
    """

    def __init__(
        self,
        model: ir.Model,
        tensors: Iterable[str],
        *,
        threads: int = 1,
        optimize: bool = False,
        any_order: Warn | None = None,
    ) -> None:
        self.names: tuple[str, ...] = tuple(dict.fromkeys(tensors))
        inputs = {value.name for value in model.graph.inputs}
        outputs = [
            value for value in model.graph.outputs if value.name
        ]  # a session gives those of weights and constants too
        known = {*inputs, *(value.name for value in [*_node_outputs(model), *outputs])}
        for name in self.names:
            if name not in known:
                near = difflib.get_close_matches(name, [k for k in known if k], n=3)
                raise UsageError(
                    f"the main graph has no tensor {name!r}",
                    hint=f"did you mean {' or '.join(near)}?" if near else None,
                )
        self._fetched = [name for name in self.names if name not in inputs]
        self._defaults = {
            name: model.graph.initializers[name] for name in self.names if name in model.graph.initializers
        }
        self.session: Session = open_session(
            model, threads=threads, optimize=optimize, extra_outputs=self._fetched, any_order=any_order
        )

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The wanted tensors for one feed, in the order they were asked for."""
        return self._all(feed, self.session.run(feed, self._fetched) if self._fetched else {})

    def lend(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run like `run`, without copies: read-only arrays for use before the next feed."""
        return self._all(feed, self.session.lend(feed, self._fetched) if self._fetched else {})

    def _all(self, feed: Mapping[str, Array], fetched: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name: fetched[name] if name in fetched else feed[name] if name in feed else self._default(name)
            for name in self.names
        }

    def _default(self, name: str) -> Array:
        """Value of a graph input that the feed leaves out."""
        tensor = self._defaults[name].const_value
        assert tensor is not None
        return tensor.numpy()


def float_tensors(model: ir.Model) -> list[str]:
    """Names of the float graph inputs and node outputs of the main graph (float, double, float16, bfloat16), in graph order.

    Constants are left out, inputs with a default are not. Where the model does not say the type, onnxruntime is asked.
    """
    values = [*model.graph.inputs, *_node_outputs(model)]
    untyped = [v.name for v in values if v.name and v.type is None]
    asked = open_session(model, extra_outputs=untyped).output_dtypes if untyped else {}
    return [v.name for v in values if v.name and (_is_float(v) if v.type is not None else asked.get(v.name) in FLOATS)]


def _is_float(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype in _FLOAT_TYPES


def _node_outputs(model: ir.Model) -> list[ir.Value]:
    return [v for node in model.graph if node.op_type != "Constant" for v in node.outputs if v.name]
