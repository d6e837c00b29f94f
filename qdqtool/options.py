"""Options said once: a field of a dataclass with its default, its help and the form of its value.

    preset: str = option("xint8", "What to quantize to.", value="NAME|FILE", listed_by="presets")

The command line, the Python function, the keys of a recipe and the page of options are made from such fields. What kind of
value one takes follows from its annotation: ``bool`` is a flag, ``Literal`` a choice, ``Sequence[str]`` may be repeated."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, Literal, TypeVar

from qdq_passes._lazy_dataclass import dataclass

T = TypeVar("T")

_KEY = "option"
_LIST = (tuple, list, Sequence)
#: Annotations of several values: how each is read must be known.
_MANY = ("Sequence[", "Mapping[", "Iterable[")

#: Instead of the name of an option: it is shown behind all others.
LAST = ""

#: Headings in the help of a command with many options.
SCHEME, NODES, ACCURACY = "How it is quantized", "Which nodes, in how many bits", "Accuracy"
SAMPLED, WRITTEN = "Data and ranges", "What is written"

Kind = Literal["option", "argument", "python", "group"]

#: What becomes of the file or folder that an option names: it is read; a file that is written; a folder that is written and may
#: be replaced whole; one that files are put into; a file that an earlier run began and this one goes on with.
Use = Literal["read", "file", "folder", "into", "kept"]
#: Forms of values and annotations of options that name one: they must say their use.
_NAMES_PATH = re.compile(r"FILE|DIR|MODEL|RANGES"), re.compile(r"\b(Path|ModelOrPath|FeedSpec)\b")


@dataclass(frozen=True, kw_only=True)
class Option:
    """What a field says of itself.

    Args:
        help: one sentence or two, for the help of the command, the docstring and the page of options.
        kind: an option, an argument, something for callers in Python alone, or a group of options.
        value: form of the value: ``NAME|FILE``.
        use: what becomes of the file or folder that it names; None where it names none.
        listed_by: what ``qdqtool list …`` shows the names of.
        flags: spellings on the command line; by default that of the field.
        off: spelling that says no, where it is not ``--no-…``.
        least: smallest whole number.
        most: largest whole number.
        alone: what the option means without a value; None: it needs one.
        shown: the default is shown; text is shown in its place.
        required: the command refuses to run without it.
        recipe: recipes may hold it.
        read: value of what stands on the command line; raises ValueError.
        many: may be given several times though ``read`` makes one value of it.
        before: name of the option that it is shown before, or `LAST`.
        section: heading that the help of a command with many options shows it under; by default that of its class (``section``).
        prefix: of a group: what stands before the names of its fields.
        part: of a group: its class, which takes the options that were given; None where none was.
    """

    help: str = ""
    kind: Kind = "option"
    value: str | None = None
    use: Use | None = None
    listed_by: str | None = None
    flags: tuple[str, ...] = ()
    off: str | None = None
    least: int | None = None
    most: int | None = None
    alone: object = None
    shown: bool | str | None = None
    required: bool = False
    recipe: bool = True
    read: Callable[[Any], object] | None = None
    many: bool = False
    before: str | None = None
    section: str = ""
    prefix: str = ""
    part: type | None = None

    @property
    def text(self) -> str:
        """The help, and where names are listed."""
        return self.help if self.listed_by is None else f"{self.help.removesuffix('.')} (`list {self.listed_by}`)."


def option(
    default: T,
    help: str,
    *,
    value: str | None = None,
    use: Use | None = None,
    listed_by: str | None = None,
    flags: Sequence[str] = (),
    off: str | None = None,
    least: int | None = None,
    most: int | None = None,
    alone: object = None,
    shown: bool | str | None = None,
    required: bool = False,
    recipe: bool = True,
    read: Callable[[Any], object] | None = None,
    many: bool = False,
    before: str | None = None,
    section: str = "",
) -> T:
    """A field that is an option, see `Option`; ``default`` is what it has where nothing is said."""
    said = Option(
        help=help, value=value, use=use, listed_by=listed_by, flags=tuple(flags), off=off, least=least, most=most,
        alone=alone, shown=shown, required=required, recipe=recipe, read=read, many=many,
        before=before, section=section,
    )  # fmt: skip
    return field(default=default, metadata={_KEY: said})


def python_only(default: T, help: str) -> T:
    """A field for callers in Python alone: a function that is told something, or objects that no text names."""
    return field(default=default, metadata={_KEY: Option(help=help, kind="python", recipe=False)})


def group(part: type[T], *, prefix: str = "", help: str = "", recipe: bool = True) -> T | None:
    """A field of a dataclass whose fields are options: a ``part`` of those that were given, None where none was."""
    said = Option(help=help, kind="group", prefix=prefix, part=part, recipe=recipe)
    return field(default=None, metadata={_KEY: said})


def metadata_of(
    help: str = "",
    *,
    kind: Kind = "option",
    value: str | None = None,
    use: Use | None = None,
    listed_by: str | None = None,
    flags: Sequence[str] = (),
    required: bool = False,
    recipe: bool = False,
    read: Callable[[Any], object] | None = None,
    before: str | None = None,
    section: str = "",
) -> dict[str, Option]:
    """Metadata of a plain `dataclasses.field`, for what has no default, or stands without its name in Python.

    ``model: ModelOrPath = field(kw_only=False, metadata=metadata_of(kind="argument"))``
    """
    found = Option(
        help=help, kind=kind, value=value, use=use, listed_by=listed_by, flags=tuple(flags), required=required,
        recipe=recipe, read=read, before=before, section=section,
    )  # fmt: skip
    return {_KEY: found}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a dataclass that says what option it is.

    Args:
        name: of the field, and of the argument in Python.
        option: what it says.
        default: `dataclasses.MISSING` where it has none.
        annotation: as it is written.
        types: the types that it may have, None left out; text alone where the annotation names what is not imported.
        section: heading that it is shown under; empty under none.
    """

    name: str
    option: Option
    default: Any
    annotation: str
    types: tuple[Any, ...]
    section: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that a value may be, where it may be nothing else."""
        inner = [one for each in self.types for one in (typing.get_args(each) if self.is_many else (each,))]
        words = [word for each in inner if typing.get_origin(each) is Literal for word in typing.get_args(each)]
        enums = [each for each in self.types if isinstance(each, enum.EnumMeta)]
        words += [member.value for each in enums for member in list[enum.Enum](each)]
        return tuple(word for word in words if isinstance(word, str))

    @property
    def is_many(self) -> bool:
        """Whether it is given once for each of several values."""
        return self.option.many or (self.option.read is None and any(typing.get_origin(t) in _LIST for t in self.types))

    @property
    def is_switch(self) -> bool:
        """Whether it is yes or no."""
        return bool in self.types

    @property
    def is_inverted(self) -> bool:
        """Whether the command can only say no: ``--no-cache``."""
        return (
            self.default is True and bool(self.option.flags) and all(f.startswith("--no-") for f in self.option.flags)
        )

    @property
    def is_flag(self) -> bool:
        """Whether the command can only say one of yes and no."""
        return self.is_switch and (self.is_inverted or (self.default is False and self.option.off is None))

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings on the command line; ``--x/--no-x`` of what can be said both ways."""
        if not self.is_switch or self.option.read is not None or self.is_flag:
            return self.option.flags or (self.spelled,)
        return (f"{self.spelled}/{self.option.off or self.spelled.replace('--', '--no-', 1)}",)

    @property
    def spelled(self) -> str:
        """The longest spelling on the command line: ``--keep-sigmoid``."""
        return max(self.option.flags, key=len) if self.option.flags else f"--{self.name.replace('_', '-')}"


def options_of(cls: type) -> tuple[Field, ...]:
    """The fields of ``cls`` that are options, as they are shown: groups that lead, its own, then the groups behind it."""
    if cls not in _FOUND:
        _FOUND[cls] = _ordered(cls)
    return _FOUND[cls]


_FOUND: dict[type, tuple[Field, ...]] = {}


def _ordered(cls: type) -> tuple[Field, ...]:
    given = {each.name: each for each in dataclasses.fields(cls)}
    order: list[str] = []
    bases = [c for c in cls.__mro__ if dataclasses.is_dataclass(c)]
    leading = {base for c in getattr(cls, "leads", ()) for base in c.__mro__}
    trailing = {base for c in getattr(cls, "trails", ()) for base in c.__mro__}
    for base in sorted(bases, key=lambda c: (c not in leading, c in trailing)):
        order += [name for name in inspect.get_annotations(base) if name in given and name not in order]
    found = {name: _field(cls, given[name]) for name in order if _KEY in given[name].metadata}
    placed: dict[str, str] = getattr(cls, "placed", {})
    wished = {name: placed.get(name, each.option.before) for name, each in found.items()}
    moved = {name: before for name, before in wished.items() if before in found}

    def shown(name: str) -> Iterator[Field]:
        for other, before in moved.items():
            if before == name:
                yield from shown(other)
        yield found[name]

    first = [name for name in found if name not in moved and wished[name] != LAST]
    last = [name for name in found if wished[name] == LAST]
    return tuple(each for name in (*first, *last) for each in shown(name))


def _field(cls: type, each: dataclasses.Field[Any]) -> Field:
    annotation, said = str(each.type), each.metadata[_KEY]
    owner = _owner(cls, each.name)
    value, annotated = _NAMES_PATH
    if said.use is None and said.kind != "python" and (value.search(said.value or "") or annotated.search(annotation)):
        raise TypeError(f"{owner.__name__}.{each.name} names a file or folder; say its use")
    allowed = _types(owner, annotation)
    if allowed is None and said.kind == "option" and annotation.startswith(_MANY) and not (said.read or said.many):
        raise TypeError(f"{owner.__name__}.{each.name}: {annotation} names what is not imported; say read or many")
    return Field(
        name=each.name,
        option=said,
        default=each.default,
        annotation=annotation,
        types=(str,) if allowed is None else allowed,
        section=said.section or vars(owner).get("section", ""),
    )


def _owner(cls: type, name: str) -> type:
    """The class that says the field ``name``."""
    return next(base for base in cls.__mro__ if name in inspect.get_annotations(base))


def _types(owner: type, annotation: str) -> tuple[Any, ...] | None:
    """What ``annotation`` allows; None where it names something that only type checkers import."""
    try:
        found = eval(annotation, vars(sys.modules[owner.__module__]))
    except NameError:
        return None
    each = (
        typing.get_args(found)
        if isinstance(found, types.UnionType) or typing.get_origin(found) is typing.Union
        else (found,)
    )
    return tuple(one for one in each if one is not type(None))


def changed(options: Any) -> dict[str, Any]:
    """Name → value of what ``options`` say beside their defaults, of what recipes hold; nothing in a list says nothing."""
    values = {
        each.name: (getattr(options, each.name), each) for each in options_of(type(options)) if each.option.recipe
    }
    return {
        name: value
        for name, (value, each) in values.items()
        if value != each.default and not (isinstance(value, list | tuple | dict) and not value)
    }


def pairs(texts: Sequence[str], *, example: str) -> dict[str, str]:
    """Texts ``K=V`` as K → V; ``example`` is one of them.

    Raises:
        ValueError: a text is none, or a key is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ValueError(f"{text!r} is no K=V; write {example}")
        if key in found:
            raise ValueError(f"{key} is given twice")
        found[key] = value
    return found


def part_of(part: type[T], whole: Any) -> T:
    """The options of the group ``part`` among those of ``whole``, by themselves."""
    return part(**{each.name: getattr(whole, each.name) for each in options_of(part)})
