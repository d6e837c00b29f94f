"""Registries of TOML files: ``targets/acme_npu.toml`` is called ``acme_npu``. The file's name is the name; nothing is imported.

The same places are searched as for passes: the package's own folder, ``<kind>/`` below ``--path`` and ``QDQTOOL_PATH``, and the
entry-point group ``qdqtool.<kind>``, whose objects are paths of TOML files. A name given twice is an error."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.registry import Entry, by_name, entry_point_entries, search_path, unknown_name
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import ModelError, SetupError, UsageError
from qdq_passes.numerics.documents import toml_of

SUFFIX = ".toml"
#: How many files may extend one another.
LONGEST_FAMILY = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class TomlFile:
    """A TOML file that was read. The same content at the same place is the same object.

    Args:
        name: the file's name without ``.toml``.
        origin: where it lies, for messages.
        data: its content.
    """

    name: str
    origin: str
    data: Mapping[str, object]

    @functools.cached_property
    def sha256(self) -> str:
        """Hex digest of the content; comments, blanks and the order of keys do not count."""
        return hashlib.sha256(json.dumps(self.data, sort_keys=True, default=str).encode()).hexdigest()

    def root(self, *keys: str) -> TomlTable:
        """The top level, which may hold ``keys`` only.

        Raises:
            ModelError: it holds another key.
        """
        return TomlTable.of(self.data, where=self.origin, keys=keys)


@dataclass(frozen=True)
class TomlRegistry:
    """TOML files of one kind.

    Args:
        kind: folder name below ``--path`` and tail of the entry-point group: ``"targets"``, ``"presets"``.
        package: our own package that holds the files.
        nested: whether files lie one folder deeper, by vendor: ``chips/acme/k2.toml`` is called ``k2``.
    """

    kind: str
    package: str
    nested: bool = False

    def entries(self) -> dict[str, Entry]:
        """Everything there is, by name, sorted.

        Raises:
            UsageError: two places define the same name.
        """
        return by_name(self.kind, [*self._own(), *self._from_folders(), *self._from_entry_points()])

    def names(self) -> list[str]:
        """Sorted names."""
        return list(self.entries())

    def path(self, name: str) -> Traversable:
        """The file called ``name``.

        Raises:
            UsageError: there is none; the nearest names are given.
        """
        entries = self.entries()
        if name not in entries:
            raise unknown_name(self.kind, name, entries)
        path: Traversable = entries[name].load()
        return path

    def read(self, name_or_path: str | os.PathLike[str]) -> TomlFile:
        """The file of that name or, when it ends in ``.toml``, at that path.

        Raises:
            UsageError: there is no such name or file.
            ModelError: the file cannot be read, or is not TOML.
        """
        text = os.fspath(name_or_path)
        path: Traversable = Path(text) if text.endswith(SUFFIX) else self.path(text)
        if path.is_file():
            return _read(path)
        known = _stem(Path(text).name) in self.names()
        raise UsageError(
            "no such file",
            where=str(path),
            hint=f"the one that is known by name is written {_stem(Path(text).name)}" if known else "check the path",
        )

    def _own(self) -> Iterable[Entry]:
        return self._entries_in(files(self.package))

    def _from_folders(self) -> Iterable[Entry]:
        for folder in search_path():
            if (folder / self.kind).is_dir():
                yield from self._entries_in(folder / self.kind)

    def _entries_in(self, folder: Traversable) -> Iterable[Entry]:
        inner = [each for each in folder.iterdir() if each.is_dir()] if self.nested else []
        for each in (folder, *sorted(inner, key=lambda p: p.name)):
            yield from _entries_of(each.iterdir())

    def _from_entry_points(self) -> Iterable[Entry]:
        for entry in entry_point_entries(self.kind):
            yield Entry(entry.name, entry.origin, partial(_path_of, entry))


def _entries_of(paths: Iterable[Traversable]) -> Iterable[Entry]:
    files = [path for path in paths if path.name.endswith(SUFFIX) and not path.name.startswith(("_", "."))]
    for path in sorted(files, key=lambda p: p.name):
        yield Entry(_stem(path.name), str(path), partial(_itself, path))


def _itself(path: Traversable) -> Traversable:
    return path


def _path_of(entry: Entry) -> Traversable:
    path = entry.load()
    if isinstance(path, str):
        return Path(path)
    if not isinstance(path, Traversable):
        raise SetupError(f"entry point {entry.origin} gives no path of a TOML file", where=entry.name)
    return path


def _stem(file_name: str) -> str:
    return file_name.removesuffix(SUFFIX)


def _read(path: Traversable) -> TomlFile:
    where = str(path)
    if isinstance(path, Path) and path.exists() and not path.is_file():  # opening a named pipe waits for somebody
        raise ModelError("is no regular file", where=where, hint="give the name of a file")
    try:
        return _parsed(_stem(path.name), where, path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror})", where=where, hint="check its permissions") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"is not UTF-8 text (byte {error.start})", where=where, hint="save it as UTF-8") from error
    except ValueError as error:
        raise ModelError(f"is not TOML: {error}", where=where) from error


@functools.lru_cache(maxsize=64)
def _parsed(name: str, origin: str, text: str) -> TomlFile:
    """Parse ``text`` once: commands ask for their preset and target many times."""
    return TomlFile(name=name, origin=origin, data=toml_of(text))
