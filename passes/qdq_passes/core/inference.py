"""Shape inference by onnx, merged into the model in place without touching anything else.

onnx gets a copy whose large weights are graph inputs (it would refuse more than 2 GB, and needs only their shapes). The merge is
ours: onnx_ir's own turns untyped sequences into tensors and moves initializers to the end."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from qdq_passes.core.edit import copy_model
from qdq_passes.errors import ModelError

#: Bytes up to which a weight's data is shown to onnx: shapes and axes are computed from it.
SHOWN_BYTES = 1024


def infer_shapes(model: ir.Model, *, data_propagation: bool = True) -> None:
    """Add types and shapes to the values of ``model``, bodies included; what cannot be inferred stays unknown.

    Known sizes are kept, unknown ones are filled in; a type that is known is never replaced.

    Raises:
        ModelError: onnx refuses the graph altogether, or its nodes are out of order.
    """
    copy = copy_model(model)
    for value in [v for v in copy.graph.initializers.values() if v.const_value is not None]:
        _declare(value)
        if value.const_value is not None and value.const_value.nbytes > SHOWN_BYTES:
            del copy.graph.initializers[value.name or ""]
            value.const_value = None
            if not value.is_graph_input():
                copy.graph.inputs.append(value)
    try:
        proto = onnx.shape_inference.infer_shapes(
            ir.to_proto(copy), check_type=False, strict_mode=False, data_prop=data_propagation
        )
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())[:200]
        raise ModelError(
            f"onnx cannot infer shapes: {text}", where=model.graph.name, hint="look at it with check"
        ) from error
    inferred = ir.from_proto(proto)
    for mine, theirs in zip(model.graphs(), inferred.graphs(), strict=True):
        known = _by_name(theirs)
        for name, value in _by_name(mine).items():
            if name in known:
                _merge(value, known[name])


def _declare(value: ir.Value) -> None:
    """An initializer's type and shape, where only its tensor knows them."""
    tensor = value.const_value
    if tensor is not None:
        value.type = value.type or ir.TensorType(tensor.dtype)
        value.shape = value.shape if value.shape is not None else ir.Shape(tensor.shape.numpy())


def _by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    """Values that ``graph`` itself defines, initializers left out: their tensors say what they are."""
    values = [v for v in graph.inputs if not v.is_initializer()] + [v for node in graph for v in node.outputs]
    return {value.name: value for value in values if value.name}


def _merge(value: ir.Value, found: ir.Value) -> None:
    if value.type is None:
        value.type = found.type
    if not isinstance(value.type, ir.TensorType) or value.type != found.type or found.shape is None:
        return
    if value.shape is None:
        value.shape = found.shape.copy()
        return
    if len(value.shape) != len(found.shape):
        return
    dims = [_better(mine, theirs) for mine, theirs in zip(value.shape, found.shape, strict=True)]
    if dims != list(value.shape):
        value.shape = ir.Shape(dims)


def _better(mine: int | ir.SymbolicDim, theirs: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """The more precise of two sizes: a number before a name, a name before nothing; what is known before what is found."""
    if isinstance(mine, int):
        return mine
    return theirs if isinstance(theirs, int) or mine.value is None else mine


def static_shape(value: ir.Value | None) -> list[int] | None:
    """Sizes of a value whose shape is known and static, else None."""
    if value is None or value.shape is None or not all(isinstance(d, int) for d in value.shape):
        return None
    return [d for d in value.shape if isinstance(d, int)]
