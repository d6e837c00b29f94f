"""A model on its way to workers: as a file where they see it, as the bytes of its files where they do not."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import UNNAMED
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import all_nodes

from qdqtool.io.files.atomic import write_whole
from qdqtool.io.files.read import read_bytes
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save

#: Bytes from which a weight goes into a data file, which the processes of a machine map and so have in memory once.
APART = 1 << 16


@dataclass(frozen=True)
class SharedModel:
    """A model that is part of a context, see `Workers.share`.

    Args:
        path: where it lies; empty for a model in memory.
        files: bytes of its files by name, for workers that do not see ``path``: they write them to a folder of their own, which
            goes when the context goes.
        model: the model in memory, for work in this process.
    """

    path: str = ""
    files: Mapping[str, bytes] | None = field(default=None, repr=False)
    model: ir.Model | None = field(default=None, repr=False)

    def load(self) -> ir.Model:
        """The model, to do with as one likes: names of nodes and annotations are those it had where it was shared.

        Raises:
            ModelError: the file is gone.
        """
        return load(self.path) if self.model is None else copy_model(self.model)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.files is None:
            return SharedModel, (self.path, None, self.model)
        return _arrived, (os.path.basename(self.path), dict(self.files))


def _arrived(name: str, files: Mapping[str, bytes]) -> SharedModel:
    folder = tempfile.mkdtemp(prefix="qdqtool-")
    for file, data in files.items():
        write_whole(os.path.join(folder, file), data)
    found = SharedModel(os.path.join(folder, name))
    weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


class SharedFolder:
    """Where models are written for workers to read: made when the first comes, removed by `remove`.

    It lies where temporary files do (``TMPDIR``)."""

    def __init__(self) -> None:
        self._folder, self._count = "", 0

    def add(
        self, model: ir.Model | str | os.PathLike[str], *, is_seen: Callable[[str], bool] | None = None
    ) -> SharedModel:
        """``model`` as a file; one that is a file already is taken where it lies.

        Args:
            model: the model; not changed.
            is_seen: whether all workers see a file; they are sent the bytes otherwise.
        """
        path = self._write(model) if isinstance(model, ir.Model) else os.path.abspath(model)
        if is_seen is None or is_seen(path):
            return SharedModel(path)
        if not isinstance(model, ir.Model):
            path = self._write(load(path))  # with its data beside it
        folder = os.path.dirname(path)
        return SharedModel(path, {name: read_bytes(os.path.join(folder, name)) for name in sorted(os.listdir(folder))})

    def remove(self) -> None:
        """Remove the folder and all in it."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, model: ir.Model) -> str:
        self._folder = self._folder or tempfile.mkdtemp(prefix="qdqtool-")
        path = os.path.join(self._folder, str(self._count), "model.onnx")
        self._count += 1
        copy = copy_model(model)
        for node in all_nodes(copy):
            node.meta.pop(UNNAMED, None)  # names given at load are kept: selectors and results bear them
        save(copy, path, external="always", threshold=APART, annotations=True)
        return path


def share_in_memory(model: ir.Model | str | os.PathLike[str]) -> SharedModel:
    """``model`` for work in this process."""
    return SharedModel(model=model) if isinstance(model, ir.Model) else SharedModel(os.path.abspath(model))
