"""The JSON form of `Record` as a JSON schema (draft 2020-12), made from its dataclasses: their fields, types and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from qdq_passes.numerics.encoding import Encoding

from qdqtool.record.record import VERSION, Histogram, Moved, NodeRecord, Record, TensorRecord, Whole

#: The dataclasses, as they stand in each other.
PARTS = (Record, Whole, TensorRecord, Moved, Histogram, NodeRecord)
_PLAIN: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"}, Any: {},
}  # fmt: skip
#: What `Encoding.to_json` writes.
ENCODING: Mapping[str, Any] = {
    "description": inspect.getdoc(Encoding).partition("\n")[0],  # type: ignore[union-attr]
    "type": "object",
    "properties": {
        "dtype": {"type": "string", "description": "Storage type: `int8`, `uint8`, `int4`, …"},
        "scale": {
            "$ref": "#/$defs/Numbers",
            "description": "Real step per integer; lists are nested as scales are shaped.",
        },
        "zero_point": {"$ref": "#/$defs/Numbers", "description": "The integer that stands for 0.0, as many as scales."},
        "axis": {"type": ["integer", "null"], "description": "That scales run along; null per tensor."},
        "block_size": {"type": "integer", "description": "Elements of the axis per scale, 0 unless blocked."},
    },
    "required": ["dtype", "scale", "zero_point"],
}
NUMBERS: Mapping[str, Any] = {"anyOf": [{"type": "number"}, {"type": "array", "items": {"$ref": "#/$defs/Numbers"}}]}


def record_schema() -> dict[str, Any]:
    """The schema, JSON-ready."""
    whole = _object(Record)
    derived = {
        "version": {"const": VERSION, "description": "Of the form."},
        "causes": {**_mapping(float), "description": "The prices of all tensors and nodes by cause."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Record of qdqtool, version {VERSION}",
        **whole,
        "properties": {**derived, **whole["properties"]},
        "required": ["version", *whole.get("required", [])],
        "$defs": {
            **{part.__name__: _object(part) for part in PARTS[1:]}, "Encoding": dict(ENCODING), "Numbers": dict(NUMBERS),
        },
    }  # fmt: skip


def described(cls: type) -> dict[str, str]:
    """Field of a dataclass → what its docstring says of it, in one line."""
    _, _, text = (inspect.getdoc(cls) or "").partition("Args:\n")
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        head = re.match(r" {4}(\w+): (.*)", line)
        if head is not None:
            name = head[1]
            found[name] = head[2]
        elif name and line.startswith(" " * 8):
            found[name] += f" {line.strip()}"
    return {name: text.replace("``", "`") for name, text in found.items()}


def _object(cls: Any) -> dict[str, Any]:
    hints, told = typing.get_type_hints(cls, include_extras=True), described(cls)
    fields = dataclasses.fields(cls)
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    return {
        "description": (inspect.getdoc(cls) or "").partition("\n")[0],
        "type": "object",
        "properties": {f.name: {**_schema(hints[f.name]), "description": told[f.name]} for f in fields},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _schema(kind: Any) -> dict[str, Any]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if dataclasses.is_dataclass(kind):
        return {"$ref": f"#/$defs/{kind.__name__}"}  # type: ignore[union-attr]
    if origin is typing.Annotated:
        return {"$ref": f"#/$defs/{inner[1].__name__}"}
    if origin in (typing.Union, types.UnionType):
        one = _schema(next(each for each in inner if each is not types.NoneType))
        return {"type": [one["type"], "null"]} if set(one) == {"type"} else {"anyOf": [one, {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0])}
    if origin is Mapping:
        return _mapping(inner[1])
    raise TypeError(f"{kind} has no schema yet")


def _mapping(kind: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": _schema(kind)}
