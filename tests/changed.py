"""Run the tests that changed files reach: ``python -m tests.changed [--base COMMIT] [--list] [-- options of pytest]``.

Changed files are those that differ from where the branch left ``--base``, and those that git does not know. They reach:

- a test file: itself;
- a module: the test files that import it, directly or through other modules, so those of its layer and of the layers above;
- a pass, command or method, which is loaded by its name: also the test files that contain the name, and for a pass the golden cases;
- a module that no test imports, but such a pass, command or method: the test files of its name;
- a preset, target, chip or other TOML file of the product: the test files that contain its name, or the name of one that extends it;
- a ``conftest.py``: all test files of its folder;
- data, C++, pages and scripts of the docs: the tests of the folder with the same name, ``tests/NAME`` and ``tests/unit/NAME``;
- other data, and sample models: the test files that read it, directly or through modules, by the name of the file or of its folder;
- a page in the root: the tests of the docs;
- what builds and runs everything (`EVERYTHING`): all test files.

The tests of the architecture always run. Imports that only run time decides are not seen: `make test` is what a change must pass."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from qdq_passes.core.registry import PASSES

from qdqtool.calibrate.observer import METHODS
from qdqtool.cli.main import COMMANDS
from tests.architecture.places import ROOT
from tests.extra.changed import LANDED, changed_since

ALWAYS = "tests/architecture"
GOLDEN = "tests/golden/test_golden.py"
#: Tests that read the pages of the root.
PAGES = "tests/unit/docs"
#: Beginnings of the files that say how everything is installed and run.
EVERYTHING = ("pyproject.toml", "Makefile", "conftest.py", ".ci/")
#: Folders of Python files, and the folder that their module names start from.
ROOTS = {"passes": "passes", "qdqtool": "", "tests": "", "sample_models": ""}
#: Folders whose modules a module imports by the names of the files.
FOLDERS = {"passes/qdq_passes/npu/program": "passes/qdq_passes/npu/program/operators.py"}
#: Folders that are named where any of their files is read.
COMMON = {"", "tests", "qdqtool", "passes", "data", "docs"}


class Tree:
    """The Python files of a repository and their imports.

    Args:
        root: folder of the repository.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for folder in ROOTS
            for path in sorted((root / folder).rglob("*.py"))
            if "__pycache__" not in path.parts
        }
        self._modules = {module_of(file): file for file in self.files}
        self._importers: dict[str, set[str]] = defaultdict(set)
        for file, text in self.files.items():
            for name in imported_names(ast.parse(text, file)):
                for imported in self._files_of(name):
                    self._importers[imported].add(file)
            if reader := FOLDERS.get(Path(file).parent.as_posix()):
                self._importers[file].add(reader)

    def _files_of(self, name: str) -> Iterator[str]:
        """Yield the file of the module ``name``, or of the longest known beginning, and those of its packages."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            if file := self._modules.get(".".join(parts[:count])):
                yield file

    def tests(self) -> list[str]:
        """Return the test files."""
        return [file for file in self.files if is_test(file)]

    def importers(self, files: Iterable[str]) -> set[str]:
        """Return ``files`` and all files that import one of them, directly or through others."""
        found, queue = set(files), deque(files)
        while queue:
            new = self._importers[queue.popleft()] - found
            found |= new
            queue.extend(new)
        return found

    def reached(self, changed: Iterable[str], names: Mapping[str, Collection[str]]) -> set[str]:
        """Return the test files that ``changed`` reaches; ``names`` are those of files that are loaded by a name."""
        changed = sorted(set(changed))
        if any(file.startswith(EVERYTHING) for file in changed):
            return set(self.tests())
        return {test for file in changed for test in self._reached(file, names)}

    def _reached(self, file: str, names: Mapping[str, Collection[str]]) -> set[str]:
        path = Path(file)
        importers = self.importers([file] if file in self.files else [])
        found = {each for each in importers if is_test(each)}
        if path.name == "conftest.py":
            found |= self._tests_in(path.parent.as_posix())
        elif path.suffix != ".py" or path.parts[0] not in ROOTS:
            for part in path.parts[:-1]:
                found |= self._tests_in(f"tests/{part}") | self._tests_in(f"tests/unit/{part}")
            if file.startswith("tests/"):
                found |= self._tests_in("/".join(path.parts[:2]))
        if path.parent == Path() and path.suffix in (".md", ".yml"):
            found |= self._tests_in(PAGES)
        if file in names:
            found |= self._tests_of([file], names)
        if not found:
            found = self._tests_of(importers & names.keys(), names)
        if not found and (path.suffix != ".py" or path.parts[0] == "sample_models"):
            readers = (self.importers(files) for files in self._readers(path))
            found = next(filter(None, ({each for each in files if is_test(each)} for files in readers)), set())
        return found

    def _tests_of(self, files: Iterable[str], names: Mapping[str, Collection[str]]) -> set[str]:
        """Return the test files that contain a name of ``files``, which are loaded by their names."""
        if not (loaded_as := {name for file in files for name in names[file]}):
            return set()
        word = re.compile(rf"(?<![\w-])(?:{'|'.join(map(spellings, sorted(loaded_as)))})(?![\w-])", re.IGNORECASE)
        found = {test for test in self.tests() if word.search(self.files[test])}
        return found | {GOLDEN for file in files if file.startswith("passes/") and GOLDEN in self.files}

    def _readers(self, path: Path) -> Iterator[list[str]]:
        """Yield the modules that name a folder of ``path`` and the file, then the folder alone, from the nearest folder on, then the
        file alone: in a string or as a part of a path."""
        named = [file for file, text in self.files.items() if re.search(rf"[\"'/]{re.escape(path.name)}\b", text)]
        for folder in (each.name for each in path.parents if each.name not in COMMON):
            found = [file for file, text in self.files.items() if re.search(rf"[\"'/]{folder}[\"'/]", text)]
            yield [file for file in found if file in named and file != path.as_posix()]
            yield [file for file in found if file != path.as_posix()]
        if path.suffix != ".py":
            yield named

    def _tests_in(self, folder: str) -> set[str]:
        return {test for test in self.tests() if test.startswith(f"{folder}/")}


def is_test(file: str) -> bool:
    """Return whether pytest collects ``file``."""
    return file.startswith("tests/") and Path(file).name.startswith("test_")


def module_of(file: str) -> str:
    """Return the dotted name of a Python file."""
    parts = Path(file).relative_to(ROOTS[Path(file).parts[0]]).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a module imports, in functions too, without what only type checkers read."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    only_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for child in node.orelse if only_for_types else ast.iter_child_nodes(node):  # type: ignore[attr-defined]
        yield from imported_names(child)


def spellings(name: str) -> str:
    """Return the expression of ``name`` however a person writes it: ``8 Gen 2`` is ``8-gen-2`` too."""
    return "[ _-]?".join(re.findall("[A-Za-z0-9]+", name))


def registered_names() -> dict[str, set[str]]:
    """Return the names that load a file, for passes, commands, calibration methods and TOML files, which others extend."""
    entries = {name: entry for registry in (PASSES, COMMANDS, METHODS) for name, entry in registry.entries().items()}
    found = {}
    tables = {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "qdqtool").rglob("*.toml")}
    for path in tables:
        family = {path.stem, *tables[path].get("aliases", ()), *tables[path].get("boards", ())}
        while heirs := {each.stem for each, table in tables.items() if table.get("extends") in family} - family:
            family |= heirs
        found[path.relative_to(ROOT).as_posix()] = family
    for name, entry in entries.items():
        module = entry.origin.replace(".", "/") + ".py"
        found[f"passes/{module}" if module.startswith("qdq_passes/") else module] = {name}
    return found


def main(arguments: list[str]) -> int:
    """Select the tests and run them."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed")
    parser.add_argument("--base", default=LANDED, help=f"commit to compare with (default: {LANDED})")
    parser.add_argument("--list", action="store_true", help="print the test files, and run nothing")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    options = parser.parse_args(arguments)
    changed = changed_since(options.base)
    if changed is None:
        parser.error(f"git does not know {options.base}. Give another commit with --base.")
    selected = sorted(Tree(ROOT).reached(changed, registered_names()))
    print(f"{len(changed)} files changed since {options.base}, {len(selected)} test files reached", flush=True)
    targets = [*(file for file in selected if not file.startswith(ALWAYS)), ALWAYS]
    if options.list:
        print("\n".join(targets))
        return 0
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options.options, *targets], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
