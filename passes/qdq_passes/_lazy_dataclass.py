"""``dataclass`` of the standard library, which generates the methods of a class when they are first used.

Generating them at import takes 0.4 ms a class, a third of what a command spends on imports, and a command never uses half of the
classes that it imports. A class is the same as `dataclasses.dataclass` makes it, only later: until then its methods and its table
of fields are descriptors. A class that it may refuse, or that has an option or a default of a rare kind, is made at once.

The standard library generates them on a stand-in, a class with the same fields, from which they are taken one by one. So another
thread finds either a descriptor, which waits, or the method."""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_FIELDS, _PARAMS = "__dataclass_fields__", "__dataclass_params__"
#: What is generated at one time, and the options of a stand-in that has it and as little as possible besides.
_GROUPS: tuple[tuple[tuple[str, ...], dict[str, bool]], ...] = (
    ((_FIELDS, "__match_args__"), {"init": False, "repr": False, "eq": False}),
    (("__init__",), {"init": True, "repr": False, "eq": False}),
    (("__repr__",), {"init": False, "repr": True, "eq": False}),
    (("__eq__", "__hash__"), {"init": False, "repr": False, "eq": True, "unsafe_hash": True}),
)
#: Options that this module knows; a class with others is made at once.
_KNOWN = {"eq", "frozen", "init", "kw_only", "repr"}
#: Attributes of a class that decide what is generated for it.
_READ = ("__annotations__", "__module__", "__doc__", "__post_init__")
_lock = threading.RLock()


class _Deferred:
    """An attribute of a class that is generated when it is read."""

    def __init__(self, cls: type, name: str, generate: Callable[[], None]) -> None:
        self._cls, self._name, self._generate = cls, name, generate

    def __get__(self, instance: object, owner: type) -> Any:
        with _lock:
            if self._cls.__dict__[self._name] is self:
                self._generate()
        found = self._cls.__dict__[self._name]
        return found.__get__(instance, owner) if callable(found) else found


def _dataclass(cls: type | None = None, /, **options: bool) -> Any:
    if cls is None:
        return lambda found: _dataclass(found, **options)
    own, frozen, eq = dict(cls.__dict__), options.get("frozen", False), options.get("eq", True)
    if not options.keys() <= _KNOWN or not _is_usual(cls, own, options):
        return dataclasses.dataclass(**options)(cls)
    empty = _empty(tuple(options.items()))
    setattr(cls, _PARAMS, getattr(empty, _PARAMS))
    read = {name: own[name] for name in _READ if name in own}
    read |= {name: getattr(cls, name) for name in own.get("__annotations__", ()) if hasattr(cls, name)}  # inherited too
    _show_defaults(cls, own)
    has_hash = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    wanted = {
        _FIELDS: True, "__match_args__": True, "__init__": options.get("init", True), "__repr__": options.get("repr", True),
        "__eq__": eq, "__hash__": eq and frozen and not has_hash,
    }  # fmt: skip
    if eq and not frozen and not has_hash:
        cls.__hash__ = None  # type: ignore[assignment]
    if "__replace__" in vars(empty) and "__replace__" not in own:  # since Python 3.13
        cls.__replace__ = vars(empty)["__replace__"]  # type: ignore[attr-defined]
    if frozen:
        cls.__setattr__, cls.__delattr__ = _frozen(cls, "__setattr__"), _frozen(cls, "__delattr__")  # type: ignore[method-assign]
    for names, least in _GROUPS:
        chosen = [name for name in names if wanted[name] and (name == "__hash__" or name not in own)]
        _defer(cls, chosen, read, {**options, **least, "frozen": frozen and "__init__" in names})
    return abc.update_abstractmethods(cls)


def _is_usual(cls: type, own: dict[str, Any], options: dict[str, bool]) -> bool:
    """Return whether the standard library refuses nothing in ``cls``, and no default cares for the class that it stands in."""
    annotations: dict[str, Any] = own.get("__annotations__", {})
    if own.get("__doc__") is None or _FIELDS in own:
        return False
    frozen, has_default = options.get("frozen", False), False
    if frozen and ("__setattr__" in own or "__delattr__" in own):
        return False
    for parent in cls.__mro__[1:]:
        if (params := parent.__dict__.get(_PARAMS)) is not None:
            if params.frozen != frozen:
                return False
            has_default = not options.get("kw_only", False)  # for all that is known without the fields of the parent
    for name, kind in annotations.items():
        if name not in own and hasattr(cls, name):
            return False
        value, text = own.get(name, dataclasses.MISSING), kind if isinstance(kind, str) else repr(kind)
        is_field, is_constant = isinstance(value, dataclasses.Field), "ClassVar" in text
        default = value.default if is_field else value
        is_given = default is not dataclasses.MISSING or (is_field and value.default_factory is not dataclasses.MISSING)
        if "InitVar" in text or "KW_ONLY" in text or (is_constant and is_field) or (has_default and not is_given):
            return False
        if not is_constant and (type(default).__hash__ is None or hasattr(type(default), "__get__")):
            return False
        has_default = has_default or (is_given and not is_constant and not options.get("kw_only", False))
    return True


def _show_defaults(cls: type, own: dict[str, Any]) -> None:
    """Leave of each field its default in ``cls``, if it has one."""
    annotated = own.get("__annotations__", ())
    for name, value in own.items():
        if isinstance(value, dataclasses.Field):
            if name not in annotated:
                raise TypeError(f"{name!r} is a field but has no type annotation")
            if value.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, value.default)


def _defer(cls: type, names: list[str], read: dict[str, Any], options: dict[str, bool]) -> None:
    def generate() -> None:
        made = _stand_in(cls, read, options).__dict__
        for name in names:
            if isinstance(cls.__dict__.get(name), _Deferred):  # else somebody has set it meanwhile
                setattr(cls, name, made[name])

    for name in names:
        setattr(cls, name, _Deferred(cls, name, generate))


def _stand_in(cls: type, read: dict[str, Any], options: dict[str, bool]) -> type:
    """Return a class that the standard library made of the fields of ``cls`` and of its bases."""
    base: type = object
    params = getattr(_empty((("frozen", options["frozen"]),)), _PARAMS)  # what is frozen inherits from what is frozen
    for parent in reversed(cls.__mro__[1:]):
        if hasattr(parent, _FIELDS):
            base = type("_", (base,), {_FIELDS: getattr(parent, _FIELDS), _PARAMS: params})
    inherited = {name: getattr(cls, name) for name in ("__qualname__", "__post_init__") if hasattr(cls, name)}
    made: type = dataclasses.dataclass(**options)(type(cls.__name__, (base,), {**read, **inherited}))
    return made


@functools.cache
def _empty(options: tuple[tuple[str, bool], ...]) -> type:
    """Return a class without fields that has the parameters ``options``."""
    made: type = dataclasses.dataclass(**dict(options))(type("_", (), {"__doc__": ""}))
    return made


def _frozen(cls: type, method: str) -> Callable[..., None]:
    """Return the ``method`` that refuses to set or delete an attribute of ``cls``, and any field in classes below it."""
    verb = "assign to" if method == "__setattr__" else "delete"

    def refuse(self: object, name: str, *value: object) -> None:
        if type(self) is cls or name in {field.name for field in dataclasses.fields(cls)}:
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")
        getattr(super(cls, self), method)(name, *value)

    refuse.__name__, refuse.__qualname__ = method, f"{cls.__qualname__}.{method}"
    return refuse


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
