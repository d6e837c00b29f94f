"""Pipelines in files: plain pipeline text, or a TOML edit script of ``[[pass]]`` tables (``name`` and the pass's options)."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any

from qdq_passes.core.base import Pass
from qdq_passes.core.pipeline_text import make_pass, parse_passes
from qdq_passes.errors import UsageError

from qdqtool.io.read import read_text

#: A table of an edit script; pipeline text has none.
_TABLE = re.compile(r"^\s*\[\[?\s*pass\s*\]", re.MULTILINE)


def read_pipeline(path: str | os.PathLike[str]) -> list[Pass]:
    """The passes of a pipeline file. Lines that start with ``#`` are comments.

    Raises:
        ModelError: no such file, empty, or not UTF-8.
        UsageError: it cannot be read as a pipeline.
    """
    name = os.fspath(path)
    text = read_text(name)
    if name.endswith(".toml") or _TABLE.search(text):
        return _from_toml(text, name)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    try:
        return parse_passes(" ".join(lines).strip())
    except UsageError as error:
        error.where = error.where or name
        raise


def _from_toml(text: str, name: str) -> list[Pass]:
    try:
        tables: Any = tomllib.loads(text).get("pass", [])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"is no TOML: {error}", where=name) from error
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise UsageError("pass is no list of tables", where=name, hint="write [[pass]] before each pass")
    if not tables:
        raise UsageError("holds no [[pass]]", where=name, hint='write [[pass]] and name = "fold-batch-norm"')
    passes = []
    for index, table in enumerate(tables, 1):
        options = dict(table)
        pass_name = options.pop("name", None)
        if not isinstance(pass_name, str):
            raise UsageError(f"[[pass]] number {index} has no name", where=name, hint='write name = "fold-batch-norm"')
        try:
            passes.append(make_pass(pass_name, options))
        except UsageError as error:
            raise UsageError(f"[[pass]] number {index}: {error.message}", where=name, hint=error.hint) from error
    return passes
