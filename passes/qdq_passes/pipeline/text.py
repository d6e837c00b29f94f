"""Text of pipelines, both ways.

    pipeline := pass ("," pass)*          pass := name ["{" option (" " option)* "}"]
    option   := key "=" value
    value    := word | "JSON string" | number | true | false | "[" [value ("," value)*] "]" | "@" name

Keys are field names with dashes for underscores; defaults are not printed."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Named, Pass
from qdq_passes.core.registry import PASSES, Entry
from qdq_passes.errors import UsageError
from qdq_passes.numerics.documents import DEEPEST, json_of
from qdq_passes.pipeline.option_types import from_text, to_text

_WORD = re.compile(r"[A-Za-z0-9_.:/*+\-]+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SPACE = re.compile(r"\s*")


class PipelineSyntaxError(UsageError):
    """A pipeline text that cannot be read. The message ends with the text and a caret under the place."""

    def __init__(
        self, message: str, text: str, column: int, *, where: str | None = None, hint: str | None = None
    ) -> None:
        self.text, self.column = text, column
        super().__init__(message, where=where, hint=hint)

    @classmethod
    def at(cls, column: int, text: str, error: UsageError) -> PipelineSyntaxError:
        """``error``, of what stands at ``column`` of ``text``."""
        return cls(error.message, text, column, where=error.where, hint=error.hint)

    def __str__(self) -> str:
        start = max(0, self.column - 60)
        line = "".join(c if c.isprintable() else " " for c in self.text[start : self.column + 40])
        return f"{super().__str__()}\n  {line}\n  {' ' * (self.column - start)}^"


def parse_passes(text: str) -> list[Pass]:
    """The passes of a pipeline text.

    Raises:
        PipelineSyntaxError: with the column and, for unknown names, the nearest ones.
    """
    return list(_Parser(text).pipeline())


def format_pass(pass_: Pass) -> str:
    """Canonical text of one pass: options in field order, defaults left out."""
    options = []
    for field in dataclasses.fields(pass_):
        if not is_default(pass_, field):
            value = getattr(pass_, field.name)
            options.append(f"{field.name.replace('_', '-')}={to_text(value, field.name)}")
    return f"{type(pass_).name()}{{{' '.join(options)}}}" if options else type(pass_).name()


def is_default(pass_: Pass, field: dataclasses.Field[Any]) -> bool:
    """Whether ``field`` of ``pass_`` holds its default, and so is not written."""
    return bool(getattr(pass_, field.name) == _default(field))


def make_pass(name: str, options: dict[str, Any]) -> Pass:
    """A pass by name with options given as plain values (edit scripts, Python).

    Raises:
        UsageError: unknown pass or option, or a value of the wrong type.
    """
    cls = PASSES.load(name)
    fields = {f.name for f in dataclasses.fields(cls) if f.init}
    values = {}
    for key, value in options.items():
        attribute = key.replace("-", "_")
        if attribute not in fields:
            raise UsageError(f"{name} has no option {key!r}", hint=_near(key, fields))
        values[attribute] = from_text(cls, attribute, value)
    return _construct(cls, values)


def _construct(cls: type[Pass], values: dict[str, Any]) -> Pass:
    required = [f.name for f in dataclasses.fields(cls) if f.init and _default(f) is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise UsageError(
            f"{cls.name()} needs {' and '.join(n.replace('_', '-') for n in missing)}",
            hint=f"write {cls.name()}{{{' '.join(n.replace('_', '-') + '=…' for n in missing)}}}",
        )
    return cls(**values)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _near(key: str, fields: set[str]) -> str:
    names = sorted(f.replace("_", "-") for f in fields)
    near = difflib.get_close_matches(key, names, n=2, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"its options are {', '.join(names)}" if names else "it takes no options"


@dataclass
class _Parser:
    """Recursive descent over the text; ``at`` is the next character, ``known`` the passes there are."""

    text: str
    at: int = 0
    known: Mapping[str, Entry] = dataclasses.field(default_factory=PASSES.entries)

    def pipeline(self) -> Iterator[Pass]:
        self._skip_space()
        if self.at == len(self.text):
            raise self._error("the pipeline is empty", hint="name a pass; see `qdqtool list passes`")
        while True:
            yield self._pass()
            self._skip_space()
            if self.at == len(self.text):
                return
            self._expect(",")

    def _pass(self) -> Pass:
        self._skip_space()
        start = self.at
        name = self._match(_WORD, "a pass name")
        try:
            cls = PASSES.load(name, among=self.known)
        except UsageError as error:
            raise PipelineSyntaxError.at(start, self.text, error) from None
        values: dict[str, Any] = {}
        if self._peek() == "{":
            self.at += 1
            while self._peek_after_space() != "}":
                key, value = self._option(cls)
                values[key] = value
            self.at += 1
        try:
            return _construct(cls, values)
        except UsageError as error:
            raise PipelineSyntaxError.at(start, self.text, error) from None

    def _option(self, cls: type[Pass]) -> tuple[str, Any]:
        start = self.at
        key = self._match(_WORD, "an option")
        attribute = key.replace("-", "_")
        fields = {f.name for f in dataclasses.fields(cls) if f.init}
        if attribute not in fields:
            raise PipelineSyntaxError(f"{cls.name()} has no option {key!r}", self.text, start, hint=_near(key, fields))
        self._skip_space()
        self._expect("=")
        self._skip_space()
        value_start = self.at
        raw = self._value()
        try:
            return attribute, from_text(cls, attribute, raw)
        except UsageError as error:
            raise PipelineSyntaxError.at(value_start, self.text, error) from None

    def _value(self, depth: int = 0) -> Any:
        self._skip_space()
        character = self._peek()
        if character == "[":
            if depth == DEEPEST:
                raise self._error("the lists nest too deeply")
            return self._list(depth + 1)
        if character == "@":
            self.at += 1
            return Named(self._match(_WORD, "a name after @"))
        if character == '"':
            start = self.at
            literal = self._match(_STRING, "a closed string")
            try:
                return json_of(literal)
            except ValueError:
                raise PipelineSyntaxError("not a JSON string", self.text, start) from None
        return _plain(self._match(_WORD, "a value"))

    def _list(self, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while self._peek_after_space() != "]":
            if items:
                self._expect(",")
            items.append(self._value(depth))
        self.at += 1
        return items

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self._error(f"expected {what}")
        self.at = match.end()
        return match[0]

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise self._error(f"expected {character!r}")
        self.at += 1

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _peek_after_space(self) -> str:
        self._skip_space()
        if self.at == len(self.text):
            raise self._error("the text ends inside braces")
        return self._peek()

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _error(self, message: str, *, hint: str | None = None) -> PipelineSyntaxError:
        return PipelineSyntaxError(f"{message} at column {self.at + 1}", self.text, self.at, hint=hint)


def _plain(word: str) -> Any:
    """A bare word as a number or boolean where it reads as one."""
    if word in ("true", "false"):
        return word == "true"
    for convert in (int, float):
        try:
            found = convert(word)
        except ValueError:
            continue
        return found if abs(found) < 2**63 else float(word)  # beyond 64 bits it is no integer
    return word
