"""Small changes of the product: where they can be made, and what the file reads afterwards."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Of a comparison, an operation and a connective: what stands in its place.
SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in",
    "not in": "in", "+": "-", "-": "+", "*": "+", "//": "*", "/": "*", "<<": ">>", ">>": "<<", "and": "or", "or": "and",
}  # fmt: skip
#: The same of C++; operators with blanks on both sides are no brackets of templates.
IN_CPP = re.compile(r" (<=|>=|==|!=|<|>|\+|-|\*|<<|>>|&&|\|\|) |\b(true|false|[0-9]+)\b|\b(continue|break);")
_CPP = {**SWAPPED, "&&": "||", "||": "&&", "true": "false", "false": "true"}


@dataclass(frozen=True)
class Mutant:
    """A change of one place.

    Args:
        file: relative to the repository.
        line: from 1.
        start, end: of what is replaced, in the bytes of the file.
        text: what replaces it.
        function: first line of the function that it is in, None outside of all.
    """

    file: str
    line: int
    start: int
    end: int
    text: str
    function: int | None

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def describe(self, source: bytes) -> str:
        """What it changes, in one line."""
        old = " ".join(source[self.start : self.end].decode().split())
        return f"{self.file}:{self.line}: `{old if len(old) < 60 else old[:60] + '…'}` → `{self.text}`"


def draw(root: Path, files: list[str], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants: files by how many places they have, at most one of a function."""
    generator = random.Random(seed)
    everything = [mutant for file in files for mutant in places(file, (root / file).read_bytes())]
    generator.shuffle(everything)
    found: dict[tuple[str, int | None], Mutant] = {}
    for mutant in everything:
        found.setdefault((mutant.file, mutant.function or -mutant.line), mutant)
    return list(found.values())[:count]


def places(file: str, source: bytes) -> Iterator[Mutant]:
    """Every change that can be made to a file of Python or C++."""
    yield from _of_python(file, source) if file.endswith(".py") else _of_cpp(file, source)


def _of_cpp(file: str, source: bytes) -> Iterator[Mutant]:
    at = 0
    for number, raw in enumerate(source.splitlines(keepends=True), 1):
        line = raw.decode()
        code = re.sub(r'"(\\.|[^"\\])*"', lambda match: " " * len(match[0]), line.partition("//")[0])
        for match in IN_CPP.finditer(code) if line.startswith(" ") and line.isascii() else ():
            which = next(group for group in (1, 2, 3) if match[group])
            old = match[which]
            new = "" if which == 3 else _CPP[old] if old in _CPP else str(int(old) + 1)
            yield Mutant(file, number, at + match.start(which), at + match.end(which), new, None)
        at += len(raw)


def _of_python(file: str, source: bytes) -> Iterator[Mutant]:
    starts = [0]
    for raw in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(raw))

    def mutants(node: ast.AST, function: int | None) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef):
            function = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        for begin, end, text in _changes(node):
            at, until = (starts[line - 1] + column for line, column in (begin, end))
            yield from _mutant(file, source, (at, until), text, function, begin[0])
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and not _is_text(child):
                        yield from mutants(child, function)

    yield from mutants(ast.parse(source), None)


def _mutant(
    file: str, source: bytes, span: tuple[int, int], text: str | None, function: int | None, line: int
) -> Iterator[Mutant]:
    """For operators, None as ``text``, the span is what stands between two operands."""
    at, until = span
    if text is None:
        match = re.fullmatch(rb"([\s\\)]*)(is not|not in|[-+*/<>=!]+|\w+)([\s\\(]*)", source[at:until])
        if match is None or (old := match[2].decode()) not in SWAPPED:
            return
        at, until, text = at + match.start(2), at + match.end(2), SWAPPED[old]
    yield Mutant(file, line + source[span[0] : at].count(b"\n"), at, until, text, function)


Place = tuple[int, int]


def _changes(node: ast.AST) -> Iterator[tuple[Place, Place, str | None]]:
    """From where to where, and what comes there; None for the operator between two operands."""
    if isinstance(node, ast.Compare):
        yield _end(node.left), _start(node.comparators[0]), None
    elif isinstance(node, ast.BinOp):
        yield _end(node.left), _start(node.right), None
    elif isinstance(node, ast.BoolOp):
        yield _end(node.values[0]), _start(node.values[1]), None
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _start(node), (node.lineno, node.col_offset + len("not")), ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _start(node), _end(node), str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield _start(node), _end(node), str(node.value + 1)
    elif isinstance(node, ast.Continue | ast.Break):
        yield _start(node), _end(node), "pass"
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield _start(node.value), _end(node.value), "None"
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare):
        yield _start(node.test), _start(node.test), "not "


def _start(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> Place:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _is_text(node: ast.AST) -> bool:
    """Docstrings, and messages in f-strings."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
