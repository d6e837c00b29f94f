"""Save a model so that at every moment the old one or the new one is whole.

Data files come first and are never overwritten; the model is written under a hidden name, synced, and renamed last. `serialize`
adds nothing to what was loaded: onnx_ir's serializer writes value_info for every initializer, doubles the metadata of tensors,
and sorts metadata; that is undone, and nodes that were named at load are nameless again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import onnx
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import UNNAMED
from qdq_passes.errors import ModelError, UnsupportedError, UsageError
from qdq_passes.graph import annotate
from qdq_passes.graph.foreign import Slot, files_of, put, slots, small_files
from qdq_passes.qdq.edit.streamed import StreamedTensor

from qdqtool.io.files.atomic import folder_for, refuse_existing, whole_file, writing
from qdqtool.io.models.data_file import DataFile, check_file, chunks_of, nbytes_of
from qdqtool.io.models.load import (
    ANNOTATED,
    DECLARED,
    body_pairs,
    graph_pairs,
    payloads_out,
    root_cause,
    write_into,
)
from qdqtool.io.models.parse import PROTOBUF_LIMIT
from qdqtool.io.models.provenance import PRODUCER, PROVENANCE, Provenance, appended, named_after, own_version

if TYPE_CHECKING:
    from qdqtool.io.models.pieces import Piece
External = Literal["auto", "never", "always"]
#: Bytes from which a tensor goes into a data file; smaller ones (scales, shapes) stay where readers need them early.
THRESHOLD = 1024
#: Bytes of tensors inside a model from which ``auto`` moves them out: under protobuf's 2 GiB with room for the graph.
INLINE_LIMIT = 3 << 29


def serialize(model: ir.Model) -> onnx.ModelProto:
    """The protobuf of ``model``; tensors in files keep their location, relative to the folder of each.

    Raises:
        ModelError: the model cannot be written: an initializer without data, text that is not UTF-8.
    """
    with payloads_out(model) as payloads:
        try:
            proto = ir.serde.serialize_model(model)
        except Exception as error:
            why = f"cannot be written ({root_cause(error)[1]})"
            raise ModelError(why, where=model.graph.name, hint="run check on it") from error
    write_into(proto, payloads)
    _in_order(proto.metadata_props, model.metadata_props)
    pairs = list(graph_pairs(proto.graph, model.graph))
    for part, function in zip(proto.functions, model.functions.values(), strict=True):
        part.domain = function.domain  # the empty one is not left out: onnx's checker wants it
        _in_order(part.metadata_props, function.metadata_props)
        pairs += body_pairs(part.node, function)
        _restore_nodes(part.node, function)
    for graph_part, graph in pairs:
        _restore_graph(graph_part, graph)
    return proto


@dataclass(frozen=True)
class SessionModel:
    """What a runtime session is made of.

    Args:
        data: the model as bytes.
        folder: folder that its external data is relative to; None when it has none.
    """

    data: bytes
    folder: str | None


def model_bytes(model: ir.Model) -> SessionModel:
    """``model`` as bytes for a session; external data stays in its files.

    Raises:
        UnsupportedError: what lies in memory is over 2 GiB, the limit of protobuf.
    """
    files = files_of(model)
    moved = small_files(files)
    files = {slot: tensor for slot, tensor in files.items() if slot not in moved}
    folders = sorted({os.path.abspath(os.fspath(tensor.base_dir) or ".") for tensor in files.values()})
    folder = os.path.commonpath(folders) if folders else None
    if folder is not None and len(folders) > 1:
        moved |= {slot: _seen_from(folder, tensor) for slot, tensor in files.items()}
    with put(moved):
        return SessionModel(to_bytes(serialize(model)), folder)


def _seen_from(folder: str, tensor: ir.ExternalTensor) -> ir.ExternalTensor:
    location = os.path.relpath(os.path.abspath(tensor.path), folder)
    return ir.ExternalTensor(
        location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=tensor.metadata_props,
        base_dir=folder,
    )


def to_bytes(proto: onnx.ModelProto) -> bytes:
    """``proto`` as bytes, the same ones every time.

    Raises:
        UnsupportedError: it is over 2 GiB.
    """
    try:  # asking for the size first would serialize it twice
        data: bytes = proto.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf only says that it failed; the fields are in order, so it is the size
        raise _too_large() from error
    if len(data) > PROTOBUF_LIMIT:
        raise _too_large()
    return data


def _too_large() -> UnsupportedError:
    hint = "store the weights as external data"
    return UnsupportedError("the model is over 2 GiB, the limit of protobuf", hint=hint)


def _in_order(entries: MutableSequence[onnx.StringStringEntryProto], wanted: Mapping[str, str]) -> None:
    """Give metadata entries the order they have in memory (the file's), each key once."""
    if [entry.key for entry in entries] != list(wanted):
        del entries[:]
        entries.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in wanted.items())


def _restore_nodes(protos: Iterable[onnx.NodeProto], nodes: Iterable[ir.Node]) -> None:
    for proto, node in zip(protos, nodes, strict=True):
        if UNNAMED in node.meta and node.meta[UNNAMED] == node.name:
            proto.ClearField("name")
        if proto.metadata_props:
            _in_order(proto.metadata_props, node.metadata_props)
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.metadata_props:
                _in_order(attribute.t.metadata_props, node.attributes[attribute.name].as_tensor().metadata_props)


def _restore_graph(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    _restore_nodes(proto.node, graph)
    _in_order(proto.metadata_props, graph.metadata_props)
    initializers = graph.initializers
    for tensor in proto.initializer:
        if tensor.metadata_props:
            held = initializers[tensor.name].const_value
            _in_order(tensor.metadata_props, {} if held is None else held.metadata_props)
    _drop_undeclared(proto.value_info, initializers)
    with_metadata = [info for info in (*proto.input, *proto.output, *proto.value_info) if len(info.metadata_props) > 1]
    if with_metadata:
        values = {value.name: value for value in (*graph.inputs, *graph.outputs, *initializers.values())}
        values |= {value.name: value for node in graph for value in node.outputs}
        for info in with_metadata:
            if info.name in values:
                _in_order(info.metadata_props, values[info.name].metadata_props)
    seen: set[str] = set()
    for index in reversed(range(len(proto.quantization_annotation))):
        name = proto.quantization_annotation[index].tensor_name
        if name in seen:
            del proto.quantization_annotation[index]
        seen.add(name)


def _drop_undeclared(infos: MutableSequence[onnx.ValueInfoProto], initializers: Mapping[str, ir.Value]) -> None:
    """Take out the entries of initializers, which stand first, that neither the file had nor carry what a tensor cannot."""
    undeclared = {
        name
        for name, value in initializers.items()
        if DECLARED not in value.meta and not value.metadata_props and not value.doc_string
    }
    count = sum(info.name in undeclared for info in infos[: len(initializers)])
    if all(info.name in undeclared for info in infos[:count]):
        del infos[:count]
        return
    for index in reversed(range(min(len(infos), len(initializers)))):
        if infos[index].name in undeclared:
            del infos[index]


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = True,
    external: External = "auto",
    threshold: int = THRESHOLD,
    provenance: Provenance | None = None,
    annotations: bool | None = None,
    copy_data: bool = False,
    hasher: Callable[[Piece], object] | None = None,
) -> tuple[str, ...]:
    """Write ``model`` to ``path``; the model in memory stays as it is.

    Data that already lies in a file of the same folder is referenced there, unless ``copy_data``. All other external data goes,
    in the order of the model, into one new file ``<stem>.<first 8 of its sha256>.data`` beside the model; an equal one is used
    again.

    Args:
        model: the model.
        path: ``.onnx`` (and anything unknown) binary, ``.onnxtxt``, ``.json``, ``.textproto`` text. Missing folders are made.
        overwrite: whether an existing file may be replaced.
        external: ``auto``: tensors from files stay in files, and so do new ones then; all go there when the model would be
            over 2 GiB. ``always``, ``never``.
        threshold: bytes from which a tensor that is not in a file yet goes into one.
        provenance: entry to append to the model's history, whose producer we are then.
        annotations: write the annotations of values and nodes into the file; None: when the model was loaded with some.
        copy_data: copy what lies in files of the folder too, so that the model hangs on no other's data file.
        hasher: called with the bytes of the model's file, one piece after the other, such as ``hashlib.sha256().update``.

    Returns:
        The paths written: the model, and the new data file if there is one.

    Raises:
        UsageError: the file exists and ``overwrite`` is off, it is a data file of the model, or it cannot be written.
        ModelError: external data of the model is gone, or the model cannot be written.
        UnsupportedError: over 2 GiB without external data, or text that cannot hold the model.
        SetupError: the disk is full.
    """
    from qdqtool.io.models.pieces import stand_ins

    target = os.path.abspath(os.fspath(path))
    refuse_existing(target, overwrite=overwrite)
    held = slots(model)
    refuse_own_data(model, target)
    keep_annotations = ANNOTATED in model.meta if annotations is None else annotations
    with folder_for(target) as folder, writing(target):
        moved, data = _write_data(held, folder, target, external, threshold, copy_data=copy_data)
        try:
            with put(moved), annotated(model, keep_annotations):
                inner = model.graph.initializers.values() if _form_of(target) == "protobuf" else ()
                with put(standing := stand_ins(inner)):
                    proto = serialize(model)
            if provenance is not None:
                sign(proto, provenance)
            content = _encode(proto, target, standing)
            with whole_file(target, overwrite=overwrite) as file:
                for piece in content:
                    if hasher is not None:
                        hasher(piece)
                    file.write(piece)
        except BaseException:
            if data is not None:
                data.abandon()
            raise
    return (target,) if data is None or data.made is None else (target, data.made)


def refuse_own_data(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Refuse to write to a file that tensors of ``model`` lie in. `save` does; an edit that may drop such tensors asks before it.

    Raises:
        UsageError: it is one.
    """
    where = os.path.abspath(os.fspath(path))
    files = {tensor.path for tensor in files_of(model).values()}
    if any(os.path.realpath(file) == os.path.realpath(where) for file in files):
        raise UsageError("is the data file of the model", where=where, hint="give the model another name")


def _write_data(
    held: list[Slot], folder: str, target: str, external: External, threshold: int, *, copy_data: bool
) -> tuple[dict[Slot, ir.TensorProtocol], DataFile | None]:
    """Write what must lie outside; what is to stand in the slots of the file instead of what stands there in memory."""
    if external == "never":
        return {slot: inside(slot.tensor) for slot in held if isinstance(slot.tensor, ir.ExternalTensor)}, None
    moving = []
    outside = _goes_outside(held, external)
    for slot in held:
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor):
            if not copy_data and os.path.realpath(tensor.base_dir) == os.path.realpath(folder):
                check_file(tensor)
            else:
                moving.append(slot)
        elif outside and slot.may_lie_outside and nbytes_of(tensor) >= threshold:
            moving.append(slot)
    if not moving:
        return {}, None
    data = DataFile(folder, os.path.splitext(os.path.basename(target))[0])
    try:
        extents: dict[object, tuple[int, int]] = {}
        for slot in moving:
            key = identity_of(slot.tensor)
            if key not in extents:
                extents[key] = data.add(slot.tensor)
        name = data.finish()
    except BaseException:
        data.abandon()
        raise
    return {slot: reference_to(slot.tensor, folder, name, *extents[identity_of(slot.tensor)]) for slot in moving}, data


def _goes_outside(held: list[Slot], external: External) -> bool:
    """Whether tensors that lie in memory go into a data file."""
    tensors = [slot.tensor for slot in held if slot.tensor.dtype != ir.DataType.STRING]
    is_outside = any(isinstance(slot.tensor, ir.ExternalTensor | StreamedTensor) for slot in held)
    return external == "always" or is_outside or sum(map(nbytes_of, tensors)) > INLINE_LIMIT


def identity_of(tensor: ir.TensorProtocol) -> object:
    """Equal for tensors that are the same bytes: the same object, or the same place of the same file."""
    if isinstance(tensor, ir.ExternalTensor):
        return os.path.abspath(tensor.path), tensor.offset or 0, nbytes_of(tensor)
    return id(tensor)


def reference_to(tensor: ir.TensorProtocol, folder: str, name: str, offset: int, length: int) -> ir.ExternalTensor:
    """``tensor`` as ``length`` bytes at ``offset`` of the file ``name`` in ``folder``."""
    return ir.ExternalTensor(
        name,
        offset,
        length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
        base_dir=folder,
    )


def inside(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """``tensor`` with its data, read from its file."""
    proto = onnx.TensorProto(
        name=tensor.name,
        doc_string=tensor.doc_string or "",
        dims=tensor.shape.numpy(),
        data_type=tensor.dtype.value,
        raw_data=b"".join(bytes(chunk) for chunk in chunks_of(tensor)),
    )
    proto.metadata_props.extend(
        onnx.StringStringEntryProto(key=key, value=value) for key, value in tensor.metadata_props.items()
    )
    return ir.serde.TensorProtoTensor(proto)


@contextmanager
def annotated(model: ir.Model, wanted: bool) -> Iterator[None]:
    """The annotations of ``model`` in its metadata for as long as it is written."""
    if not wanted:
        yield
        return
    annotate.write_metadata(model)
    try:
        yield
    finally:
        for holder in annotate.holders(model):
            for annotation in annotate.annotation_kinds():
                holder.metadata_props.pop(annotation.key, None)


def sign(proto: onnx.ModelProto, entry: Provenance) -> None:
    """Append ``entry`` to the history of ``proto``, and name us as its producer; who was that before stands in the entry."""
    entry = named_after(proto.producer_name, proto.producer_version, entry)
    proto.producer_name, proto.producer_version = PRODUCER, own_version()
    text = appended({each.key: each.value for each in proto.metadata_props}, entry)
    held = next((each for each in proto.metadata_props if each.key == PROVENANCE), None)
    if held is None:
        held = proto.metadata_props.add(key=PROVENANCE)
    held.value = text


def _form_of(path: str) -> str:
    """The format that the name of ``path`` tells."""
    extension = os.path.splitext(path)[1].lower()
    return onnx.serialization.registry.get_format_from_file_extension(extension) or "protobuf"


def _encode(proto: onnx.ModelProto, path: str, standing: dict[Slot, ir.TensorProtocol]) -> list[Piece]:
    """``proto``, in which some tensors are ``standing`` for weights, in the format the name of ``path`` tells."""
    form = _form_of(path)
    if form == "protobuf":
        data = to_bytes(proto)
        from qdqtool.io.models.pieces import pieces

        found: list[Piece] = pieces(data, proto.graph.initializer, standing) if standing else [data]
        if sum(map(len, found)) > PROTOBUF_LIMIT:
            raise _too_large()
        return found
    try:
        text: bytes = onnx.serialization.registry.get(form).serialize_proto(proto)
        if form == "onnxtxt":
            onnx.parser.parse_model(text.decode())
    except (onnx.parser.ParseError, ValueError) as error:
        raise UnsupportedError(f"{form} cannot hold this model", where=path, hint="save it as .onnx") from error
    return [text]
