"""Mutants of Python and C++: each changes one thing, and what is left is a program."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutation.mutants import draw, places

PYTHON = b'''"""Adds 1."""
from pathlib import Path

@decorated(1)
def f(x: int = 2) -> "list[3]":
    """Not 1 < 2."""
    for y in (x, "\xc3\xa9"):
        if not(x < y and y is not None):
            continue
    return x + y
'''
CPP = b"template <int N> struct A {};\nint f(int a) {\n  if (a < 3 && b) return a + N;  // 4 < 5\n  for (;;) continue;\n}\n"


def test_python() -> None:
    found = [(m.text, m.applied(PYTHON)) for m in places("a.py", PYTHON)]
    assert [text for text, _ in found] == ["3", "not ", "", "or", "<=", "is", "pass", "None", "-"]
    for _, changed in found:
        assert changed != PYTHON
        ast.parse(changed)
    assert {m.function for m in places("a.py", PYTHON)} == {4}


def test_cpp() -> None:
    assert [(m.line, m.text) for m in places("a.cc", CPP)] == [(3, "<="), (3, "4"), (3, "||"), (3, "-"), (4, "")]


def test_a_draw_is_one_of_a_function_and_the_same_for_a_seed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(PYTHON)
    (tmp_path / "b.py").write_bytes(PYTHON)
    first = draw(tmp_path, ["a.py", "b.py"], 9, 1)
    assert {m.file for m in first} == {"a.py", "b.py"}
    assert len(first) == 2
    assert first == draw(tmp_path, ["a.py", "b.py"], 9, 1)
