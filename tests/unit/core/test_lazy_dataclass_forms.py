"""Classes of unusual forms are what the standard library makes of them, and mistakes are refused where a class is defined."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, field  # noqa: F401  (read from annotations)
from typing import Any, ClassVar

import pytest
from qdq_passes import _lazy_dataclass

ours: Any = _lazy_dataclass.dataclass


class Descriptor:
    """A default that learns its name."""

    names: ClassVar[list[str]] = []

    def __set_name__(self, owner: type, name: str) -> None:
        self.names.append(f"{owner.__name__}.{name}")

    def __get__(self, instance: Any, owner: type) -> Any:
        return 5 if instance is None else instance._value

    def __set__(self, instance: Any, value: Any) -> None:
        instance._value = value


@dataclasses.dataclass(frozen=True)
class StandardBase:
    """A class of the standard library."""

    base: int = 1


@ours
class LazyBase:
    """A class of ours that has methods of its own."""

    base: int
    late: int = field(default=3, kw_only=True)

    def __post_init__(self) -> None:
        self.base += 1


class Mixin:
    """No dataclass, with a default."""

    one: Any = field(default=8)


class Base:
    """A class whose subclasses get a keyword."""

    def __init_subclass__(cls, tag: str = "none") -> None:
        cls.tag = tag  # type: ignore[attr-defined]


def equal(self: object, other: object) -> bool:
    return type(self) is type(other)


def begin(self: Any, one: int = 4) -> None:
    object.__setattr__(self, "one", one)


def after(self: Any, given: int) -> None:
    object.__setattr__(self, "one", given + 1)


def form(
    fields: Mapping[str, str], bases: tuple[type, ...] = (), *, doc: str | None = "x", **body: Any
) -> Callable[[Any], Any]:
    """Return the function that decorates a new class of ``fields`` with a decorator."""
    options = body.pop("options", {})

    def make(dataclass: Any) -> Any:
        values = {
            name: copy.copy(value) if isinstance(value, dataclasses.Field) else value for name, value in body.items()
        }
        values |= {"__annotations__": dict(fields), "__doc__": doc, "__module__": __name__, "__qualname__": "Form.made"}
        return dataclass(**options)(type("made", bases, values))

    return make


ONE, TWO = {"one": "int"}, {"one": "int", "two": "int"}
FORMS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], dict[str, Any]]] = {
    "slots": (form(TWO, two=2, options={"slots": True}), (1,), {}),
    "frozen slots": (form(TWO, two=2, options={"slots": True, "frozen": True}), (1,), {}),
    "weakref slot": (form(ONE, options={"slots": True, "weakref_slot": True}), (1,), {}),
    "own slots": (form(TWO, __slots__=("one", "two")), (1, 2), {}),
    "order": (form(TWO, options={"order": True}), (1, 2), {}),
    "unsafe hash": (form(TWO, options={"unsafe_hash": True}), (1, 2), {}),
    "hash of one field": (form(TWO, two=field(default=2, hash=False), options={"frozen": True}), (1,), {}),
    "no match args": (form(ONE, options={"match_args": False}), (1,), {}),
    "own match args": (form(TWO, __match_args__=("two",)), (1, 2), {}),
    "own init": (form(ONE, __init__=begin), (1,), {}),
    "frozen own init": (form(ONE, __init__=begin, options={"frozen": True}), (1,), {}),
    "no init": (form(ONE, one=1, options={"init": False}), (), {}),
    "own eq": (form(ONE, __eq__=equal), (1,), {}),
    "frozen own eq": (form(ONE, __eq__=equal, options={"frozen": True}), (1,), {}),
    "own hash": (form(ONE, __hash__=lambda self: 7), (1,), {}),
    "frozen without hash": (form(ONE, __hash__=None, options={"frozen": True}), (1,), {}),
    "no eq": (form(ONE, options={"eq": False}), (1,), {}),
    "no repr": (form(ONE, options={"repr": False, "eq": False}), (1,), {}),
    "init var": (form({"one": "int", "given": "InitVar[int]"}, one=field(init=False), __post_init__=after), (5,), {}),
    "init var with default": (form({"one": "int", "given": "InitVar[int]"}, one=1, given=2, __post_init__=after), (), {}),
    "not in init": (form(TWO, two=field(init=False, default=3)), (1,), {}),
    "list not in init": (form({"one": "list[int]"}, one=field(init=False, default_factory=list), options={"frozen": True}), (), {}),
    "keywords": (form(TWO, one=1, options={"kw_only": True}), (), {"two": 2}),
    "keywords below a line": (form({"one": "int", "_": "KW_ONLY", "two": "int"}, one=1), (), {"two": 2}),
    "keyword field": (form(TWO, one=field(default=1, kw_only=True)), (2,), {}),
    "below the standard library": (form(TWO, (StandardBase,), one=1, two=2, options={"frozen": True}), (4, 5), {}),
    "default of the base": (form({"base": "int"}, (StandardBase,), options={"frozen": True}), (), {}),
    "below ours": (form(TWO, (LazyBase,), two=2), (4, 5), {"late": 6}),
    "below ours with keywords": (form(TWO, (LazyBase,), options={"kw_only": True}), (4,), {"one": 1, "two": 2}),
    "slots below ours": (form(ONE, (LazyBase,), options={"slots": True}), (4, 5), {}),
    "default of a mixin": (form(ONE, (Mixin,)), (), {}),
    "constant": (form({"one": "int", "all": "ClassVar[list[int]]"}, all=[1]), (1,), {}),
    "keyword of the base": (form(ONE, (Base,)), (1,), {}),
    "function": (form({"one": "object"}, one=len), (), {}),
    "python function": (form({"one": "object"}, one=equal), (), {}),
    "descriptor": (form(ONE, one=Descriptor()), (3,), {}),
    "descriptor in a field": (form(ONE, one=field(default=Descriptor())), (3,), {}),
    "property": (form({"one": "object"}, one=property(lambda self: 1)), (), {}),
    "exception": (form(ONE, (ValueError,)), (1,), {}),
    "without text": (form(TWO, two=2, doc=None), (1,), {}),
    "nothing": (form({}), (), {}),
}  # fmt: skip


def outcome(call: Callable[[], Any]) -> Any:
    """The result of ``call``, or the type and text of its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  (compared)
        return type(error), str(error)


def stored(one: Any) -> Any:
    """What pickle makes of ``one``, with its class by reference."""
    cls, stream = type(one), io.BytesIO()
    writer = pickle.Pickler(stream)
    writer.persistent_id = lambda found: "class" if found is cls else None  # type: ignore[method-assign,assignment]
    writer.dump(one)
    stream.seek(0)
    reader = pickle.Unpickler(stream)
    reader.persistent_load = lambda name: cls  # type: ignore[method-assign,assignment]
    return reader.load()


def traits(
    make: Callable[[Any], Any], dataclass: Any, args: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """What a program can see of a class and of an instance; methods come before the fields in one class, after them in another."""
    Descriptor.names.clear()
    cls = make(dataclass)
    one, two = outcome(lambda: cls(*args, **keywords)), outcome(lambda: cls(*args, **keywords))
    names = ("__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__setattr__", "__replace__")
    methods = {name: vars(cls)[name] and getattr(cls, name) for name in names if name in vars(cls)}
    texts = {
        "equal": lambda: (one == two, one == 3, one != two),
        "hash": lambda: hash(one) == hash(two),
        "less": lambda: one < two,
        "repr": lambda: repr(one).partition(" at 0x")[0],
        "values": lambda: (dataclasses.asdict(one), dataclasses.astuple(one)),
        "attributes": lambda: vars(one),
        "replaced": lambda: repr(dataclasses.replace(one)).partition(" at 0x")[0],
        "replaced by copy": lambda: repr(copy.replace(one)).partition(" at 0x")[0],  # type: ignore[attr-defined]
        "copied": lambda: copy.deepcopy(one) == one,
        "stored": lambda: (stored(one) == one, repr(stored(one)).partition(" at 0x")[0]),
        "signature": lambda: str(inspect.signature(cls)),
        "signatures": lambda: {name: str(inspect.signature(method)) for name, method in methods.items() if name != "__setattr__"},
        "annotations": lambda: cls.__init__.__annotations__,
        "fields": lambda: [repr(each).replace(hex(id(each.default)), "") for each in cls.__dataclass_fields__.values()],
        "params": lambda: repr(cls.__dataclass_params__),
        "match": lambda: cls.__match_args__,
        "attribute": lambda: repr(cls.one).partition(" at 0x")[0],
        "methods": lambda: {name: (method is None, getattr(method, "__qualname__", "")) for name, method in methods.items()},
        "slots": lambda: (vars(cls).get("__slots__"), hasattr(cls, "__weakref__")),
        "set": lambda: setattr(one, "one", 7),
        "delete": lambda: delattr(one, "one"),
        "too many": lambda: cls(1, 2, 3, 4, 5, 6),
    }  # fmt: skip
    return {"names": list(Descriptor.names), "doc": cls.__doc__} | {name: outcome(text) for name, text in texts.items()}


@pytest.mark.parametrize("name", FORMS)
def test_a_class_of_an_unusual_form_is_that_of_the_standard_library(name: str) -> None:
    make, args, keywords = FORMS[name]
    assert traits(make, ours, args, keywords) == traits(make, dataclasses.dataclass, args, keywords)


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "mutable default": form({"one": "list"}, one=[]),
    "mutable default in a field": form({"one": "list"}, one=field(default={})),
    "no default after one": form(TWO, one=1),
    "no default after a field": form(TWO, one=field(default_factory=int), two=field(metadata={"a": 1})),
    "no default after the base's": form(ONE, (StandardBase,), options={"frozen": True}),
    "two lines of keywords": form({"_": "KW_ONLY", "one": "int", "__": "KW_ONLY"}),
    "made init var": form({"one": "InitVar[list]"}, one=field(default_factory=list)),
    "made constant": form({"one": "ClassVar[list]"}, one=field(default_factory=list)),
    "keyword constant": form({"one": "ClassVar[int]"}, one=field(kw_only=True)),
    "no annotation": form({}, one=field(default=3)),
    "frozen with its own setter": form(ONE, __setattr__=object.__setattr__, __delattr__=object.__delattr__, options={"frozen": True}),
    "thawed": form(ONE, (StandardBase,), one=1),
    "frozen below an open one": form(ONE, (LazyBase,), one=1, options={"frozen": True}),
    "order of its own": form(ONE, __lt__=equal, options={"order": True}),
    "order without equality": form(ONE, options={"order": True, "eq": False}),
    "slots twice": form(ONE, __slots__=("one",), options={"slots": True}),
    "hash twice": form(ONE, __hash__=lambda self: 7, options={"unsafe_hash": True}),
    "unknown option": form(ONE, options={"fast": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_where_the_class_is_defined(name: str) -> None:
    refused = outcome(lambda: MISTAKES[name](ours))
    expected = outcome(lambda: MISTAKES[name](dataclasses.dataclass))
    assert isinstance(expected, tuple)
    assert refused[0] is expected[0]
    assert refused[1].replace("_dataclass()", "dataclass()") == expected[1]
