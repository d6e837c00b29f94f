"""Read values of target files that `TomlTable` has no reader for: numbers, flags, types and operator names."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from typing import TypeVar

import onnx.defs
import onnx_ir as ir
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.encoding import parse_dtype

#: What QuantizeLinear writes (ONNX operator changelog, opset 25), and int32, which DequantizeLinear reads as well: biases.
STORAGE_TYPES = (
    "int8", "uint8", "int16", "uint16", "int32", "int4", "uint4", "int2", "uint2",
    "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float4e2m1",
)  # fmt: skip

#: Those, and the floats of what is not quantized.
ELEMENT_TYPES = (*STORAGE_TYPES, "float", "float16", "bfloat16")

#: Operators of the default domain that ONNX does not define: of onnxruntime's fusions, and as the HTP backend calls one.
BESIDE_ONNX = frozenset({"Inverse", "SimplifiedLayerNormalization"})

_OP_TYPE = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*::)?[A-Za-z_][A-Za-z0-9_]*")

T = TypeVar("T")


def types_of(table: TomlTable, key: str, *, required: bool = False) -> tuple[ir.DataType, ...]:
    """A list of element types."""
    return tuple(parse_dtype(name) for name in table.choices(key, ELEMENT_TYPES, required=required))


def operators_of(table: TomlTable, key: str, *, required: bool = True, star: bool = False) -> tuple[str, ...]:
    """A list of operator types; ``star`` allows ``*`` for all others."""
    types = table.texts(key, required=required)
    for op_type in types:
        if not _OP_TYPE.fullmatch(op_type) and not (star and op_type == "*"):
            raise table.error(f"{op_type!r} is no operator type", hint="write Conv, or com.acme::FancyConv")
        if "::" not in op_type and op_type != "*" and op_type not in standard_operators():
            near = difflib.get_close_matches(op_type, sorted(standard_operators()), n=2, cutoff=0.6)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            hint = f"{meant}One of another domain is written com.acme::{op_type}"
            raise table.error(f"ONNX has no operator {op_type!r}", hint=hint)
    return types


@functools.cache
def standard_operators() -> frozenset[str]:
    """The operators of ONNX's default domain in any version, and those that onnxruntime adds to it."""
    return frozenset(s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == "") | BESIDE_ONNX


def is_integer(value: object) -> bool:
    """Whether TOML holds an integer; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def integer(table: TomlTable, key: str, default: T, *, least: int = 0) -> int | T:
    """An integer of ``least`` or more.

    Raises:
        ModelError: the value is something else.
    """
    value = table.data.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise table.error(f"{key!r} cannot be {value!r}", hint=f"an integer of {least} or more")
    return value


def flag(table: TomlTable, key: str, default: bool) -> bool:
    """true or false.

    Raises:
        ModelError: the value is something else.
    """
    value = table.data.get(key, default)
    if not isinstance(value, bool):
        raise table.error(f"{key!r} cannot be {value!r}", hint="true or false")
    return value


def optional_text(table: TomlTable, key: str) -> str:
    """One line of text, empty when the key is missing."""
    return table.text(key) if key in table.data else ""


def parsed(table: TomlTable, key: str, parse: Callable[[str], T], default: str | None = None) -> T:
    """What ``parse`` makes of the text under ``key``, which may have several lines; its refusal is an error about ``table``."""
    if default is not None and key not in table.data:
        return parse(default)
    text = table.long_text(key)
    if not text.strip():
        raise table.error(f"{key!r} is {'empty' if key in table.data else 'missing'}")
    try:
        return parse(text)
    except UsageError as error:
        raise table.error(f"{key!r}: {error.message}", hint=error.hint) from error


def some_tables(table: TomlTable, key: str, *keys: str) -> list[TomlTable]:
    """The tables of a list; none when the key is missing."""
    return table.tables(key, *keys) if key in table.data else []


def bounds(table: TomlTable, key: str) -> tuple[int, int] | None:
    """[lowest, highest]; None when the key is missing.

    Raises:
        ModelError: the value is something else.
    """
    value = table.data.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(map(is_integer, value)):
        raise mismatch(table, key, value, "two integers, [0, 16]")
    if value[0] > value[1]:
        raise mismatch(table, key, value, "the lowest comes first")
    return value[0], value[1]


def mismatch(table: TomlTable, key: str, value: object, hint: str) -> ModelError:
    """An error about one value."""
    return table.error(f"{key!r} cannot be {value!r}", hint=hint)
