"""Sizes, names and contents of files."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import click
import pytest
from qdq_passes.core.names import camel_case
from qdq_passes.core.registry import PASSES

import qdqtool
from qdqtool.api import VERBS
from qdqtool.calibrate.methods import __name__ as methods_package
from qdqtool.calibrate.observer import METHODS, Observer
from qdqtool.cli.main import COMMANDS
from tests.architecture.places import ROOT, functions_of, python_files, short

#: Folders that are lists, whose entries a second folder would only hide: a preset a file, a schema a command.
LISTS = ("qdqtool/presets", "qdqtool/schemas")
#: Lines of a file at most and at least, files of a folder, lines of code of a function.
LIMIT, LEAST, FOLDER, FUNCTION = 400, 30, 25, 60
#: Files that are a package's door as an `__init__` is.
DOORS = {"qdqtool/passes.py"}


def test_files_are_as_long_as_an_idea() -> None:
    scripts = [file for file in (ROOT / "qdqtool").rglob("*.js") if not file.name.endswith(".min.js")]
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in [*python_files(), *scripts]}
    long = {short(file): count for file, count in lines.items() if count > LIMIT}
    assert not long, f"over {LIMIT} lines: {long}"


def test_files_are_no_splinters() -> None:
    """A shorter file belongs to another; a pass, a verb or a command that is found by its name may be as short as a row of data."""
    lines = {short(file): len(file.read_text(encoding="utf-8").splitlines()) for file in python_files()}
    found = {entry.origin for registry in (PASSES, COMMANDS, METHODS) for entry in registry.entries().values()}
    few = {
        file: count
        for file, count in lines.items()
        if count < LEAST and file.startswith(("passes/", "qdqtool/")) and not file.endswith("/__init__.py")
    }
    rows = {module.replace(".", "/") + ".py" for module in found | set(VERBS.values())}
    assert few.keys() - rows - {f"passes/{row}" for row in rows} - DOORS == set(), f"under {LEAST} lines: {few}"


def test_folders_can_be_taken_in() -> None:
    """A folder that is full holds a second subject. In the product every file counts, data too."""
    held = Counter(short(file.parent) for file in python_files())
    for root in (ROOT / "passes", ROOT / "qdqtool"):
        files = [file for file in root.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        held |= Counter(short(file.parent) for file in files)
    full = {folder: count for folder, count in held.items() if count > FOLDER and folder not in LISTS}
    assert not full, f"over {FOLDER} files: {full}"


def test_functions_fit_on_a_screen() -> None:
    """Lines of code, without docstring, comments and blank lines."""
    long = {
        f"{short(file)}: {node.name}": count
        for file in python_files()
        if not short(file).startswith(("tests/", "sample_models/"))
        for node in functions_of(file)
        if (node.end_lineno or 0) - node.lineno >= FUNCTION and (count := lines_of_code(file, node)) > FUNCTION
    }
    assert not long, f"over {FUNCTION} lines of code: {long}"


def lines_of_code(file: Path, function: ast.FunctionDef) -> int:
    """How many lines of ``function`` are code."""
    first = function.body[0]
    is_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    doc = range(first.lineno, (first.end_lineno or 0) + 1) if is_docstring else range(0)
    lines = file.read_text(encoding="utf-8").splitlines()
    numbers = (n for n in range(function.lineno, (function.end_lineno or 0) + 1) if n not in doc)
    return sum(1 for n in numbers if (text := lines[n - 1].strip()) and not text.startswith("#"))


def test_the_page_of_the_architecture_names_what_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:qdqtool|passes|tests)/[\w/.]+\.(?:py|toml))`", page)
    assert len(named) > 10
    wanted = [name for name in named if "NAME" not in name and "SUBJECT" not in name and "OPERATOR" not in name]
    assert [name for name in wanted if not (ROOT / name).exists()] == []
    for folder in ("qdqtool", "passes/qdq_passes"):
        there = {p.name for p in (ROOT / folder).iterdir() if p.is_dir() and (p / "__init__.py").exists()} - {"_demo"}
        assert {name for name in there if f"`{name}`" not in page} == set(), folder


def test_what_builds_cases_is_said_in_one_place() -> None:
    folder = ROOT / "tests" / "cases"
    told = (folder / "__init__.py").read_text(encoding="utf-8")
    assert {file.stem for file in folder.glob("[!_]*.py") if f"`{file.stem}" not in told} == set()


def test_no_module_bears_the_name_of_a_verb() -> None:
    """Importing it would replace the function. ``calibrate`` is a package on purpose: the verb is `qdqtool.api.calibrate`."""
    modules = {module.name for module in pkgutil.iter_modules(qdqtool.__path__)}
    assert modules & {*VERBS, *qdqtool.__all__} == {"calibrate"}


def test_verbs_stay_functions() -> None:
    """Import every module there is; each verb must still be what it was, and be there a second time."""
    for module in pkgutil.walk_packages(qdqtool.__path__, "qdqtool."):
        if module.name != "qdqtool.npu.libqdqtool_npu":  # a plain library, which pkgutil takes for a module
            importlib.import_module(module.name)
    for name in qdqtool.__all__:
        verb = getattr(qdqtool, name)
        assert callable(verb), f"qdqtool.{name} is {verb!r}"
        assert getattr(qdqtool, name) is verb


def test_one_method_a_file() -> None:
    for name in METHODS.names():
        module = name.replace("-", "_")
        cls = METHODS.load(name)
        if cls.__module__ == f"{methods_package}.{module}":
            assert cls.__name__ == camel_case(name)
            assert issubclass(cls, Observer)
    assert len(METHODS.names()) >= 2


def test_one_command_a_file() -> None:
    for name in COMMANDS.names():
        command = COMMANDS.load(name)
        assert isinstance(command, click.Command), f"cmd_{name.replace('-', '_')}.py defines no click command"
        assert command.name == name
        assert command.help, f"qdqtool {name} has no help"
    origins = {entry.origin for entry in COMMANDS.entries().values()}
    assert COMMANDS.verbs is not None
    by_hand = [module for package in COMMANDS.packages for module in modules(package, "cmd_*.py")]
    assert set(by_hand) <= origins
    beside = {name.replace("-", "_") for name, entry in COMMANDS.entries().items() if entry.origin in by_hand}
    verbs = modules(COMMANDS.verbs, "[!_]*.py")
    assert {module for module in verbs if module.rpartition(".")[2] not in beside} <= origins


def modules(package: str, pattern: str) -> list[str]:
    """Names of the modules of one of our packages whose files match ``pattern``."""
    return [f"{package}.{file.stem}" for file in ROOT.joinpath(*package.split(".")).glob(pattern)]


@pytest.mark.parametrize("folder", ["foreign", "presets", "targets"])
def test_data_files(folder: str) -> None:
    """Names are what a person types; every number's line has a comment near it that says where it comes from."""
    files = sorted((ROOT / "qdqtool" / folder).glob("*.toml"))
    assert files
    for file in files:
        assert re.fullmatch(r"[a-z0-9]+([_-][a-z0-9]+)*", file.stem), f"{short(file)}: lower case words"
        text = file.read_text(encoding="utf-8")
        assert "#" in text, f"{short(file)} has no comment with the source of its numbers"


def text_files() -> list[Path]:
    """What a person reads in the repository."""
    kinds = ("*.py", "*.md", "*.toml", "*.onnxtxt", "*.json", "*.txt", "*.cfg", "*.yml", "*.yaml")
    folders = ("passes", "qdqtool", "tests", "sample_models", "docs", ".ci")
    found = [file for folder in folders for kind in kinds for file in (ROOT / folder).rglob(kind)]
    found += [file for kind in (*kinds, "Makefile") for file in ROOT.glob(kind)]
    return sorted(file for file in found if "__pycache__" not in file.parts)


def test_no_machine_paths() -> None:
    """Nothing depends on, or tells of, the machine it was written on."""
    folders = "|".join(["root", "home", "work", "Users", "tmp/w"])
    pattern = re.compile(rf"(?<![\w.:/>-])/(?:{folders})/[\w.]|[A-Z]:\\\\?Users\\")
    found = [
        f"{short(file)}:{number}: {line.strip()[:100]}"
        for file in text_files()
        if file != Path(__file__)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def checks(function: ast.FunctionDef) -> tuple[set[str], bool]:
    """Names of the functions and methods that ``function`` calls, and whether it has an assert."""
    called, asserts = set(), False
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        asserts = asserts or isinstance(node, ast.Assert)
    return called, asserts


def test_every_test_asserts() -> None:
    """With assert, pytest.raises or numpy.testing, or by calling a helper of the tests that does."""
    functions = [
        (file, node, *checks(node))
        for file in python_files()
        if short(file).startswith("tests/")
        for node in functions_of(file)
    ]
    checking = {"raises", "warns", "fail", "assert_array_equal", "assert_allclose"}
    while True:
        found = {node.name for _, node, called, asserts in functions if asserts or called & checking}
        if found <= checking:
            break
        checking |= found
    silent = [
        f"{short(file)}:{node.lineno}: {node.name}"
        for file, node, _, _ in functions
        if file.name.startswith("test_") and node.name.startswith("test_") and node.name not in checking
    ]
    assert not silent, "these tests check nothing:\n" + "\n".join(silent)
