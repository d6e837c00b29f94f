"""What every verb is: a frozen dataclass whose fields are its arguments and options, and `run`, which does it."""

from __future__ import annotations

import functools
import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import kebab_case
from qdq_passes.errors import QdqWarning, UsageError

from qdqtool.io.files.progress import Warn, Warnings
from qdqtool.options import Field, options_of
from qdqtool.verbs.named_paths import NamedPath, paths_of, refuse_clashes

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Verb(Generic[R_co]):
    """A job and what is said of it. Class and function have one name, the module too where it holds no other: `Split`, `split`.

    Options are shown in the order of the class: its own, then those of its groups; the groups in ``leads`` come first, those in
    ``trails`` last, and an option that is ``placed`` before the other that it names.
    """

    examples: ClassVar[tuple[str, ...]] = ()
    leads: ClassVar[tuple[type, ...]] = ()
    trails: ClassVar[tuple[type, ...]] = ()
    placed: ClassVar[Mapping[str, str]] = {}
    has_stages: ClassVar[bool] = True

    @abstractmethod
    def run(self) -> R_co:
        """Do it."""

    def named_paths(self) -> Iterator[NamedPath]:
        """The files and folders that it reads and writes."""
        return paths_of(self)

    def with_listeners(self, **listeners: Any) -> Self:
        """This verb with ``warn`` and ``progress``, where it has such."""
        return replace(self, **{each.name: listeners[each.name] for each in fields(self) if each.name in listeners})

    def heard(self, warn: Warn | None, **listeners: Any) -> R_co:
        """Run it; the result has the warnings that it gave, of which ``warn`` is told as they come up."""
        told = Warnings(warn)
        return with_warnings(self.with_listeners(warn=told, **listeners).run(), told)


def with_warnings(result: R, told: Sequence[str]) -> R:
    """``result`` with what was ``told``, where it has a place for it: a field of a dataclass, or a key."""
    if isinstance(result, dict):
        return {**result, "warnings": list(told)}  # type: ignore[return-value]
    if not is_dataclass(result) or not hasattr(result, "warnings"):
        return result
    return replace(result, warnings=tuple(dict.fromkeys((*result.warnings, *told))))  # type: ignore[type-var]


def function_of(verb: Callable[P, Verb[R_co]]) -> Callable[P, R_co]:
    """The function that a caller in Python uses: it takes what ``verb`` is made of, and runs it.

    Warnings that no ``warn`` is told are those of Python, a `QdqWarning` each.

    It raises a UsageError for an option that there is not, a TypeError for arguments that do not fit.
    """
    signature = inspect.signature(verb)
    assert isinstance(verb, type)
    cls: type = verb
    known = frozenset(signature.parameters)

    @functools.wraps(verb, updated=())
    def call(*args: P.args, **kwargs: P.kwargs) -> R_co:
        for name in sorted(kwargs.keys() - known):
            raise UsageError(f"there is no option {name!r}", hint=f"there is {', '.join(sorted(known))}")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{call.__name__}(): {error}") from None
        options = (
            {each.name: each for each in options_of(cls)} if any(isinstance(v, str) for v in kwargs.values()) else {}
        )
        read: dict[str, Any] = {name: _read(options.get(name), value) for name, value in kwargs.items()}
        asked: Verb[R_co] = verb(*args, **read)
        from qdqtool.io.files.atomic import together

        paths = list(asked.named_paths())
        refuse_clashes(paths, overwrite=getattr(asked, "overwrite", False))
        told = Warnings(getattr(asked, "warn", None))
        try:
            with together(each.path for each in paths if each.use == "file"):
                return asked.heard(told)
        finally:
            for text in told if getattr(asked, "warn", None) is None else ():
                warnings.warn(text, QdqWarning, stacklevel=2)

    call.__name__ = call.__qualname__ = kebab_case(verb.__name__.removesuffix("Of")).replace("-", "_")
    call.__doc__ = documented(verb)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _read(option: Field | None, value: Any) -> Any:
    """``value``, or what the command reads in it where it is text and the option's value is none: ``require_npu="95%"``.

    Raises:
        UsageError: the text is no such value.
    """
    if (
        option is None
        or option.option.read is None
        or not isinstance(value, str)
        or option.is_many
        or str in option.types
    ):
        return value
    try:
        return option.option.read(value)
    except ValueError as error:
        raise UsageError(f"{option.name}: {error}", hint=option.option.help) from error


def help_of(verb: type) -> str:
    """What ``verb`` does: the docstring of the class that is a `Verb` itself, not of one that adds options for a command."""
    return inspect.getdoc(next(cls for cls in verb.__mro__ if Verb in cls.__bases__)) or ""


def documented(verb: type) -> str:
    """The docstring of the function: what it does, then each argument with its help."""
    rows = "\n".join(f"    {each.name}: {each.option.text}" for each in options_of(verb))
    return f"{help_of(verb)}\n\nArgs:\n{rows}\n"
