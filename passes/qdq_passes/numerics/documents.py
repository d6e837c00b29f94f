"""JSON and TOML that a stranger may have written, as plain values, one reader each; and these values as declared types.

Whatever is wrong is a ValueError of one line: the border that knows the file makes an error of ours of it."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import re
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

#: Nesting that no file of ours comes near; for a key of so many parts `tomllib` takes quadratic time.
DEEPEST = 64
#: Characters of a Python literal.
LONGEST_LITERAL = 1 << 16
_SHA256 = re.compile("[0-9a-f]{64}")
_DEEP_KEY = re.compile(r"""(?<![\w."'-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""")
#: Half of a pair of surrogates, as it is or as JSON writes it: no file can hold it, as text.
_HALF = re.compile("\\\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}


def json_of(text: str | bytes) -> Any:
    """The JSON document in ``text``. A whole number that no 64 bits hold becomes a float.

    Raises:
        ValueError: it is none: NaN, Infinity or a number beyond float64, a key twice, too deep, or no Unicode.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        found = json.loads(text, parse_constant=_refuse, parse_int=_whole, parse_float=_finite, object_pairs_hook=_once)
        look_through(found)
        if _HALF.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeError:
        raise ValueError("a text is no Unicode") from None
    return found


def toml_of(text: str) -> dict[str, Any]:
    """The TOML document in ``text``.

    Raises:
        ValueError: it is none, is nested too deeply, or has a whole number that no 64 bits hold.
    """
    try:
        if _DEEP_KEY.search(text):
            raise RecursionError
        found = tomllib.loads(text)
        look_through(found)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except ValueError:
        raise ValueError("a whole number is beyond 64 bits") from None
    return found


def literal_of(text: str) -> Any:
    """The Python literal in ``text``: numbers, texts, lists and so on, as exporters write into metadata.

    Raises:
        ValueError: it is none, or too long.
    """
    if len(text) > LONGEST_LITERAL:
        raise ValueError(f"a literal of {len(text)} characters")
    try:
        return ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"is no Python literal: {error}") from error


def sha256_in(value: object, at: str) -> str:
    """``value``, the hex SHA-256 that stands ``at`` a place of a document; "" of nothing.

    Raises:
        ValueError: it is something else.
    """
    if value in (None, ""):
        return ""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{at} is {str(value)[:40]!r}, expected 64 hex digits")
    return value


def typed(wanted: type[T], value: object, at: str = "", *, strict: bool = False) -> T:
    """``value``, plain as JSON has it, as a ``wanted``: a dataclass of an object, a tuple of a list, numbers, texts and so on.

    Args:
        wanted: the type; fields of dataclasses are read by theirs; one with a default may be missing, other keys are passed over.
        value: what was read.
        at: where it stands in the document, for the message.
        strict: refuse other keys.

    Raises:
        ValueError: it is something else; the message says where: ``models[0].parts is text, expected a list``.
    """
    return typing.cast(T, _as(wanted, value, at, strict))


def _as(wanted: Any, value: Any, at: str, strict: bool) -> Any:
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (Any, object) or type(value) is wanted:
        return value
    if wanted is float and type(value) is int:
        return float(value)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        *kinds, last = sorted(set(inner) - {type(None)}, key=lambda kind: (kind is not type(value), inner.index(kind)))
        for kind in kinds:
            with suppress(ValueError):
                return _as(kind, value, at, strict)
        return _as(last, value, at, strict)
    if origin is typing.Literal and isinstance(value, str | int) and value in inner:
        return value
    if origin in (tuple, Sequence) and isinstance(value, list | tuple):
        return tuple(_as(inner[0], item, f"{at}[{place}]", strict) for place, item in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _as(inner[1], item, f"{at}.{key}", strict) for key, item in value.items()}
    if dataclasses.is_dataclass(wanted) and isinstance(value, dict):
        return wanted(**_fields(typing.cast(type, wanted), value, at, strict))  # type: ignore[operator]
    raise ValueError(f"{at.lstrip('.') or 'it'} is {_kind(type(value))}, expected {_wanted(wanted)}")


def _fields(cls: Any, value: dict[str, Any], at: str, strict: bool) -> dict[str, Any]:
    hints, fields = typing.get_type_hints(cls), {field.name: field for field in dataclasses.fields(cls)}
    for name, field in fields.items():
        if name not in value and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{f'{at}.{name}'.lstrip('.')} is missing")
    if strict and (other := next((key for key in value if key not in fields), None)) is not None:
        raise ValueError(f"{f'{at}.{other}'.lstrip('.')} is not known")
    return {name: _as(hints[name], value[name], f"{at}.{name}", strict) for name in fields if name in value}


def _kind(cls: type) -> str:
    return _KINDS.get(cls, "a list" if cls is list else "an object")


def _wanted(wanted: Any) -> str:
    if typing.get_origin(wanted) is typing.Literal:
        return " or ".join(map(str, typing.get_args(wanted)))
    return _KINDS.get(wanted, "a list" if typing.get_origin(wanted) in (tuple, Sequence) else "an object")


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _whole(text: str) -> int | float:
    small = len(text) < 19 or (len(text) < 21 and -(2**63) <= int(text) < 2**64)
    return int(text) if small else _finite(text)


def _finite(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refuse(f"{text[:20]}…")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def look_through(document: Any) -> None:
    """Refuse what nests too deeply (RecursionError), and whole numbers that no 64 bits hold (ValueError)."""
    level = [document]
    for _ in range(DEEPEST):
        if any(isinstance(item, int) and not -(2**63) <= item < 2**64 for item in level):
            raise ValueError("a whole number is beyond 64 bits")
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return
    raise RecursionError
