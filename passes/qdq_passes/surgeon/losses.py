"""What graphsurgeon cannot carry: found before the conversion, refused with the loss named."""

from __future__ import annotations

from typing import NoReturn

import onnx_ir as ir

from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import all_nodes, graph_likes, label

_HINT = "edit this model with passes over onnx_ir instead"
#: Attribute types that graphsurgeon leaves out of the node with a warning.
_DROPPED = {
    ir.AttributeType.TYPE_PROTO: "a type",
    ir.AttributeType.TYPE_PROTOS: "types",
    ir.AttributeType.SPARSE_TENSOR: "a sparse tensor",
    ir.AttributeType.SPARSE_TENSORS: "sparse tensors",
    ir.AttributeType.TENSORS: "a list of tensors",
    ir.AttributeType.GRAPHS: "a list of graphs",
    ir.AttributeType.UNDEFINED: "no type",
}
#: Element types whose edited values graphsurgeon writes wrongly (measured on 0.6.1): sub-byte values unpacked, float8e4m3fnuz
#: tagged as float8e4m3fn (values doubled), strings not at all.
_FNUZ = frozenset({ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2FNUZ})


def refuse_losses(model: ir.Model) -> None:
    """Refuse a model that graphsurgeon would corrupt.

    Raises:
        UnsupportedError: overloads of functions; optional or sparse types; attributes that hold types, sparse tensors, lists of
            tensors or graphs, or bytes that are not UTF-8; initializers without data.
    """
    for function in model.functions.values():
        if function.overload:
            _refuse(f"overload {function.overload!r} of a function", f"{function.domain}::{function.name}")
        for attribute in function.attributes.values():
            if attribute.value is not None:
                _check_attribute(attribute, f"{function.domain}::{function.name}")
    for node in all_nodes(model):
        if node.overload:
            _refuse(f"call of the function overload {node.overload!r}", label(node))
        for attribute in node.attributes.values():
            _check_attribute(attribute, label(node))
        for output in node.outputs:
            _check_type(output)
    for graph_like in graph_likes(model):
        main = graph_like.graph if isinstance(graph_like, ir.Function) else graph_like
        for graph in (main, *graph_like.subgraphs()):
            for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs):
                _check_type(value)
                if value.is_initializer() and value.const_value is None:
                    _refuse("initializer without data", value.name or "<unnamed value>")


def refuse_edited(dtype: ir.DataType, name: str) -> None:
    """Refuse new or edited values of an element type that graphsurgeon writes wrongly; untouched ones are put back as they were.

    Raises:
        UnsupportedError: 2- and 4-bit (and other sub-byte) types, float8 fnuz, strings.
    """
    if dtype == ir.DataType.STRING or dtype in _FNUZ or dtype.itemsize < 1:
        raise UnsupportedError(
            f"its {dtype.name} values were edited (or are new), and graphsurgeon writes {dtype.name} wrongly",
            where=name,
            hint="leave them untouched, or edit them in a pass over onnx_ir",
        )


def _check_attribute(attribute: ir.Attr, where: str) -> None:
    if attribute.is_ref():
        return
    if attribute.type in _DROPPED:
        _refuse(f"attribute {attribute.name!r}, which holds {_DROPPED[attribute.type]}", where)
    values = attribute.value if isinstance(attribute.value, tuple) else (attribute.value,)
    if any(isinstance(value, bytes) for value in values):
        _refuse(f"attribute {attribute.name!r}, whose bytes are not UTF-8", where)


def _check_type(value: ir.Value) -> None:
    kind: object = value.type
    while isinstance(kind, ir.SequenceType):
        kind = kind.elem_type
    if isinstance(kind, ir.OptionalType):
        _refuse("optional type", value.name or "<unnamed value>")
    if isinstance(kind, ir.SparseTensorType):
        _refuse("sparse tensor type", value.name or "<unnamed value>")


def _refuse(loss: str, where: str) -> NoReturn:
    raise UnsupportedError(f"graphsurgeon would lose the {loss}", where=where, hint=_HINT)
