"""Pipelines in files: plain pipeline text, or a TOML edit script of ``[[pass]]`` tables (``name`` and the pass's options)."""

from __future__ import annotations

import os
import tomllib
from typing import Any

from qdq_passes.core.base import Pass
from qdq_passes.core.pipeline_text import make_pass, parse_passes
from qdq_passes.errors import UsageError


def read_pipeline(path: str | os.PathLike[str]) -> list[Pass]:
    """The passes of a pipeline file. Lines that start with ``#`` are comments.

    Raises:
        UsageError: no such file, not UTF-8, or it cannot be read as a pipeline.
    """
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=name) from error
    except UnicodeDecodeError as error:
        raise UsageError("is no text", where=name, hint="-p @FILE takes pipeline text or a TOML edit script") from error
    if "[[pass]]" in text:
        return _from_toml(text, name)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return parse_passes(" ".join(lines).strip())


def _from_toml(text: str, name: str) -> list[Pass]:
    try:
        tables: Any = tomllib.loads(text).get("pass", [])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"is no TOML: {error}", where=name) from error
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise UsageError("pass is no list of tables", where=name, hint="write [[pass]] before each pass")
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
