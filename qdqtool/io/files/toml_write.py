"""TOML text of plain data: the same data gives the same text. Reading is `tomllib`'s."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qdq_passes.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
#: Lists that are longer than so many characters stand on several lines.
WIDTH = 100


def toml_text(document: Mapping[str, Any]) -> str:
    """``document`` as TOML: values first, then a table for each mapping of the top level, and one for each of a list of mappings;
    mappings inside those are inline.

    Raises:
        UsageError: a value is no text, number, boolean, list or mapping, or a number is not finite.
    """
    tables = {key: value for key, value in document.items() if isinstance(value, Mapping) or _is_tables(value)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in document.items() if key not in tables]
    for key, value in tables.items():
        head = f"[{_key(key)}]" if isinstance(value, Mapping) else f"[[{_key(key)}]]"
        for table in [value] if isinstance(value, Mapping) else value:
            if table:
                lines += ["", head, *(f"{_key(name)} = {_value(inner)}" for name, inner in table.items())]
    return "\n".join(lines) + "\n"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) and one for one in value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(k))} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence):
        items = [_value(item) for item in value]
        flat = f"[{', '.join(items)}]"
        return flat if len(flat) <= WIDTH else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    raise UsageError(f"{value!r} cannot be written as TOML", hint="say it with a text, a number, a list or a table")


def _text(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
