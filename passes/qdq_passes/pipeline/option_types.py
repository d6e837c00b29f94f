"""Option values of passes: between plain values (text, TOML, JSON) and the types of the dataclass fields.

Supported field types: bool, int, float, str, Enum, Literal, `Selector`, ``tuple[T, ...]``, ``T | None``, and any other type
beside `Named` in a union (such a value cannot be written as text, only named)."""

from __future__ import annotations

import enum
import json
import math
import re
import types
import typing
from typing import Any

from qdq_passes.core.base import Named, Pass
from qdq_passes.errors import UsageError
from qdq_passes.select.selectors import Selector

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/*\-]*")
#: What `_hints` found.
_resolved: dict[type, dict[str, Any]] = {}


def from_text(cls: type[Pass], attribute: str, raw: Any) -> Any:
    """``raw`` (bool, int, float, str, list or `Named`) as a value of field ``attribute`` of ``cls``.

    Raises:
        UsageError: it is no value of that type.
    """
    wanted = _hints(cls)[attribute]
    if isinstance(raw, str) and raw.startswith("@") and _takes_named(wanted):
        raw = Named(raw[1:])
    try:
        return _convert(wanted, raw)
    except (TypeError, ValueError):
        shown = json.dumps(raw, default=str) if not isinstance(raw, Named) else str(raw)
        raise UsageError(
            f"{cls.name()}: {shown} is no value for {attribute.replace('_', '-')}", hint=f"expected {describe(wanted)}"
        ) from None


def to_text(value: Any, attribute: str) -> str:
    """The text of an option value; inverse of parsing. A value that has no text is written as the named input ``@attribute``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, enum.Enum):
        return to_text(value.value, attribute)
    if isinstance(value, str):
        reads_as_other = value.lower() in ("true", "false", "none", "inf", "nan", "infinity") or not _BARE.fullmatch(
            value
        )
        return json.dumps(value) if reads_as_other else value
    if isinstance(value, Selector):
        texts = [json.dumps(text) for text in value.texts]
        return texts[0] if len(texts) == 1 else f"[{','.join(texts)}]"
    if isinstance(value, tuple | list):
        return f"[{','.join(to_text(item, attribute) for item in value)}]"
    if isinstance(value, Named):
        return str(value)
    if value is None:
        return "none"
    return f"@{attribute.replace('_', '-')}"


def plain_value(value: Any, attribute: str) -> Any:
    """An option value as text, number, boolean or list of these, which `from_text` reads back; for edit scripts."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Selector):
        return list(value.texts)
    if isinstance(value, tuple | list):
        return [plain_value(item, attribute) for item in value]
    return value if isinstance(value, bool | int | float | str) else to_text(value, attribute)


def describe(wanted: Any) -> str:
    """A field type in words, for messages and `qdqtool list passes`."""
    if wanted is Selector:
        return "a selector"
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return " | ".join(str(member.value) for member in wanted)
    if typing.get_origin(wanted) is typing.Literal:
        return " | ".join(str(a) for a in typing.get_args(wanted))
    if typing.get_origin(wanted) is tuple:
        return f"[{describe(typing.get_args(wanted)[0])}, …]"
    if _is_union(wanted):
        if _takes_named(wanted):
            return "@name"
        return " | ".join(describe(a) for a in typing.get_args(wanted))
    if wanted is type(None):
        return "none"
    return {bool: "true | false", int: "an integer", float: "a number", str: "text"}.get(wanted, str(wanted))


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _resolved:
        _resolved[cls] = typing.get_type_hints(cls)
    return _resolved[cls]


def field_type(cls: type[Pass], attribute: str) -> Any:
    """The resolved type of a field."""
    return _hints(cls)[attribute]


def _is_union(wanted: Any) -> bool:
    return typing.get_origin(wanted) in (typing.Union, types.UnionType)


def _takes_named(wanted: Any) -> bool:
    return wanted is Named or (_is_union(wanted) and Named in typing.get_args(wanted))


def _convert(wanted: Any, raw: Any) -> Any:
    if isinstance(raw, Named):
        if _takes_named(wanted):
            return raw
        raise TypeError
    if wanted is Selector:
        return Selector.of(*([raw] if isinstance(raw, str) else _strings(raw)))
    if typing.get_origin(wanted) is tuple:
        item = typing.get_args(wanted)[0]
        return tuple(_convert(item, r) for r in (raw if isinstance(raw, list | tuple) else [raw]))
    if typing.get_origin(wanted) is typing.Literal:
        return _choose(typing.get_args(wanted), raw)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return wanted(_choose([m.value for m in wanted], raw))
    if _is_union(wanted):
        return _convert_union([a for a in typing.get_args(wanted) if a is not Named], raw)
    if wanted is bool or wanted is int:
        if type(raw) is not wanted:
            raise TypeError
        return raw
    if wanted is float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
            raise TypeError
        return float(raw)
    if wanted is str:
        if isinstance(raw, bool | list):
            raise TypeError
        return raw if isinstance(raw, str) else str(raw)
    raise TypeError


def _convert_union(members: list[Any], raw: Any) -> Any:
    if raw is None or (raw == "none" and type(None) in members):
        return None
    for member in members:
        if member is not type(None):
            try:
                return _convert(member, raw)
            except (TypeError, ValueError):
                continue
    raise TypeError


def _choose(choices: typing.Iterable[Any], raw: Any) -> Any:
    for choice in choices:
        if choice == raw and type(choice) is type(raw):
            return choice
    raise ValueError


def _strings(raw: Any) -> list[str]:
    if not isinstance(raw, list | tuple) or not all(isinstance(r, str) for r in raw):
        raise TypeError
    return list(raw)
