"""``dataclass`` generates methods at their first use, and the class is what the standard library makes of it."""

from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import pytest
from qdq_passes import _lazy_dataclass

from tests.architecture.places import ROOT

ours: Any = _lazy_dataclass.dataclass


def family(dataclass: Any) -> dict[str, type]:
    """Classes of every form that the product has, decorated by ``dataclass``."""

    @dataclass(frozen=True)
    class Point:
        """Two coordinates."""

        x: int
        y: int = 2

    @dataclass(frozen=True)
    class Named(Point):
        """A point with a name, made upper case, and tags."""

        name: str = dataclasses.field(default="p", metadata={"help": "its name"})
        tags: tuple[str, ...] = dataclasses.field(default_factory=tuple, repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "name", self.name.upper())

    @dataclass(frozen=True, kw_only=True, eq=False)
    class ByIdentity:
        """Compared by identity."""

        value: int

    @dataclass
    class Open:
        """Can be changed, and has no hash."""

        value: int
        seen: list[int] = dataclasses.field(default_factory=list, compare=False)

    @dataclass(frozen=True)
    class Custom(Point):
        """Defines methods itself."""

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Point)

        def __repr__(self) -> str:
            return "custom"

    @dataclass(frozen=True)
    class Third(Named):
        """Below two others."""

        last: int = 1

    @dataclass(frozen=True)
    class Again(Point):
        """Names a field of its base again, whose default it keeps, and has no hash."""

        y: int
        count: ClassVar[int] = 0

        __hash__ = None  # type: ignore[assignment]

    class Shape(abc.ABC):
        """An interface."""

        @abc.abstractmethod
        def __eq__(self, other: object) -> bool: ...

        __hash__ = None  # type: ignore[assignment]

    @dataclass(frozen=True)
    class Square(Shape):
        """Generates what is abstract."""

        side: int

    class Plain(Third):
        """No dataclass itself."""

    return {cls.__name__: cls for cls in (Point, Named, ByIdentity, Open, Custom, Third, Again, Square, Plain)}


OURS, THEIRS = family(ours), family(dataclasses.dataclass)
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Point": ((1,), {}), "Named": ((1, 5), {"tags": ("a",)}), "ByIdentity": ((), {"value": 3}),
    "Again": ((1,), {}), "Square": ((2,), {}), "Open": ((4,), {}), "Third": ((1, 2, "t"), {}), "Custom": ((1, 2), {}), "Plain": ((1,), {"name": "q"}),
}  # fmt: skip


def outcome(call: Callable[[], Any]) -> Any:
    """The result of ``call``, or the type and text of its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  (compared)
        return type(error), str(error)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_class_is_that_of_the_standard_library(name: str) -> None:
    seen = []
    for cls in (OURS[name], THEIRS[name]):
        args, keywords = ARGUMENTS[name]
        one, two = cls(*args, **keywords), cls(*args, **keywords)
        seen.append(
            {
                "repr": repr(one).replace(hex(id(one)), "") if "0x" not in repr(one) else "identity",
                "equal": one == two,
                "hash": outcome(lambda one=one, two=two: hash(one) == hash(two)),
                "hashable": isinstance(one, Hashable),
                "values": dataclasses.asdict(one),
                "replaced": repr(dataclasses.replace(one, **{dataclasses.fields(cls)[0].name: 9})).split(" at ")[0],
                "copied": outcome(lambda one=one: copy.replace(one)) if hasattr(copy, "replace") else None,  # type: ignore[attr-defined]
                "signature": str(inspect.signature(cls)),
                "fields": [(f.name, f.type, f.kw_only, dict(f.metadata)) for f in dataclasses.fields(cls)],
                "match": cls.__match_args__,  # type: ignore[attr-defined]
                "set": outcome(lambda one=one: setattr(one, dataclasses.fields(one)[0].name, 7)),
                "set another": outcome(lambda one=one: setattr(one, "other", 7)),
                "delete": outcome(lambda one=one: delattr(one, dataclasses.fields(one)[0].name)),
                "too many": outcome(lambda cls=cls: cls(1, 2, 3, 4, 5, 6)),
                "default": getattr(cls, "name", None),
                "frozen": cls.__dataclass_params__.frozen,  # type: ignore[attr-defined]
            }
        )
    assert seen[0] == seen[1]


def test_a_method_is_generated_at_its_first_use() -> None:
    def deferred(cls: type) -> set[str]:
        return {name for name, value in vars(cls).items() if isinstance(value, _lazy_dataclass._Deferred)}

    cls: Any = family(ours)["Named"]
    every = {"__dataclass_fields__", "__match_args__", "__init__", "__repr__", "__eq__", "__hash__"}
    assert (cls.name, deferred(cls)) == ("p", every)
    assert len(dataclasses.fields(cls)) == 4
    one = cls(1)
    assert deferred(cls) == {"__repr__", "__eq__", "__hash__"}
    assert (one == cls(1), deferred(cls)) == (True, {"__repr__"})


def test_frozen_classes_inherit_from_frozen_ones_alone() -> None:
    for base in ("Open", "Point"):
        errors = [
            outcome(
                lambda make=make, base=base, of=of: make(frozen=base == "Open")(
                    type("Below", (of[base],), {"__doc__": "x"})
                )
            )
            for make, of in ((ours, OURS), (dataclasses.dataclass, THEIRS))
        ]
        assert errors[0] == errors[1]
        assert errors[0][0] is TypeError


def test_mistakes_are_refused_where_the_class_is_defined() -> None:
    for body in ({"x": dataclasses.field(default=3)}, {"__setattr__": object.__setattr__}):
        with pytest.raises(TypeError):
            ours(frozen=True)(type("Wrong", (), {"__doc__": "x", "__annotations__": {}, **body}))


def test_what_is_set_meanwhile_stays() -> None:
    cls: Any = family(ours)["Point"]
    cls.__hash__ = lambda self: 7
    assert cls(1) == cls(1)
    assert hash(cls(1)) == 7


def test_the_standard_library_inherits_from_a_class_that_nobody_has_used() -> None:
    base = family(ours)["Point"]
    below = dataclasses.dataclass(frozen=True)(type("Below", (base,), {"__annotations__": {"z": "int"}, "z": 3}))
    assert repr(below(1, 2)).endswith("Below(x=1, y=2, z=3)")


@ours(frozen=True)
class Stored:
    """A class that pickle finds by its name."""

    value: int


def test_an_instance_made_without_init_compares_by_value() -> None:
    """As pickle makes it in another process, where nothing was generated yet."""
    text = pickle.dumps(Stored(5))
    code = f"import pickle; one, two = pickle.loads({text!r}), pickle.loads({text!r}); print(one == two, hash(one) == hash(two))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == "True True\n", done.stderr


def test_threads_that_use_a_class_first_at_once_all_find_it_whole() -> None:
    wrong: list[object] = []
    for _ in range(20):
        cls = family(ours)["Named"]
        start = threading.Barrier(4)

        def use(cls: Any = cls, start: threading.Barrier = start) -> None:
            start.wait()
            found = outcome(lambda: cls(1, 2, name="n") == cls(1, 2, name="n") and len(dataclasses.fields(cls)))
            if found != 4:
                wrong.append(found)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_the_product_imports_the_lazy_one() -> None:
    files = [file for folder in ("passes", "qdqtool") for file in (ROOT / folder).rglob("*.py")]
    eager = {
        file.name
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("@dataclasses.dataclass")
        or (
            line.startswith("from dataclasses import")
            and "dataclass" in line.split("import", 1)[1].replace(" ", "").split(",")
        )
    }
    assert not eager
