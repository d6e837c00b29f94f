"""Strict reading of TOML tables: what is not expected is an error of one line that names file, table and key."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError

#: One line of text that neither begins nor ends with a blank.
_LINE = re.compile(r"\S(?:[^\r\n]*\S)?")

Scalar = str | bool | int | float


@dataclass(frozen=True)
class TomlTable:
    """A table whose keys are known to be among ``keys``.

    Args:
        data: key → value, as `tomllib` gives it.
        where: the file, then the table in it, for messages: ``acme_npu.toml [[op]] 2``.
        keys: what it may hold.
    """

    data: Mapping[str, object]
    where: str
    keys: tuple[str, ...]

    @classmethod
    def of(cls, data: Mapping[str, object], *, where: str, keys: Iterable[str]) -> TomlTable:
        """A table of ``data``.

        Raises:
            ModelError: it holds a key that is not in ``keys``; the nearest is given.
        """
        table = cls(data, where, tuple(keys))
        for key in data:
            if key not in table.keys:
                raise table.error(f"unknown key {key!r}", hint=_nearest(key, table.keys, "its keys are"))
        return table

    def error(self, message: str, *, hint: str | None = None) -> ModelError:
        """An error about this table."""
        return ModelError(message, where=self.where, hint=hint)

    def text(self, key: str) -> str:
        """One line of text.

        Raises:
            ModelError: the key is missing, or its value is something else.
        """
        value = self._required(key)
        if not isinstance(value, str) or not _LINE.fullmatch(value):
            raise self._mismatch(key, "expected one line of text")
        return value

    def long_text(self, key: str) -> str:
        """Text of any length, of several lines where it likes; empty when the key is missing.

        Raises:
            ModelError: the value is something else.
        """
        value = self.data.get(key, "")
        if not isinstance(value, str):
            raise self._mismatch(key, "expected text")
        return value

    def texts(self, key: str, *, required: bool = False) -> tuple[str, ...]:
        """A list of texts, each one line and none twice; empty when the key is missing, unless ``required``.

        Raises:
            ModelError: the value is something else, or an empty list.
        """
        if key not in self.data and not required:
            return ()
        value = self._required(key)
        if not isinstance(value, list) or not value:
            raise self._mismatch(key, 'expected a list of texts, as in ["a", "b"]')
        for item in value:
            if not isinstance(item, str) or not _LINE.fullmatch(item):
                raise self._mismatch(key, "expected a list of texts of one line each", item)
        if len(set(value)) != len(value):
            twice = next(item for item, count in Counter(value).items() if count > 1)
            raise self.error(f"{key!r} lists {twice!r} twice")
        return tuple(value)

    def choices(self, key: str, allowed: Sequence[str], *, required: bool = False) -> tuple[str, ...]:
        """A list of words out of ``allowed``, none twice; empty when the key is missing, unless ``required``.

        Raises:
            ModelError: the value is something else, or an empty list.
        """
        words = self.texts(key, required=required)
        for word in words:
            if word not in allowed:
                raise self._mismatch(key, _nearest(word, allowed, "it takes"), word)
        return words

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """A word out of ``allowed``; the first of them when the key is missing.

        Raises:
            ModelError: the value is something else.
        """
        value = self.data.get(key, allowed[0])
        if not isinstance(value, str) or value not in allowed:
            raise self._mismatch(key, _nearest(str(value), allowed, "it takes"))
        return value

    def flag(self, key: str) -> bool:
        """true or false; false when the key is missing.

        Raises:
            ModelError: the value is something else.
        """
        value = self.data.get(key, False)
        if not isinstance(value, bool):
            raise self._mismatch(key, "expected true or false")
        return value

    def number(self, key: str) -> int:
        """A whole number from 0 on; 0 when the key is missing.

        Raises:
            ModelError: the value is something else.
        """
        value = self.data.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._mismatch(key, "expected a whole number from 0 on")
        return value

    def scalars(self) -> dict[str, Scalar]:
        """All keys with their values.

        Raises:
            ModelError: a value is no text, number or boolean.
        """
        found: dict[str, Scalar] = {}
        for key, value in self.data.items():
            if not isinstance(value, str | bool | int | float):
                raise self._mismatch(key, "expected text, a number or true/false")
            found[key] = value
        return found

    def table(self, key: str, *keys: str) -> TomlTable:
        """The table below, which may hold ``keys`` only; empty when it is missing.

        Raises:
            ModelError: the value is no table, or holds another key.
        """
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            raise self._mismatch(key, f"expected a table [{key}]")
        return TomlTable.of(value, where=f"{self.where} [{key}]", keys=keys)

    def tables(self, key: str, *keys: str) -> list[TomlTable]:
        """The tables of a list of them (``[[key]]``), each of which may hold ``keys`` only.

        Raises:
            ModelError: the key is missing, its value is no list of tables, or one holds another key.
        """
        value = self._required(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self._mismatch(key, f"expected one or more tables [[{key}]]")
        return [TomlTable.of(v, where=f"{self.where} [[{key}]] {i}", keys=keys) for i, v in enumerate(value, start=1)]

    def _required(self, key: str) -> object:
        if key not in self.data:
            raise self.error(f"{key!r} is missing")
        return self.data[key]

    def _mismatch(self, key: str, hint: str, value: object = None) -> ModelError:
        return self.error(f"{key!r} cannot be {_shown(self.data[key] if value is None else value)}", hint=hint)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    text = repr(value) if isinstance(value, str | int | float | list) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _nearest(word: str, known: Sequence[str], otherwise: str) -> str:
    near = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"{otherwise} {', '.join(known)}"
