"""Puts back, on nodes and values made from a graphsurgeon graph, what `surgeon.snapshot` remembers of the model it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, SupportsInt

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.annotate import ORIGIN, Origin
from qdq_passes.graph.nesting import INHERITED_KEYS
from qdq_passes.graph.sizes import dims_of
from qdq_passes.surgeon.snapshot import NodeFacts, ScopeFacts, ValueFacts

#: Element types that graphsurgeon writes as ONNX's number, because its numpy arrays have none.
_NO_NUMPY = frozenset(
    ir.DataType[name]
    for name in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
)  # fmt: skip
_SCALARS = frozenset({ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING})


def gs_dtype(dtype: ir.DataType | None) -> np.dtype[Any] | int | None:
    """An element type as graphsurgeon writes it: a numpy type, or ONNX's number."""
    if dtype is None or dtype in _NO_NUMPY or dtype == ir.DataType.UNDEFINED:
        return dtype.value if dtype is not None else None
    return onnx.helper.tensor_dtype_to_np_dtype(dtype.value)


def ir_dtype(dtype: npt.DTypeLike | int | None, where: str) -> ir.DataType | None:
    """Inverse of `gs_dtype`; also takes what users write (``np.float32``, ``onnx.TensorProto.FLOAT``)."""
    if dtype is None:
        return None
    try:
        if isinstance(dtype, int | np.integer):
            return ir.DataType(int(dtype))
        numpy_type = np.dtype(dtype)
        return ir.DataType.STRING if numpy_type.kind in "OSU" else ir.DataType.from_numpy(numpy_type)
    except (TypeError, ValueError) as error:
        raise ModelError(f"has the element type {dtype}, which ONNX does not know", where=where) from error


def gs_shape(value: ir.Value) -> list[int | str | None] | None:
    """A shape as graphsurgeon writes it; None for sequences, as it imports them."""
    if value.shape is None or not isinstance(value.type, ir.TensorType | None):
        return None
    return dims_of(value.shape)


def type_and_shape(
    name: str, dtype: Any, shape: Iterable[Any] | None, kind: str, facts: ValueFacts | None
) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Type and shape of a ``gs.Variable``: those of the original, denotations included, as far as they were not edited."""
    element = ir_dtype(dtype, name)
    type_: ir.TypeProtocol | None = None
    if facts is not None and facts.type is not None and facts.type.dtype == element:
        type_ = facts.type
    elif element is not None and kind == "tensor_type":
        type_ = ir.TensorType(element)
    elif element is not None and kind == "sequence_type":
        type_ = ir.SequenceType(ir.TensorType(element))
    elif element is not None:
        raise UnsupportedError(f"graphsurgeon cannot write the type {kind!r}", where=name)
    if isinstance(type_, ir.SequenceType) and facts is not None and shape is None:
        return type_, facts.shape.copy() if facts.shape is not None else None
    return type_, _shape(name, shape, facts.shape if facts is not None else None)


def _shape(name: str, shape: Iterable[Any] | None, original: ir.Shape | None) -> ir.Shape | None:
    if shape is None:
        return None
    dims = [_dim(dim, name) for dim in shape]
    old = dims_of(original) if original is not None else []
    kept = [original is not None and len(old) == len(dims) and old[i] == dim for i, dim in enumerate(dims)]
    return ir.Shape(
        dims, [original.get_denotation(i) if original is not None and keep else None for i, keep in enumerate(kept)]
    )


def _dim(dim: Any, name: str) -> int | str | None:
    if dim is None or dim == "":
        return None
    if isinstance(dim, str):
        return dim
    if not isinstance(dim, SupportsInt) or int(dim) != dim:
        raise ModelError(f"has the dimension {dim!r}", where=name, hint="a dimension is a number, a name or None")
    return int(dim) if int(dim) >= 0 else None


def renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """``tensor`` under another name, without its data being read or copied; the original keeps its name."""
    shape = ir.Shape(tensor.shape.numpy())
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=shape,
            name=name,
            base_dir=tensor.base_dir,
        )
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=shape, name=name)
    return ir.LazyTensor(lambda: tensor, tensor.dtype, shape, name=name)


def attribute(name: str, value: Any, original: ir.Attr | None, where: str) -> ir.Attr:
    """An attribute of a plain Python value; ``original`` itself when the value is still its own.

    The kind of the original is kept where the value allows it (an empty list has no kind of its own, 2 may be meant as 2.0).

    Raises:
        ModelError: ONNX has no attribute of such a value.
    """
    listed = list(value) if isinstance(value, list | tuple | np.ndarray) else None
    try:
        if original is not None and not original.is_ref():
            if isinstance(original.value, tuple) and listed is not None:
                if list(original.value) == listed:
                    return original
                if not listed or original.type == ir.AttributeType.FLOATS:
                    return ir.Attr(name, original.type, listed, doc_string=original.doc_string)
            elif original.type in _SCALARS and listed is None:
                if original.value == value:
                    return original
                if original.type == ir.AttributeType.FLOAT:
                    return ir.Attr(name, original.type, value, doc_string=original.doc_string)
        if isinstance(value, type):
            dtype = ir_dtype(value, where)
            value = dtype.value if dtype is not None else value
        return ir.serde.deserialize_attribute(onnx.helper.make_attribute(name, value))
    except (TypeError, ValueError) as error:
        raise ModelError(f"ONNX has no attribute {name!r} of the value {value!r}", where=where) from error


def body(owner: NodeFacts | None, attribute_name: str) -> ScopeFacts:
    """The facts of a node's body; empty ones of a new node or body."""
    return owner.bodies.get(attribute_name, ScopeFacts()) if owner else ScopeFacts()


def value(
    name: str,
    facts: ValueFacts | None,
    type_: ir.TypeProtocol | None,
    shape: ir.Shape | None,
    tensor: ir.TensorProtocol | None,
) -> ir.Value:
    """A value with the extras of the one of that name."""
    made = ir.Value(name=name, type=type_, shape=shape, const_value=tensor)
    if facts is not None:
        facts.extras.put_back(made)
    return made


def unused_initializers(facts: ScopeFacts, taken: Collection[str]) -> dict[str, ir.Value]:
    """The initializers that nobody read, unless their name is ``taken`` now."""
    names = [name for name in facts.initializers if name in facts.unused and name not in taken]
    known = {name: facts.values[name] for name in names}
    return {name: value(name, k, k.type, k.shape and k.shape.copy(), k.tensor) for name, k in known.items()}


def defaults(local: Mapping[str, ir.Value], inputs: Iterable[str], facts: ScopeFacts) -> list[str]:
    """Give graph inputs back the default value that they had; returns their names."""
    found = [name for name in inputs if name in facts.inputs and name in facts.initializers]
    found = [name for name in found if local[name].const_value is None]
    for name in found:
        local[name].const_value = facts.values[name].tensor
    return found


def type_of_tensor(
    tensor: ir.TensorProtocol, facts: ValueFacts | None
) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Type and shape of an initializer: those of the original (which may carry denotations) where they still fit."""
    dims: list[int | str | None] = list(tensor.shape.numpy())
    if facts is None:
        return ir.TensorType(tensor.dtype), ir.Shape(dims)
    same_tensor = tensor is facts.tensor
    same_type = same_tensor or (facts.type is not None and facts.type.dtype == tensor.dtype)
    same_shape = same_tensor or (facts.shape is not None and dims_of(facts.shape) == dims)
    shape = facts.shape.copy() if facts.shape is not None else None
    return facts.type if same_type else ir.TensorType(tensor.dtype), shape if same_shape else ir.Shape(dims)


def types_of_io(graph: ir.Graph, facts: ScopeFacts) -> None:
    """Give inputs and outputs of the main graph the element type they had, where graphsurgeon's has none.

    Raises:
        ModelError: a new one has none.
    """
    for made in (*graph.inputs, *graph.outputs):
        if made.type is None:
            known = facts.values.get(made.name or "")
            if known is None:
                raise ModelError(
                    "an input or output of the graph has no element type",
                    where=made.name,
                    hint="set dtype and shape of its gs.Variable",
                )
            made.type, made.shape = known.type, made.shape or (known.shape and known.shape.copy())


def by_name(values: Iterable[ir.Value]) -> dict[str, ir.Value]:
    """Values by name.

    Raises:
        ModelError: a name occurs twice.
    """
    found: dict[str, ir.Value] = {}
    for made in values:
        name = made.name or ""
        if name in found:
            raise ModelError(
                "is produced twice",
                where=name,
                hint="clear the outputs of the node you replaced (node.outputs.clear()), or call graph.cleanup()",
            )
        found[name] = made
    return found


def find(scope: Mapping[str, ir.Value], name: str, reader: str) -> ir.Value:
    """The value called ``name``.

    Raises:
        ModelError: nothing produces it; ``reader`` says who wants it.
    """
    if name not in scope:
        raise ModelError(
            f"is {reader}, but nothing in its graph produces it",
            where=name,
            hint="append its producer to graph.nodes or make it a graph input; an Identity passes on an outer value",
        )
    return scope[name]


def opsets(imports: Mapping[str, int], default: int | None) -> dict[str, Any]:
    """Arguments of ``gs.Graph`` that name operator sets."""
    domains = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return {"opset": imports.get("", default), "import_domains": domains}


def opset_imports(graph: Any, facts: ScopeFacts) -> dict[str, int]:
    """Those of a ``gs.Graph``, its edited ``opset``, and domains that new nodes brought, at version 1 as graphsurgeon does it."""
    imports = {opset.domain: opset.version for opset in graph.import_domains or ()}
    if "" in imports and facts.opset_imports.get("", graph.opset) != graph.opset:
        imports[""] = graph.opset
    used = {node.domain or "" for inner in (graph, *graph.subgraphs(recursive=True)) for node in inner.nodes}
    for domain in sorted(used - imports.keys() - facts.domains()):
        imports[domain] = 1 if domain else graph.opset
    return imports


def unless_edited(original: str | None, now: str | None) -> str | None:
    """``original`` if graphsurgeon's text still is what it made of it (it has no None), else the new text."""
    return original if (original or "") == (now or "") else now


def in_order(names: Collection[str], original: Iterable[str]) -> list[str]:
    """``names``, those of ``original`` first and in its order."""
    known = [name for name in original if name in names]
    return [*known, *(name for name in names if name not in known)]


def put_in(names: Sequence[str], original: Sequence[str], missing: Sequence[str]) -> list[str]:
    """``names`` with each of ``missing`` put in, behind what ``original`` has before it (at the end when it has it not)."""
    result = list(names)
    for name in in_order([n for n in missing if n not in names], original):
        before = [n for n in original[: original.index(name)] if n in result] if name in original else result
        result.insert(result.index(before[-1]) + 1 if before else 0, name)
    return result


def node(made: ir.Node, facts: NodeFacts, scope: Mapping[str, ir.Value]) -> None:
    """Give ``made`` the extras, version and device configurations of the node it is."""
    facts.extras.put_back(made)
    if (made.domain, made.op_type) == (facts.domain, facts.op_type):
        made.version = facts.version
    made.device_configurations = tuple(
        dataclasses.replace(
            configuration,
            sharding_specs=tuple(
                dataclasses.replace(spec, value=scope[spec.value.name])
                for spec in configuration.sharding_specs
                if spec.value is not None and spec.value.name in scope
            ),
        )
        for configuration in facts.device_configurations
    )


def inherit(new: Sequence[ir.Node], kept: Iterable[NodeFacts], facts: ScopeFacts) -> None:
    """Give new nodes scope and origin.

    A node that produces a value which a removed node produced stands for that node and for the removed ones before it; nodes
    that only feed such a node stand for the same. The rest has the scope of a neighbour.
    """
    present = {id(node) for node in kept}
    done: set[int] = set()
    for made in new:
        former = [facts.by_output[out.name] for out in made.outputs if out.name in facts.by_output]
        for old in former:
            _copy_scope(made, old.extras.metadata_props)
        gone = [old for old in former if id(old) not in present]
        if gone:
            ORIGIN.set(made, Origin(_origin(gone, facts, present)))
        if former:
            done.add(id(made))
    for made in reversed(new):
        readers = [use.node for out in made.outputs for use in out.uses() if id(use.node) in done]
        if id(made) not in done and readers:
            done.add(id(made))
            _copy_scope(made, readers[0].metadata_props)
            if (origin := ORIGIN.get(readers[0])) is not None:
                ORIGIN.set(made, origin)
    for made in (made for made in new if id(made) not in done):
        producers = [value.producer() for value in made.inputs if value is not None]
        neighbours = [*producers, *(use.node for out in made.outputs for use in out.uses())]
        for neighbour in (n for n in neighbours if n is not None):
            _copy_scope(made, neighbour.metadata_props)


def _copy_scope(made: ir.Node, props: Mapping[str, str]) -> None:
    """Scope keys, all of one node, unless ``made`` has any."""
    if not any(key in made.metadata_props for key in INHERITED_KEYS):
        made.metadata_props.update({key: props[key] for key in INHERITED_KEYS if key in props})


def _origin(gone: Sequence[NodeFacts], facts: ScopeFacts, present: Collection[int]) -> tuple[str, ...]:
    """Names of the original nodes behind ``gone`` and behind the removed nodes that fed them, in the order of the graph."""
    found: dict[int, NodeFacts] = {}
    waiting = list(gone)
    while waiting:
        old = waiting.pop()
        if id(old) not in found and id(old) not in present:
            found[id(old)] = old
            waiting += [facts.by_output[name] for name in old.inputs if name in facts.by_output]
    names: dict[str, None] = {}
    for old in facts.nodes:
        if id(old) in found:
            origin = old.extras.meta.get(ORIGIN.key)
            names.update(dict.fromkeys(origin.nodes if origin else (old.name or old.op_type,)))
    return tuple(names)
