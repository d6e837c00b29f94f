"""Save a model so that at every moment the old one or the new one is whole.

Data files come first and are never overwritten; the model is written under a hidden name, synced, and renamed last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import onnx
import onnx_ir as ir
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.graph import annotate
from qdq_passes.qdq.edit.streamed import StreamedTensor

from qdqtool.io.files.atomic import folder_for, refuse_existing, write_whole, writing
from qdqtool.io.models.data_file import DataFile, check_file, chunks_of, nbytes_of
from qdqtool.io.models.load import ANNOTATED
from qdqtool.io.models.provenance import PROVENANCE, Provenance, appended
from qdqtool.io.models.serialize import serialize, to_bytes
from qdqtool.io.models.slots import Slot, put, slots

External = Literal["auto", "never", "always"]

#: Bytes from which a tensor goes into a data file; smaller ones (scales, shapes) stay where readers need them early.
THRESHOLD = 1024
#: Bytes of tensors inside a model from which ``auto`` moves them out: under protobuf's 2 GiB with room for the graph.
INLINE_LIMIT = 3 << 29


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = True,
    external: External = "auto",
    threshold: int = THRESHOLD,
    provenance: Provenance | None = None,
    annotations: bool | None = None,
) -> tuple[str, ...]:
    """Write ``model`` to ``path``; the model in memory stays as it is.

    Data that already lies in a file of the same folder is referenced there. All other external data goes, in the order of the
    model, into one new file ``<stem>.<first 8 of its sha256>.data`` beside the model; an equal one is used again.

    Args:
        model: the model.
        path: ``.onnx`` (and anything unknown) binary, ``.onnxtxt``, ``.json``, ``.textproto`` text. Missing folders are made.
        overwrite: whether an existing file may be replaced.
        external: ``auto``: tensors from files stay in files, and so do new ones then; all go there when the model would be
            over 2 GiB. ``always``, ``never``.
        threshold: bytes from which a tensor that is not in a file yet goes into one.
        provenance: entry to append to the model's history.
        annotations: write the annotations of values and nodes into the file; None: when the model was loaded with some.

    Returns:
        The paths written: the model, and the new data file if there is one.

    Raises:
        UsageError: the file exists and ``overwrite`` is off, it is a data file of the model, or it cannot be written.
        ModelError: external data of the model is gone, or the model cannot be written.
        UnsupportedError: over 2 GiB without external data, or text that cannot hold the model.
        SetupError: the disk is full.
    """
    target = os.path.abspath(os.fspath(path))
    refuse_existing(target, overwrite=overwrite)
    held = slots(model)
    refuse_own_data(model, target)
    keep_annotations = ANNOTATED in model.meta if annotations is None else annotations
    with folder_for(target) as folder, writing(target):
        moved, data = _write_data(held, folder, target, external, threshold)
        try:
            with put(moved), annotated(model, keep_annotations):
                proto = serialize(model)
            if provenance is not None:
                _note(proto, appended(model.metadata_props, provenance))
            write_whole(target, _encode(proto, target), overwrite=overwrite)
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
    files = {slot.tensor.path for slot in slots(model) if isinstance(slot.tensor, ir.ExternalTensor)}
    if any(os.path.realpath(file) == os.path.realpath(where) for file in files):
        raise UsageError("is the data file of the model", where=where, hint="give the model another name")


def _write_data(
    held: list[Slot], folder: str, target: str, external: External, threshold: int
) -> tuple[dict[Slot, ir.TensorProtocol], DataFile | None]:
    """Write what must lie outside; what is to stand in the slots of the file instead of what stands there in memory."""
    if external == "never":
        return {slot: inside(slot.tensor) for slot in held if isinstance(slot.tensor, ir.ExternalTensor)}, None
    moving = []
    outside = _goes_outside(held, external)
    for slot in held:
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor):
            if os.path.realpath(tensor.base_dir) == os.path.realpath(folder):
                check_file(tensor)
            else:
                moving.append(slot)
        elif outside and not slot.attribute and tensor.dtype != ir.DataType.STRING and nbytes_of(tensor) >= threshold:
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
    if external == "always" or any(isinstance(slot.tensor, ir.ExternalTensor | StreamedTensor) for slot in held):
        return True
    return sum(nbytes_of(slot.tensor) for slot in held if slot.tensor.dtype != ir.DataType.STRING) > INLINE_LIMIT


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


def _note(proto: onnx.ModelProto, text: str) -> None:
    for entry in proto.metadata_props:
        if entry.key == PROVENANCE:
            entry.value = text
            return
    proto.metadata_props.add(key=PROVENANCE, value=text)


def _encode(proto: onnx.ModelProto, path: str) -> bytes:
    """``proto`` in the format the name of ``path`` tells."""
    extension = os.path.splitext(path)[1].lower()
    form = onnx.serialization.registry.get_format_from_file_extension(extension) or "protobuf"
    if form == "protobuf":
        return to_bytes(proto)
    try:
        data: bytes = onnx.serialization.registry.get(form).serialize_proto(proto)
        if form == "onnxtxt":
            onnx.parser.parse_model(data.decode())
    except (onnx.parser.ParseError, ValueError) as error:
        raise UnsupportedError(f"{form} cannot hold this model", where=path, hint="save it as .onnx") from error
    return data
