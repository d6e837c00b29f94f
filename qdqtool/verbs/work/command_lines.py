"""Verbs as the commands that do the same, quoted for a shell."""

from __future__ import annotations

import enum
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import Any

from qdqtool.options import Field, options_of
from qdqtool.presets.preset import Preset

#: What stands for a value that no text names: a model or arrays in memory.
IN_MEMORY = "IN_MEMORY"


def command_line(name: str, verb: Any) -> str:
    """``qdqtool NAME …`` with the arguments and options of ``verb`` that differ from their defaults.

    What has no text (a model or samples in memory) is written as `IN_MEMORY`.
    """
    fields = options_of(type(verb))
    arguments = [getattr(verb, each.name) for each in fields if each.option.kind == "argument"]
    words = [word for value in arguments if value is not None for word in map(_text, _items(value))]
    for each in fields:
        if each.option.kind == "option":
            words += _words(each, getattr(verb, each.name))
        elif each.option.part is not None and (inner := getattr(verb, each.name)) is not None:
            prefix = f"--{each.option.prefix}"
            for part in options_of(type(inner)):
                flag, *rest = _words(part, getattr(inner, part.name)) or [""]
                words += [prefix + flag.removeprefix("--"), *rest] if flag else []
    return shlex.join(["qdqtool", *name.split(), *words])


def _words(each: Field, value: Any) -> list[str]:
    """How the command is told ``value``; nothing where it is the default."""
    if value is None or (each.default is not MISSING and value == each.default):
        return []
    if each.is_switch and each.option.read is None:
        yes, _, no = each.spellings[0].partition("/")
        return [no if no and not value else yes]
    if isinstance(value, tuple | list) and each.option.read is not None and not each.option.many:
        separator = "x" if (each.option.value or "").startswith("HxW") else ","
        return [each.spelled, separator.join(map(_text, value))]
    return [word for item in _items(value) for word in (each.spelled, _text(item))]


def _items(value: Any) -> Iterator[Any]:
    """The values that are said one by one."""
    if isinstance(value, Mapping):
        yield from (f"{key}={_text(one)}" for key, one in value.items())
    elif isinstance(value, tuple | list):
        yield from value
    else:
        yield value


def _text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Preset):
        return value.name
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    try:
        return json.dumps(value)
    except TypeError:
        return IN_MEMORY
