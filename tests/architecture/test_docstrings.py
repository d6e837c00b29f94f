"""What docstrings and comments of the product name in single backticks is there under that name."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import CodeType

from tests.architecture.places import ROOT, python_files, short

#: `name`, `module.name`; code in double backticks may be of others.
NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)*)`(?!`)")
PRODUCT = ("passes/qdq_passes/", "qdqtool/")


@cache
def files() -> list[Path]:
    """The Python files of the product."""
    return [file for file in python_files() if short(file).startswith(PRODUCT)]


@cache
def words_of(file: Path) -> frozenset[str]:
    """Words of the code in ``file``: names, and what stands in its texts, but for what holds backticks itself, as docstrings do."""
    found: set[str] = set()
    todo: list[object] = [compile(file.read_text(encoding="utf-8"), str(file), "exec", dont_inherit=True)]
    while todo:
        each = todo.pop()
        if isinstance(each, CodeType):
            todo += (
                *each.co_names,
                *each.co_varnames,
                *each.co_cellvars,
                *each.co_freevars,
                each.co_name,
                *each.co_consts,
            )
        elif isinstance(each, tuple | frozenset):
            todo += each
        elif isinstance(each, str) and "`" not in each:
            found.update(re.findall(r"\w+", each))
    return frozenset(found)


@cache
def modules() -> dict[tuple[str, ...], list[Path]]:
    """The files by the ends of their dotted names."""
    found: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for file in files():
        parts = Path(short(file)).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for start in range(len(parts)):
            found[parts[start:]].append(file)
    return found


@cache
def known() -> frozenset[str]:
    """All words of the product's code, and of the names of its files."""
    names = (file.name for folder in PRODUCT for file in (ROOT / folder).rglob("*"))
    return frozenset().union(*map(words_of, files()), *(re.findall(r"\w+", name) for name in names))


def is_there(name: str) -> bool:
    """Whether ``name`` is a module, what stands in that module, or a word of the code at all."""
    parts = tuple(name.split("."))
    for count in range(len(parts), 0, -1):
        if found := modules().get(parts[:count]):
            return any(words_of(file).issuperset(parts[count:]) for file in found)
    return known().issuperset(parts)


def test_names_in_docstrings_are_there() -> None:
    gone = [
        f"{short(file)}:{number}: {name}"
        for file in files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for name in NAME.findall(line)
        if not is_there(name)
    ]
    assert not gone, "\n".join(gone)


def test_a_name_that_is_gone_is_found() -> None:
    """As `npu.reference.operators` was, whose words are all there."""
    assert is_there("npu.reference.run")
    assert is_there("qdqtool.targets.target.Target")
    assert not is_there("npu.reference.operators")
    assert not is_there("surgeon_facts")
