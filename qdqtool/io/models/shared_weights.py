"""Several models in one folder with one data file: equal weights are stored once, whoever reads them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import onnx_ir as ir
from qdq_passes.graph.foreign import Slot, put, slots

from qdqtool.io.files.atomic import HiddenFile, folder_for, refuse_existing, writing
from qdqtool.io.files.folders import path_inside
from qdqtool.io.models.data_file import DataFile, nbytes_of
from qdqtool.io.models.provenance import Provenance
from qdqtool.io.models.save import (
    THRESHOLD,
    annotated,
    identity_of,
    inside,
    reference_to,
    refuse_own_data,
    serialize,
    sign,
    to_bytes,
)

#: The data file is called ``weights.<first 8 of its sha256>.data``.
STEM = "weights"


def save_shared(
    models: Mapping[str, ir.Model],
    folder: str | os.PathLike[str],
    *,
    threshold: int = THRESHOLD,
    overwrite: bool = True,
    provenance: Mapping[str, Provenance] | None = None,
) -> dict[str, str]:
    """Write ``models`` to ``folder``, their weights to one data file there; the models in memory stay as they are.

    Tensors that are the same place of the same file, or of equal content, are stored once, from a page on where they are that
    long; weights in files are copied as a stream, a megabyte at a time. All files are written under hidden names and renamed at
    the end, the data file first: what fails before leaves the folder as it was.

    Args:
        models: file name → model, with its annotations.
        folder: made where missing.
        threshold: bytes from which a tensor goes into the data file; smaller ones stay inside.
        overwrite: whether existing models may be replaced.
        provenance: file name → entry to append to the history of that model, whose producer we are then.

    Returns:
        Path of each file written → its hex SHA-256, computed while it was written: the data file, where there is one, then the
        models.

    Raises:
        ModelError: external data of a model is gone, or a model cannot be written.
        UsageError: the folder cannot be written, a model exists and ``overwrite`` is off, or is the data file of one of them.
        UnsupportedError: a model is over 2 GiB without its weights.
        SetupError: the disk is full.
    """
    target = os.path.abspath(os.fspath(folder))
    entries = provenance or {}
    paths = {name: path_inside(target, name, where=target) for name in models}
    for path in paths.values():
        refuse_existing(path, overwrite=overwrite)
        for model in models.values():
            refuse_own_data(model, path)
    first = next(iter(paths.values()), os.path.join(target, STEM))
    digests: dict[str, str] = {}
    with folder_for(first), writing(first):
        hidden: dict[str, HiddenFile] = {}
        moved, data, file = _write_data(models, target, threshold)
        if data is not None:
            digests[os.path.join(target, file)] = data.sha256
        try:
            for name, model in models.items():
                hidden[name] = HiddenFile(target, name)
                with put(moved[name]), annotated(model, True):
                    proto = serialize(model)
                if name in entries:
                    sign(proto, entries[name])
                content = to_bytes(proto)
                digests[paths[name]] = hashlib.sha256(content).hexdigest()
                hidden[name].file.write(content)
                hidden[name].sync()
            for name, written in hidden.items():
                written.keep_as(paths[name])
        except BaseException:
            for written in hidden.values():
                written.discard()
            if data is not None:
                data.abandon()
            raise
    return digests


def _write_data(
    models: Mapping[str, ir.Model], folder: str, threshold: int
) -> tuple[dict[str, dict[Slot, ir.TensorProtocol]], DataFile | None, str]:
    """Write the data file; per model what is to stand in its slots instead; the file's name, empty where no weight is large."""
    moved: dict[str, dict[Slot, ir.TensorProtocol]] = {name: {} for name in models}
    large: list[tuple[str, Slot, object]] = []
    extents: dict[object, tuple[int, int]] = {}
    data = DataFile(folder, STEM)
    try:
        for name, model in models.items():
            for slot in slots(model):
                tensor = slot.tensor
                if slot.may_lie_outside and nbytes_of(tensor) >= threshold:
                    key = identity_of(tensor)
                    large.append((name, slot, key))
                    if key not in extents:
                        in_file = isinstance(tensor, ir.ExternalTensor)
                        extents[key] = data.add(tensor) if in_file else data.add_once(tensor)
                elif isinstance(tensor, ir.ExternalTensor):  # what it refers to lies in another folder
                    moved[name][slot] = inside(tensor)
        if not extents:
            data.abandon()
            return moved, None, ""
        file = data.finish()
    except BaseException:
        data.abandon()
        raise
    for name, slot, key in large:
        moved[name][slot] = reference_to(slot.tensor, folder, file, *extents[key])
    return moved, data, file
