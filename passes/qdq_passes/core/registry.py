"""Registries that are folders: what exists is what lies there, a module is imported when it is used.

Four places are searched, the later ones shadow nothing (a name given twice is an error): the package's own folder, the
folders of ``--path`` / ``QDQTOOL_PATH`` (each with ``passes/ presets/ targets/ methods/ commands/``), and entry-point groups
``qdqtool.<kind>`` of installed packages. What ``--help`` does not need is imported inside functions."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import camel_case
from qdq_passes.errors import SetupError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

_added: list[Path] = []


def add_path(folder: str | os.PathLike[str]) -> None:
    """Search ``folder`` (with ``passes/ presets/ targets/ methods/ commands/`` in it) as well.

    Raises:
        UsageError: there is no such folder.
    """
    from pathlib import Path

    path = Path(folder)
    if not path.is_dir():
        raise UsageError("no such folder", where=str(path), hint="--path takes a folder holding passes/, presets/, …")
    if path not in _added:
        _added.append(path)


def search_path() -> list[Path]:
    """Folders of `add_path`, then those of the environment variable ``QDQTOOL_PATH``, in order."""
    texts = [p for p in os.environ.get("QDQTOOL_PATH", "").split(os.pathsep) if p]
    if not texts:
        return list(_added)
    from pathlib import Path

    from_environment = [Path(p) for p in texts]
    return [*_added, *(p for p in from_environment if p not in _added)]


@dataclass(frozen=True)
class Entry:
    """One registered thing.

    Args:
        name: as written on the command line.
        origin: where it comes from: a module, a file or ``package:object``.
        load: imports or reads it.
        file: path of its source, None for entry points and rows of a table.
    """

    name: str
    origin: str
    load: Callable[[], Any]
    file: str | None = None

    def first_doc_line(self) -> str:
        """The first line of the file's docstring, read without importing it; empty when there is none."""
        if self.file is None:
            return ""
        with open(self.file, encoding="utf-8") as file:
            first = file.readline().strip()
        return first.strip('"').strip() if first.startswith('"""') else ""


@dataclass(frozen=True)
class FolderRegistry:
    """Python classes, one a file: ``fuse_gelu.py`` holds ``FuseGelu`` and is called ``fuse-gelu``; or several, in a table.

    A file with a line ``PASSES = {`` holds one: a dictionary from names, written as literals, to classes. Listing reads the names
    from its text, so that only what is used is imported.

    Args:
        kind: folder name below ``--path`` and tail of the entry-point group: ``"passes"``, ``"methods"``, ``"commands"``.
        packages: our own packages that hold the files.
        prefix: file name prefix that is not part of the name (``cmd_``).
        attribute: object to take from the module instead of the class named like the file.
        table: name of the dictionary of a file that holds a table; None where there are no tables.
    """

    kind: str
    packages: tuple[str, ...]
    prefix: str = ""
    attribute: str | None = None
    table: str | None = None

    def entries(self) -> dict[str, Entry]:
        """Everything there is, by name, sorted.

        Raises:
            UsageError: two places define the same name.
        """
        return by_name(self.kind, [*own_entries(self), *self._from_folders(), *entry_point_entries(self.kind)])

    def names(self) -> list[str]:
        """Sorted names."""
        return list(self.entries())

    def load(self, name: str, *, among: Mapping[str, Entry] | None = None) -> Any:
        """The class (or ``attribute``) called ``name``.

        Args:
            name: as written on the command line.
            among: `entries`, by whoever loads many: looking through the folders takes a millisecond.

        Raises:
            UsageError: there is none; the nearest names are given.
        """
        entries = self.entries() if among is None else among
        if name not in entries:
            raise unknown_name(self.kind, name, entries)
        return entries[name].load()

    def _own(self) -> Iterable[Entry]:
        for package in self.packages:
            for name, source, rows in _modules(package, self.table):
                if name.startswith(self.prefix) and not name.startswith("_"):
                    yield from self._entries(name, f"{package}.{name}", None, source, rows)

    def _from_folders(self) -> Iterable[Entry]:
        for folder in search_path():
            for file in sorted((folder / self.kind).glob("*.py")):
                if not file.name.startswith("_"):
                    yield from self._entries(file.stem, str(file), file, str(file), _rows(str(file), self.table))

    def _entries(
        self, stem: str, origin: str, file: Path | None, source: str | None, rows: tuple[str, ...] | None
    ) -> Iterable[Entry]:
        name = stem.removeprefix(self.prefix)
        attribute, table = self.attribute or camel_case(name), self.table

        def module() -> Any:
            return importlib.import_module(origin) if file is None else import_file(file)

        def load() -> Any:
            try:
                return getattr(module(), attribute)
            except AttributeError:
                raise UsageError(
                    f"defines no {attribute}", where=origin, hint=f"the name rule is {stem}.py = {attribute}"
                ) from None

        if table is None or rows is None:
            return [Entry(name.replace("_", "-"), origin, load, source)]

        def row_loader(row: str) -> Callable[[], Any]:
            return lambda: getattr(module(), table)[row]

        return [Entry(row, origin, row_loader(row)) for row in rows]


@cache
def own_entries(registry: FolderRegistry) -> tuple[Entry, ...]:
    """What lies in our own packages, which do not change while we run."""
    return tuple(registry._own())


@cache
def _modules(package: str, table: str | None) -> tuple[tuple[str, str | None, tuple[str, ...] | None], ...]:
    """(name, path of its source, `_rows`) of the modules of one of our own packages, which do not change while we run."""
    from importlib.util import find_spec

    found, spec = [], find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"no package {package}", name=package)
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        if not module.ispkg:
            folder = getattr(module.module_finder, "path", None)
            source = os.path.join(folder, f"{module.name}.py") if folder else None
            found.append((module.name, source, _rows(source, table)))
    return tuple(found)


def _rows(source: str | None, table: str | None) -> tuple[str, ...] | None:
    """The names in the dictionary ``table`` of a Python file, read from its text; None where it has no such dictionary."""
    text = b"" if source is None or table is None else _read(source)
    if source is None or f"\n{table} = {{".encode() not in text:
        return None
    import ast

    try:
        statements = ast.parse(text, source).body
    except SyntaxError:  # told by whoever loads it
        return None
    for node in statements:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and ast.unparse(node.targets[0]) == table:
            return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    return None


def by_name(kind: str, entries: Iterable[Entry]) -> dict[str, Entry]:
    """``entries`` by name, sorted.

    Raises:
        UsageError: two places define the same name.
    """
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in found:
            raise UsageError(
                f"{kind} {entry.name!r} is defined twice: {found[entry.name].origin} and {entry.origin}",
                hint="rename one of the two files",
            )
        found[entry.name] = entry
    return dict(sorted(found.items()))


def import_file(file: Path) -> Any:
    """Import a Python file outside of any package, once per path and content location."""
    import hashlib
    import importlib.util

    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    module_name = f"_qdqtool_path_{digest}_{file.stem}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise UsageError("is not a Python file", where=str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise UsageError(f"cannot be imported: {type(error).__name__}: {error}", where=str(file)) from error
    return module


def entry_point_entries(kind: str) -> list[Entry]:
    """Entries of the entry-point group ``qdqtool.<kind>``.

    ``importlib.metadata`` costs as much as click itself, so it is imported only when some installed distribution
    mentions the group at all.
    """
    group = f"qdqtool.{kind}"
    if not any(_mentions(folder, group) for folder in sys.path):
        return []
    from importlib.metadata import entry_points

    return [Entry(point.name, point.value, _entry_point_loader(point)) for point in entry_points(group=group)]


def _entry_point_loader(point: Any) -> Callable[[], Any]:
    def load() -> Any:
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise SetupError(f"entry point {point.value} cannot be loaded: {error}", where=point.name) from error

    return load


def _mentions(folder: str, group: str) -> bool:
    try:
        return f"[{group}]".encode() in _entry_points_in(folder or ".", os.stat(folder or ".").st_mtime_ns)
    except OSError:
        return False


@cache
def _entry_points_in(folder: str, changed: int) -> bytes:
    """The entry points of all distributions in ``folder``, which was ``changed`` then."""
    names = [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]
    return b"\n".join(_read(os.path.join(folder, name, "entry_points.txt")) for name in names)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with the nearest ones."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"see `qdqtool list {kind}`"
    singular = {"passes": "pass"}.get(kind, kind.removesuffix("s"))
    return UsageError(f"unknown {singular} {name!r}", hint=hint)


PASSES = FolderRegistry(
    "passes",
    (
        "qdq_passes.clean",
        "qdq_passes.fuse",
        "qdq_passes.legalize",
        "qdq_passes.encode",
        "qdq_passes.qdq",
        "qdq_passes.integers",
        "qdq_passes.precision",
        "qdq_passes.attention",
        "qdq_passes.decoder",
        "qdq_passes.refine",
        "qdq_passes.recover",
        "qdq_passes.npu",
    ),
    table="PASSES",
)
