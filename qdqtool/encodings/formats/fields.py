"""Fields of JSON that somebody else wrote: read with one clear line for everything that can be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError, UnsupportedError

from qdqtool.encodings.entries import Json

#: Top-level key of what only qdqtool reads.
HINTS = "qdqtool"


class Fields(Mapping[str, Json]):
    """The fields of one JSON object of the entry of tensor ``where``."""

    def __init__(self, item: Json, where: str) -> None:
        if not isinstance(item, Mapping):
            raise ModelError(f"its entry is {_kind(item)}, not an object", where=where)
        self._item, self.where = item, where

    def __getitem__(self, key: str) -> Json:
        return self._item[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._item)

    def __len__(self) -> int:
        return len(self._item)

    def bad(self, key: str, wanted: str) -> ModelError:
        """The error for a field that is not ``wanted``."""
        found = f"is {_kind(self[key])}" if key in self else "is missing"
        return ModelError(f"field {key!r} {found}, expected {wanted}", where=self.where)

    def integer(self, key: str) -> int:
        """A whole number; 8.0 counts as one."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
            raise self.bad(key, "an integer")
        return int(value)

    def text(self, key: str) -> str:
        """A text."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.bad(key, "a text")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """true or false, or the texts "True" and "False"."""
        value = self.get(key, default)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise self.bad(key, '"True" or "False"')
        return value

    def array(self, key: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """A number, or (nested) lists of numbers, of any regular shape."""
        value = self.get(key)
        try:
            if _has_only_numbers(value):
                return np.array(value, np.float64)
        except ValueError:
            pass
        raise self.bad(key, "a number or a list of numbers of equal lengths")

    def numbers(self, key: str, count: int | None = None) -> tuple[float, ...]:
        """A number or a flat list of numbers; ``count`` of them, where one stands for all."""
        flat = tuple(self.array(key).ravel().tolist())
        if count is not None and len(flat) == 1:
            flat *= count
        if not flat or (count is not None and len(flat) != count):
            raise ModelError(
                f"field {key!r} has {len(flat)} numbers, expected {count or 'at least one'}", where=self.where
            )
        return flat

    def unknown(self, known: Sequence[str]) -> dict[str, Json]:
        """The fields that are none of ``known``."""
        return {key: value for key, value in self.items() if key not in known}


def _has_only_numbers(value: Json) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(_has_only_numbers(item) for item in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Json) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else "a list")


def scales_of(values: Sequence[float], where: str) -> tuple[float, ...]:
    """``values`` as scales.

    Raises:
        ModelError: one is not positive and finite.
    """
    for value in values:
        if not (value > 0 and np.isfinite(value)):
            raise ModelError(f"{value:g} is no scale, which is positive", where=where)
    return tuple(values)


def cannot(name: str, what: str, format_name: str, instead: str) -> UnsupportedError:
    """The refusal to write ``what`` of tensor ``name`` into a format that has no place for it."""
    return UnsupportedError(f"{what} cannot be said in {format_name}", where=name, hint=f"write {instead}")


def type_name(dtype: ir.DataType) -> str:
    """``int8``, ``float8e4m3fn``."""
    return dtype.name.lower()


def json_number(value: float) -> int | float:
    """A whole number without a point."""
    return int(value) if float(value).is_integer() else float(value)
