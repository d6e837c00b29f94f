"""The errors a person meets, and the exit code of each.

Every message is one line that names the node, value or file (``where``) and ends with the way out (``hint``)."""

from __future__ import annotations

from typing import Any


def visible(text: str, *, keep: str = "") -> str:
    """``text`` with everything that a terminal would act on or hide as an escape: controls, marks of direction, blanks without
    width, half surrogates; but for what is in ``keep``. Whatever a stranger named goes through here before a person sees it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


class QdqError(Exception):
    """Base of all errors of this project.

    Args:
        message: what is wrong, one line, without a trailing full stop.
        where: the node, value, pass or file concerned.
        hint: what the reader can do about it.
    """

    exit_code: int = 70

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return visible(f"{text}; {self.hint}" if self.hint else text)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without a call of ``__init__``, which derived errors declare as they like."""
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(cls: type[QdqError], arguments: tuple[object, ...], state: dict[str, object]) -> QdqError:
    error = cls.__new__(cls, *arguments)
    error.__dict__.update(state)
    return error


class QdqWarning(UserWarning):
    """A warning: a likely mistake, or a result to check. Filters of Python's ``warnings`` apply."""


class ModelError(QdqError):
    """The input model (or data file) is broken. Exit 2."""

    exit_code = 2


class UsageError(QdqError):
    """The request is wrong: an option, a selector, a pipeline text. Exit 2."""

    exit_code = 2


class UnsupportedError(QdqError):
    """The request is legitimate, but this construct cannot be handled. Exit 3."""

    exit_code = 3


class SetupError(QdqError):
    """Something of the environment is missing: a package, an onnxruntime version. Exit 3."""

    exit_code = 3


class CheckError(QdqError):
    """A check found something: a figure beyond its bound. Exit 1."""

    exit_code = 1


class VerifyError(QdqError):
    """A pass broke the model: our bug. Exit 70."""

    exit_code = 70
