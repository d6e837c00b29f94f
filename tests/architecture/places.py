"""Where things are in the repository."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("passes", "qdqtool", "tests", "sample_models")


@cache
def python_files() -> list[Path]:
    """Our Python files, sorted."""
    return sorted(file for folder in CODE for file in (ROOT / folder).rglob("*.py") if "__pycache__" not in file.parts)


@cache
def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def functions_of(file: Path) -> list[ast.FunctionDef]:
    """The functions and methods of a file, those inside of others too."""
    return [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.FunctionDef)]


def short(file: Path) -> str:
    """Path relative to the repository."""
    return file.relative_to(ROOT).as_posix()
