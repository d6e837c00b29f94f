"""Shape inference by onnx, merged into the model in place without touching anything else.

onnx gets a copy whose large weights are graph inputs (it would refuse more than 2 GB, and needs only their shapes), and shape
functions of the contributed operators that it does not know. The merge is ours: onnx_ir's own turns untyped sequences into
tensors and moves initializers to the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import onnx
import onnx_ir as ir

from qdq_passes.errors import ModelError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.evaluate.sizes import is_made_up
from qdq_passes.graph.evaluate.walk import Scope, walk
from qdq_passes.graph.foreign import to_proto
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize, is_quantize_dequantize
from qdq_passes.graph.shapes.contrib_shapes import known_to_onnx
from qdq_passes.graph.shapes.propagation import FAILURES, SHOWN_BYTES, by_onnx
from qdq_passes.graph.uses import GraphLike, all_graph_likes, all_nodes, constant_array, dtype_of, with_bodies
from qdq_passes.numerics.missing import is_missing

#: Ranks that are tried.
LARGEST_RANK = 8
#: Calls inside one another up to which onnx infers.
DEEPEST_CALL = 100


def infer_shapes(model: ir.Model, *, data_propagation: bool = True) -> None:
    """Add types and shapes to the values of ``model``, bodies included; what cannot be inferred stays unknown.

    Known sizes are kept, unknown ones are filled in; a type that is known is never replaced.

    Raises:
        ModelError: onnx refuses the graph altogether, or its nodes are out of order.
    """
    if all(_is_told(value) for graph in with_bodies(model.graph) for value in _by_name(graph).values()):
        return
    _infer_symbolic(model)
    found = _inferred_proto(model, data_propagation=data_propagation)
    graphs = with_bodies(model.graph)
    if len(graphs) == 1:  # without bodies what onnx says of the values is enough, and takes half as long to read
        infos = (*found.graph.input, *found.graph.value_info, *found.graph.output)
        known = [{info.name: ir.serde.deserialize_value_info_proto(info, None) for info in infos}]
    else:
        known = [_by_name(graph) for graph in ir.from_proto(found).graphs()]
    for graph, told in zip(graphs, known, strict=True):
        for name, value in _by_name(graph).items():
            if name in told:
                _merge(value, told[name])


def _is_told(value: ir.Value) -> bool:
    """Whether nothing is left to infer of ``value``: its element type and every size are known."""
    shape = value.shape
    is_typed = isinstance(value.type, ir.TensorType) and value.dtype != ir.DataType.UNDEFINED
    return is_typed and shape is not None and all(isinstance(dim, int) for dim in shape)


def _infer_symbolic(model: ir.Model) -> None:
    """Sizes that hang on symbolic ones of the inputs of the main graph, by name, where onnx would give up."""
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    if all(isinstance(dim, int) for value in inputs for dim in value.shape or ()):
        return
    walked = walk(model, {}, scope=Scope(declared=True))
    for value, proto in walked.types.items():
        if value.producer() is not None and proto.tensor_type.HasField("shape"):
            found = ir.Value(
                type=ir.TensorType(ir.DataType(proto.tensor_type.elem_type)), shape=ir.Shape(walked.sizes(value) or ())
            )
            _merge(value, found)


def element_types(model: ir.Model, values: Iterable[ir.Value]) -> dict[ir.Value, ir.DataType | None]:
    """The element type of each of ``values``, without a change to ``model``; None where it cannot be told or is of no tensor.

    What the graph does not declare is inferred on a copy; a graph that onnx cannot infer leaves it unknown.
    """
    types: dict[ir.Value, ir.DataType | None] = {}
    for value in values:  # in the order of the graph each is a step from one that is known
        types[value] = dtype_of(value, types)
    unknown = {value for value, dtype in types.items() if dtype is None}
    if not unknown:
        return types
    try:
        inferred = _inferred(model, data_propagation=False)
    except ModelError:
        return types
    _infer_functions(inferred)
    for mine, theirs in zip(all_graph_likes(model), all_graph_likes(inferred), strict=True):
        known = _by_name(theirs)
        for name, value in _by_name(mine).items():
            if value in unknown and name in known:
                types[value] = known[name].dtype if isinstance(known[name].type, ir.TensorType) else None
    return types


class Inferred:
    """Types and shapes of a model's values as far as the file tells or onnx infers, without a change to the model.

    What the file does not tell is inferred on a copy, once, when it is first asked for; a graph that onnx cannot infer leaves it
    unknown. Values that are made afterwards are known by what they say themselves.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._found: dict[ir.Value, ir.Value] | None = None

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Element type of ``value``, None when unknown."""
        known = dtype_of(value)
        twin = None if known is not None else self._twins().get(value)
        return twin.dtype if twin is not None else known

    def rank(self, value: ir.Value) -> int | None:
        """Number of dimensions of ``value``, None when unknown."""
        shape = _shape_of(value)
        if shape is None and (twin := self._twins().get(value)) is not None:
            shape = _shape_of(twin)
        return None if shape is None else len(shape)

    def sizes(self, value: ir.Value, axes: Iterable[int] | slice = slice(None)) -> list[int] | None:
        """Sizes of ``value`` along ``axes`` (negative ones count from the end; all by default), None unless all are numbers.

        Inference only runs for a size that the value itself does not tell.
        """
        wanted = axes if isinstance(axes, slice) else list(axes)
        found = _numbers(_shape_of(value), wanted)
        if found is None and (twin := self._twins().get(value)) is not None:
            found = _numbers(_shape_of(twin), wanted)
        return found

    def _twins(self) -> dict[ir.Value, ir.Value]:
        """Value → what became of it on the copy."""
        if self._found is None:
            self._found = {}
            try:
                inferred = _inferred(self._model, data_propagation=True)
            except ModelError:
                return self._found
            _infer_functions(inferred)
            for mine, theirs in zip(all_graph_likes(self._model), all_graph_likes(inferred), strict=True):
                known = _by_name(theirs)
                self._found |= {value: known[name] for name, value in _by_name(mine).items() if name in known}
        return self._found


def _shape_of(value: ir.Value) -> ir.Shape | None:
    """Shape of ``value``: its own, its data's, or that of the integers it was dequantized from and the float before those."""
    current: ir.Value | None = value
    for _ in range(3):
        if current is None or current.shape is not None:
            break
        if current.const_value is not None:
            return ir.Shape(current.const_value.shape.numpy())
        array = constant_array(current)
        if array is not None:
            return ir.Shape(array.shape)
        producer = current.producer()
        is_half = producer is not None and any(
            matches(producer) for matches in (is_quantize, is_dequantize, is_quantize_dequantize)
        )
        current = producer.inputs[0] if producer is not None and is_half and producer.inputs else None
    return None if current is None else current.shape


def _numbers(shape: ir.Shape | None, axes: list[int] | slice) -> list[int] | None:
    if shape is None or (not isinstance(axes, slice) and not all(-len(shape) <= a < len(shape) for a in axes)):
        return None
    dims = list(shape)
    chosen = dims[axes] if isinstance(axes, slice) else [dims[axis] for axis in axes]
    sizes = [d for d in chosen if isinstance(d, int)]
    return sizes if len(sizes) == len(chosen) else None


def _infer_functions(model: ir.Model) -> None:
    """Type the values of local functions by what they are called with, where all calls agree."""
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {identifier: [] for identifier in model.functions}
    for node in all_nodes(model):
        if node.op_identifier() in calls:
            calls[node.op_identifier()].append(node)
    protos = {identifier: to_proto(function, shown_only=True) for identifier, function in model.functions.items()}
    known: dict[ir.OperatorIdentifier, list[ir.DataType | None]] = {}
    pending = list(model.functions.values())
    for function in pending:  # grows: a function that another one calls knows its types once that one's are known
        dtypes: list[ir.DataType | None] = []
        for index in range(len(function.inputs)):
            values = [node.inputs[index] for node in calls[function.identifier()] if index < len(node.inputs)]
            given = {value.dtype if value is not None else None for value in values}
            dtypes.append(given.pop() if len(given) == 1 else None)
        if known.get(function.identifier()) == dtypes:
            continue
        known[function.identifier()] = dtypes
        for parameter, dtype in zip(function.inputs, dtypes, strict=True):
            parameter.type = ir.TensorType(dtype) if dtype is not None else None
        pending += _infer_function(function, protos, model.functions)


def _infer_function(
    function: ir.Function,
    protos: Mapping[ir.OperatorIdentifier, onnx.FunctionProto],
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
) -> list[ir.Function]:
    """Type the values of ``function``; return the functions that it calls."""
    levels = [[function]]
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    while levels[-1] and len(levels) <= DEEPEST_CALL:
        called = {
            node.op_identifier() for one in levels[-1] for node in one.all_nodes()
        } & functions.keys() - found.keys()
        levels.append([functions[identifier] for identifier in sorted(called)])
        found |= {one.identifier(): one for one in levels[-1]}
    proto = onnx.ModelProto(
        ir_version=10, graph=to_proto(function.graph, shown_only=True), functions=[protos[key] for key in found]
    )
    proto.opset_import.extend(onnx.helper.make_opsetid(*pair) for pair in function.opset_imports.items())
    operators = [(node.domain, node.op_type) for node in function.all_nodes()]
    try:
        with known_to_onnx(operators):
            inferred = ir.from_proto(onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False))
    except FAILURES:
        return levels[1]
    for mine, theirs in zip(with_bodies(function), inferred.graphs(), strict=True):
        known = _by_name(theirs)
        for name, value in _by_name(mine).items():
            if value.type is None and name in known:
                value.type = known[name].type
    return levels[1]


def _inferred(model: ir.Model, *, data_propagation: bool) -> ir.Model:
    """A copy of ``model`` with what onnx infers."""
    return ir.from_proto(_inferred_proto(model, data_propagation=data_propagation))


def rank_that_fits(model: ir.Model, value: ir.Value) -> int | None:
    """The only rank of ``value`` with which all that is declared fits together, where its own is unknown; None without one."""
    before, fits = value.shape, []
    for rank in range(LARGEST_RANK + 1):
        value.shape = ir.Shape([None] * rank)
        with suppress(ModelError):
            _inferred_proto(model, data_propagation=True, strict=True)
            fits.append(rank)
    value.shape = before
    return fits[0] if len(fits) == 1 else None


def _inferred_proto(model: ir.Model, *, data_propagation: bool, strict: bool = False) -> onnx.ModelProto:
    copy = copy_model(model)
    for node in copy.graph:
        if node.op_type == "EPContext":  # what a provider compiled: large, and no text
            node.attributes.clear()
    for value in [v for v in copy.graph.initializers.values() if v.const_value is not None]:
        _declare(value)
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.nbytes > SHOWN_BYTES or is_missing(tensor):
            del copy.graph.initializers[value.name or ""]
            value.const_value = None
            if not value.is_graph_input():
                copy.graph.inputs.append(value)
    operators = [(node.domain, node.op_type) for node in all_nodes(copy)]
    try:
        with known_to_onnx(operators):
            shown = to_proto(copy, shown_only=True).SerializeToString()
            return by_onnx(shown, data_propagation=data_propagation, strict=strict)
    except FAILURES as error:
        text = " ".join(str(error).split())[:200]
        raise ModelError(
            f"onnx cannot infer shapes: {text}", where=model.graph.name, hint="look at it with check"
        ) from error


def _declare(value: ir.Value) -> None:
    """An initializer's type and shape, where only its tensor knows them."""
    tensor = value.const_value
    if tensor is not None:
        value.type = value.type or ir.TensorType(tensor.dtype)
        value.shape = value.shape if value.shape is not None else ir.Shape(tensor.shape.numpy())


def _by_name(graph: GraphLike) -> dict[str, ir.Value]:
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
    return theirs if isinstance(theirs, int) or mine.value is None or is_made_up(mine.value) else mine
