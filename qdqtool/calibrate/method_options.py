"""Options of calibration methods: keyword arguments of a class, with the types they are written with."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

Option = str | int | float | bool

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True)
class Keyword:
    """An option that a method takes.

    Args:
        types: types of its value, of bool, int, float and str; empty where the method does not say.
        default: None when it must be given.
    """

    types: tuple[type, ...]
    default: Option | None


def keywords(cls: type) -> dict[str, Keyword]:
    """The keyword arguments of ``cls``, in the order they are written."""
    try:
        hints = typing.get_type_hints(vars(cls).get("__init__", object))
    except NameError:  # a type that is imported for type checkers only
        hints = {}
    found: dict[str, Keyword] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint: Any = hints.get(name)
        choices = typing.get_args(hint) or (() if hint is None else (hint,))
        types = {choice if isinstance(choice, type) else type(choice) for choice in choices}
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        found[name] = Keyword(tuple(t for t in _WORDS if t in types), default)
    return found


def checked(method: str, known: Mapping[str, Keyword], options: Mapping[str, Option]) -> dict[str, Option]:
    """``options`` in the types that the method takes; a text is read as a number or a truth where it takes one.

    Raises:
        UsageError: an option that it does not take, a value of another type, or one that must be given is missing.
    """
    where, listed = f"method {method!r}", _listed(known)
    for name in options:
        if name not in known:
            raise UsageError(f"it takes no option {name!r}", where=where, hint=listed)
    for name, keyword in known.items():
        if keyword.default is None and name not in options:
            raise UsageError(f"it needs the option {name!r}", where=where, hint=listed)
    found: dict[str, Option] = {}
    for name, value in options.items():
        types = known[name].types
        fitting = _fitting(value, types) if types else value
        if fitting is None:
            wanted = " or ".join(_WORDS[t] for t in types)
            raise UsageError(f"option {name!r} is {wanted}, not {value!r}", where=where, hint=listed)
        found[name] = fitting
    return found


def _listed(known: Mapping[str, Keyword]) -> str:
    texts = [
        name if keyword.default is None else f"{name} (default {_text(keyword.default)})"
        for name, keyword in known.items()
    ]
    return f"its options are {', '.join(texts)}" if texts else "it has no options"


def _text(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _fitting(value: Option, types: tuple[type, ...]) -> Option | None:
    """``value`` as one of ``types``; None when it is none of them."""
    if type(value) in types:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and float in types:
        return float(value)
    if not isinstance(value, str):
        return None
    if bool in types and value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        if kind in types:
            try:
                return kind(value)
            except ValueError:
                continue
    return None
