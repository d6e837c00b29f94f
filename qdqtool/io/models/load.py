"""Load a model: parse, refuse what cannot be represented, make the graph, give what has no name one.

External data stays on disk and is mapped when a tensor is read. Payloads of EPContext nodes are text attributes that need not be
text: onnx_ir refuses to read them and warns where it writes them, so they go around it, both ways, here and in saving."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from qdq_passes.core.budget import uncollected
from qdq_passes.core.names import CONTRADICTION, UNNAMED
from qdq_passes.errors import ModelError, QdqError, UnsupportedError
from qdq_passes.graph import annotate
from qdq_passes.graph.foreign import slots
from qdq_passes.numerics.missing import MissingTensor

from qdqtool.io.models.parse import check_model, read_model
from qdqtool.io.models.references import may_refer
from qdqtool.io.models.tidy import contradiction_in, tidy

#: (place of the node in the main graph, name of the attribute, its bytes).
Payload = tuple[int, str, bytes]
Weight = ir.Tensor[npt.NDArray[Any]]
#: Characters of an error message, and of the place it names.
LINE = 240
#: Bytes from which a weight leaves the protobuf at `load`.
LARGE = 1 << 16
#: Types that numpy has as they are stored, by number.
_PLAIN = {
    kind.value: kind.numpy().newbyteorder("<")
    for kind in map(
        ir.DataType.__getitem__, ("FLOAT", "FLOAT16", "DOUBLE", "INT8", "UINT8", "INT16", "UINT16", "INT32", "INT64")
    )
}
#: Fields of a tensor that `ir.Tensor` has no place for.
_MORE = ("segment", "data_location", "doc_string")
#: In ``model.meta``: absolute path of the file the model was loaded from.
SOURCE = "qdqtool.source"
#: In ``model.meta``: the file held annotations of ours, so that saving writes them again.
ANNOTATED = "qdqtool.annotated"
#: In ``value.meta`` of an initializer: its file declares its type a second time, in value_info.
DECLARED = "qdqtool.declared"


@contextmanager
def payloads_apart(proto: onnx.ModelProto) -> Iterator[list[Payload]]:
    """Attributes of EPContext nodes that are no UTF-8, empty in ``proto`` for as long as the block runs."""
    found: list[Payload] = []
    held: list[tuple[onnx.AttributeProto, bytes]] = []
    for index, node in enumerate(proto.graph.node):
        if node.op_type != "EPContext":
            continue
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.STRING and not _is_text(attribute.s):
                found.append((index, attribute.name, attribute.s))
                held.append((attribute, attribute.s))
                attribute.s = b""
    try:
        yield found
    finally:
        for attribute, data in held:
            attribute.s = data


def put_back(model: ir.Model, payloads: list[Payload]) -> None:
    """Give the nodes of ``model`` their attributes; they are bytes there."""
    nodes = list(model.graph) if payloads else []
    for index, name, data in payloads:
        nodes[index].attributes[name] = ir.Attr(name, ir.AttributeType.STRING, data)


@contextmanager
def payloads_out(model: ir.Model) -> Iterator[list[Payload]]:
    """Attributes of ``model`` that are bytes, empty texts while the block runs; `write_into` puts them into its protobuf."""
    found: list[Payload] = []
    nodes = list(model.graph)
    for index, node in enumerate(nodes):
        if node.op_type == "EPContext":
            found += [(index, name, a.value) for name, a in node.attributes.items() if isinstance(a.value, bytes)]
    for index, name, _ in found:
        nodes[index].attributes[name] = ir.AttrString(name, "")
    try:
        yield found
    finally:
        put_back(model, found)


def write_into(proto: onnx.ModelProto, payloads: list[Payload]) -> None:
    """Give the nodes of ``proto``, made inside of `payloads_out`, their attributes."""
    for index, name, data in payloads:
        for attribute in proto.graph.node[index].attribute:
            if attribute.name == name:
                attribute.s = data


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def load(
    path: str | os.PathLike[str], *, weights: bool = True, hasher: Callable[[bytes], object] | None = None
) -> ir.Model:
    """Load the model in the file at ``path``: ``.onnx``, or text as ``.onnxtxt``, ``.json``, ``.textproto``.

    Nodes without a name get one in memory (``Conv_12``, from their operator and place); saving leaves them nameless again.
    Where the model came from is kept in ``model.meta["qdqtool.source"]``. Without ``weights`` files of external data may be
    missing: of what lies there only types and shapes are known (`missing_weights`); where data may lie is checked all the same.
    ``hasher``, such as ``hashlib.sha256().update``, is called with the bytes of the file, not with those of external data.

    Raises:
        ModelError: there is no such file, or it is broken: cut off, a value defined twice, a missing tensor, a cycle,
            external data that is missing, too short, a link, or outside the model's folder.
        UnsupportedError: it has sparse tensors, maps or training information.
    """
    where = os.path.abspath(os.fspath(path))
    try:
        with uncollected():
            return _model_of(read_model(path, hasher), os.path.dirname(where), where, is_shared=False, weights=weights)
    except QdqError as error:
        given = os.fspath(path)
        error.where = given if error.where in (None, given) else f"{given}: {_short(error.where)}"
        error.message = _short(error.message)
        raise


def _short(text: str) -> str:
    """One line of bounded length: names come from the file, and may hold anything."""
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[:LINE]}…"


def model_of(proto: onnx.ModelProto, folder: str | None = None, *, source: str | None = None) -> ir.Model:
    """The model of a parsed protobuf, which it takes over.

    Args:
        proto: the model; its tensors are not copied.
        folder: folder its external data lies in; None when it has none.
        source: file to note as the origin.

    Raises:
        ModelError: the model is broken.
        UnsupportedError: it has sparse tensors, maps or training information.
    """
    return _model_of(proto, folder, source, is_shared=True)


def _model_of(
    proto: onnx.ModelProto, folder: str | None, source: str | None, *, is_shared: bool, weights: bool = True
) -> ir.Model:
    """`model_of`; a protobuf that nobody else holds (``is_shared``) is let go of, its large weights become arrays."""
    tidy(proto)
    tensors = check_model(proto, folder, weights=weights)
    contradiction = contradiction_in(proto)
    taken: dict[str, Weight] = {}
    if not is_shared:
        proto, taken = _taken_out(proto)
    with payloads_apart(proto) as payloads:
        try:
            model = ir.serde.deserialize_model(proto)
        except Exception as error:
            raise _refusal(error) from error
    put_back(model, payloads)
    for name, weight in taken.items():
        model.graph.initializers[name].const_value = weight
    if (tensors.sizes or tensors.missing) and folder is not None:
        for slot in slots(model):
            if isinstance(tensor := slot.tensor, ir.ExternalTensor):
                tensor.base_dir = folder
                if tensor.location in tensors.missing:
                    slot.put(MissingTensor.of(tensor))
    if source is not None:
        model.meta[SOURCE] = source
    if contradiction:
        model.meta[CONTRADICTION] = contradiction
    _plain_domains(model)
    _remember_declared(proto, model)
    _read_annotations(model)
    _name_nodes(model)
    return model


def _taken_out(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """A protobuf without the bytes of large plain weights, which it would copy at every look, and those weights by name."""
    found: dict[str, Weight] = {}
    for tensor in proto.graph.initializer:
        dtype = _PLAIN.get(tensor.data_type)
        if dtype is None or math.prod(tensor.dims) * dtype.itemsize < LARGE or any(map(tensor.HasField, _MORE)):
            continue
        if tensor.HasField("raw_data") and not tensor.external_data and not tensor.metadata_props:
            array = np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))
            found[tensor.name] = ir.Tensor(array, name=tensor.name)
            tensor.ClearField("raw_data")
    if not found:
        return proto, found
    light = onnx.ModelProto()  # the memory of the fields cleared is that of the whole message
    light.CopyFrom(proto)
    return light, found


def missing_weights(model: ir.Model) -> dict[str, int]:
    """How many weights of ``model`` lie in each file that is not there; empty unless it was loaded without them."""
    return dict(Counter(os.fspath(t.location) for s in slots(model) if isinstance(t := s.tensor, MissingTensor)))


def missing_warnings(missing: Mapping[str, int]) -> list[str]:
    """Return one warning for each missing file of external data; see `missing_weights`."""
    return [
        f"external data file {file!r} is missing: only type and shape of {count} tensor{'s' if count > 1 else ''} are known, "
        "what hangs on values is not judged"
        for file, count in missing.items()
    ]


def root_cause(error: BaseException) -> tuple[BaseException, str]:
    """The first of a chain of errors, and what it says, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error, _short(str(error)) or type(error).__name__


def _refusal(error: Exception) -> QdqError:
    cause, text = root_cause(error)
    if isinstance(cause, NotImplementedError):
        return UnsupportedError(f"holds something onnx_ir has no form for ({text})", hint="export it without")
    return ModelError(f"cannot be read as a graph ({text})", hint="check it with onnx.checker")


def _plain_domains(model: ir.Model) -> None:
    """``ai.onnx`` is another spelling of the default domain; onnx_ir writes nodes as ``""``, so the imports follow."""
    for imports in [model.opset_imports, *(f.opset_imports for f in model.functions.values())]:
        if "ai.onnx" in imports:
            imports[""] = imports.pop("ai.onnx")


def graph_pairs(proto: onnx.GraphProto, graph: ir.Graph) -> Iterator[tuple[onnx.GraphProto, ir.Graph]]:
    """(protobuf, graph) of ``graph`` and of every body in it; both have the same nodes in the same order."""
    yield proto, graph
    yield from body_pairs(proto.node, graph)


def body_pairs(
    protos: Sequence[onnx.NodeProto], nodes: ir.Graph | ir.Function
) -> Iterator[tuple[onnx.GraphProto, ir.Graph]]:
    """(protobuf, graph) of every body of ``nodes``, whose protobufs are ``protos``."""
    for proto, node in zip(protos, nodes, strict=True):
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH and not attribute.ref_attr_name:
                yield from graph_pairs(attribute.g, node.attributes[attribute.name].as_graph())
            elif attribute.type == onnx.AttributeProto.GRAPHS and not attribute.ref_attr_name:
                for body, graph in zip(attribute.graphs, node.attributes[attribute.name].as_graphs(), strict=True):
                    yield from graph_pairs(body, graph)


def _remember_declared(proto: onnx.ModelProto, model: ir.Model) -> None:
    pairs = [*graph_pairs(proto.graph, model.graph)]
    for function, body in zip(proto.functions, model.functions.values(), strict=True):
        pairs += body_pairs(function.node, body)
    for part, scope in pairs:
        for info in part.value_info:
            if info.name in scope.initializers:
                scope.initializers[info.name].meta[DECLARED] = True


def _read_annotations(model: ir.Model) -> None:
    try:
        if annotate.read_metadata(model):
            model.meta[ANNOTATED] = True
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"an annotation cannot be read ({error})", hint="remove the qdqtool.* metadata") from error


def _name_nodes(model: ir.Model) -> None:
    """Give each nameless node ``<operator>_<place among all nodes>``, made unique, and mark it with the name it got."""
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    nodes = [node for part in parts for node in part.all_nodes()]
    taken = {node.name for node in nodes}
    for place, node in enumerate(nodes):
        if not node.name:
            name = f"{node.op_type}_{place}"
            while name in taken:
                name += "_"
            taken.add(name)
            node.name = name
            node.meta[UNNAMED] = name


def data_files(path: str) -> dict[str, str]:
    """The data files that a model refers to, beside it, in the order of its tensors; each with its real path."""
    if not os.path.isfile(path) or not may_refer(path):
        return {}
    tensors = [slot.tensor for slot in slots(load(path)) if isinstance(slot.tensor, ir.ExternalTensor)]
    folder = os.path.dirname(path)
    return {os.path.join(folder, os.fspath(t.location)): os.path.realpath(t.path) for t in tensors}
