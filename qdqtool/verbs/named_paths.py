"""All paths of a command, looked at against each other before it does anything: nothing is written twice, over what is read, or,
without ``--overwrite``, over what is there."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError

from qdqtool.io.files.read import holds, refuse_special
from qdqtool.options import Use, options_of

#: In a folder that is read: the file that lists others, and endings of files of data.
MANIFEST, DATA = "manifest.json", (".npy", ".npz", ".raw", ".bin")


@dataclass(frozen=True)
class NamedPath:
    """A path that an option names.

    Args:
        name: the option, as it is spelled.
        path: as it was given.
        use: what becomes of it.
    """

    name: str
    path: str
    use: Use

    @property
    def real(self) -> str:
        """Where it leads."""
        return os.path.realpath(self.path)


def paths_of(options: Any) -> Iterator[NamedPath]:
    """The paths among the values of ``options``, a dataclass of options; what names none, as a model in memory, is left out."""
    for each in options_of(type(options)):
        if each.option.use is not None:
            value = getattr(options, each.name)
            name = each.spelled if each.option.kind == "option" else (each.option.value or each.name).strip("[].")
            is_name = each.option.listed_by is not None or "NAME" in (each.option.value or "")
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, str | os.PathLike) and not (is_name and os.path.isdir(one)):
                    yield NamedPath(name, str(os.fspath(one)), each.option.use)


def refuse_clashes(paths: Iterable[NamedPath], *, overwrite: bool) -> None:
    """Refuse paths that would cost somebody a file.

    Args:
        paths: all of a command.
        overwrite: whether files that exist may be replaced.

    Raises:
        UsageError: what is written has no name of a file, is there already, is read, or is written twice.
        ModelError: what is read is no file and no folder.
    """
    every = list(paths)
    read = [file for each in every if each.use == "read" for file in _candidates(each.path)]
    for file in read:
        refuse_special(file)
    written = [each for each in every if each.use != "read"]
    if written:
        _refuse_written(written, read, overwrite=overwrite)


def _refuse_written(written: Sequence[NamedPath], read: Sequence[str], *, overwrite: bool) -> None:
    """Refuse clashes like `refuse_clashes`, for paths ``written`` while the files ``read`` are read."""
    from qdqtool.io.files.atomic import refuse_existing, refuse_inputs, refuse_name
    from qdqtool.io.files.folders import refuse_inside

    for each in written:
        is_folder = each.use in ("folder", "into")
        refuse_name(each.path, is_folder=is_folder)
        if is_folder and os.path.isfile(each.path):
            raise UsageError("is a file", where=each.path, hint="give the name of a folder")
        if each.use == "folder":
            refuse_inside(each.path, read)
        else:
            refuse_inputs(each.path, read)
        if each.use == "file":
            refuse_existing(each.path, overwrite=overwrite)
        if os.path.isfile(each.path):
            _refuse_parts(each.path, read)
    for one, other in itertools.permutations(written, 2):
        _refuse_pair(one, other)


def _candidates(text: str) -> tuple[str, ...]:
    """The files that the value of an option that is read may name: ``m.onnx``, ``@pipeline.txt``, ``mine.py:function``."""
    named = (text, text.removeprefix("@"), text.rpartition(":")[0])
    return tuple(file for file in dict.fromkeys(named) if file and "\0" not in file and os.path.exists(file))


def _refuse_pair(one: NamedPath, other: NamedPath) -> None:
    """Refuse two paths that are one, and a file where only the other can be."""
    inner, outer, hint = one.real, other.real, "give each its own place"
    if inner == outer:
        raise UsageError(f"is written by {other.name} and by {one.name}", where=one.path, hint=hint)
    if other.use == "into" or not inner.startswith(os.path.join(outer, "")):
        return
    if other.use == "folder":
        raise UsageError(f"lies in the folder that {other.name} writes", where=one.path, hint=hint)
    raise UsageError(f"lies in {other.path}, which is a file that {other.name} writes", where=one.path, hint=hint)


def _refuse_parts(written: str, read: Sequence[str]) -> None:
    """Refuse to replace a file that belongs to what is read: data of a model, a file of a folder."""
    real = os.path.realpath(written)
    for path in read:
        root = os.path.realpath(path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path)))
        if not real.startswith(os.path.join(root, "")):
            continue
        if (_is_listed if os.path.isdir(path) else _is_data)(real, path):
            hint = "write to another file; inputs are never overwritten"
            raise UsageError(f"belongs to {path}, which is read", where=written, hint=hint)


def _is_listed(real: str, folder: str) -> bool:
    manifest, name = os.path.join(folder, MANIFEST), os.path.basename(real)
    is_known = os.path.isfile(manifest) and (name == MANIFEST or holds(manifest, f'"{name}"'.encode(errors="replace")))
    return is_known or real.endswith(DATA)


def _is_data(real: str, model: str) -> bool:
    from qdqtool.io.models.load import data_files

    if model.endswith(DATA):
        return False
    try:
        return real in data_files(model).values()
    except ModelError:
        return False
