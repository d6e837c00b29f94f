"""``dataclass`` of the standard library, which generates the methods of a class when one of them is first used.

Generating them at import takes 0.4 ms a class, a third of what a command spends on imports, and a command never uses half of the
classes that it imports. A class is the same as `dataclasses.dataclass` makes it, only later: until then its methods and its table
of fields are descriptors.

The methods are generated on a stand-in, a class with the same fields, and then set one by one. So another thread finds either a
descriptor, which waits, or the method."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_FIELDS, _PARAMS = "__dataclass_fields__", "__dataclass_params__"
_TABLES = (_FIELDS, _PARAMS, "__match_args__")
#: Methods that the standard library generates unless the class defines them, and the option that turns each off.
_METHODS = {"__init__": "init", "__repr__": "repr", "__eq__": "eq"}
#: Attributes that decide what is generated.
_READ = ("__annotations__", "__module__", "__doc__", *_METHODS, "__hash__")
_lock = threading.RLock()


class _Deferred:
    """An attribute of a class that is generated when it is read."""

    def __init__(self, cls: type, name: str, generate: Callable[[], None]) -> None:
        self._cls, self._name, self._generate = cls, name, generate

    def __get__(self, instance: object, owner: type) -> Any:
        self._generate()
        found = self._cls.__dict__[self._name]
        return found.__get__(instance, owner) if callable(found) else found


def _dataclass(cls: type | None = None, /, **options: bool) -> Any:
    if cls is None:
        return lambda found: _dataclass(found, **options)
    own = dict(cls.__dict__)
    if own.get("__doc__") is None or not options.keys() <= {"eq", "frozen", "init", "kw_only", "repr"}:
        return dataclasses.dataclass(**options)(cls)
    deferred = [*_TABLES, *(name for name, option in _METHODS.items() if options.get(option, True) and name not in own)]
    if options.get("eq", True) and (own.get("__hash__") is None):
        if options.get("frozen"):
            deferred.append("__hash__")
        else:
            cls.__hash__ = None  # type: ignore[assignment]
    read = {name: own[name] for name in (*_READ, *own.get("__annotations__", ())) if name in own}
    for name, value in read.items():
        if isinstance(value, dataclasses.Field):
            if value.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, value.default)
    if options.get("frozen"):
        cls.__setattr__, cls.__delattr__ = _frozen(cls, "__setattr__"), _frozen(cls, "__delattr__")  # type: ignore[method-assign]

    def generate() -> None:
        with _lock:
            if isinstance(cls.__dict__[_FIELDS], _Deferred):
                made = _stand_in(cls, read, options).__dict__
                for name in reversed(deferred):  # the fields last: whoever finds them finds all
                    setattr(cls, name, made[name])

    for name in deferred:
        setattr(cls, name, _Deferred(cls, name, generate))
    return cls


def _stand_in(cls: type, read: dict[str, Any], options: dict[str, bool]) -> type:
    """Return a class that the standard library made of the fields of ``cls`` and of its bases."""
    base: type = object
    for parent in reversed(cls.__mro__[1:]):
        if hasattr(parent, _FIELDS):
            base = type("_", (base,), {_FIELDS: getattr(parent, _FIELDS), _PARAMS: getattr(parent, _PARAMS)})
    inherited = {name: getattr(cls, name) for name in ("__qualname__", "__post_init__") if hasattr(cls, name)}
    made: type = dataclasses.dataclass(**options)(type(cls.__name__, (base,), {**inherited, **read}))
    return made


def _frozen(cls: type, method: str) -> Callable[..., None]:
    """Return the ``method`` that refuses to set or delete an attribute of ``cls``, and any field in classes below it."""
    verb = "assign to" if method == "__setattr__" else "delete"

    def refuse(self: object, name: str, *value: object) -> None:
        if type(self) is cls or name in getattr(cls, _FIELDS):
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")
        getattr(super(cls, self), method)(name, *value)

    refuse.__name__, refuse.__qualname__ = method, f"{cls.__qualname__}.{method}"
    return refuse


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
