"""Values of JSON for options of verbs: what a page says, as the verb's class takes it."""

from __future__ import annotations

from typing import Any, get_args

from qdq_passes.errors import UsageError

from qdqtool.options import Field


def value_of(each: Field, value: Any) -> Any:
    """``value`` of JSON as the option takes it.

    Args:
        each: the option.
        value: of the request.

    Raises:
        UsageError: it is no such value.
    """
    if each.is_many:
        return tuple(_one(each, item) for item in (value if isinstance(value, list) else [value]))
    return None if value is None else _one(each, value)


def _one(each: Field, value: Any) -> Any:
    if each.choices:
        if value in each.choices:
            return value
    elif each.is_switch:
        if isinstance(value, bool):
            return value
    else:
        types = {inner for kind in each.types for inner in (get_args(kind) or (kind,))}
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and float in types:
            return float(value)
        if is_number and int in types and value == int(value):
            return int(value)
        if isinstance(value, str) and str in types:
            return value
    raise UsageError(f"{each.spelled} does not take {value!r}")
