"""Tell how far work is, and warn, through functions that the caller gives.

Where it gives none, nothing is told. Warnings are kept all the same: results have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field

from qdq_passes._lazy_dataclass import dataclass

#: Told (samples done, samples in all or None).
Progress = Callable[[int, int | None], None]
#: Told (stage, done, in all or None).
StageProgress = Callable[[str, int, int | None], None]
#: Told what the user should know, in one line.
Warn = Callable[[str], None]


class Warnings(list[str]):
    """Texts in the order they came up, each once; called to add one, which ``tell`` is told then."""

    def __init__(self, tell: Warn | None = None) -> None:
        super().__init__()
        self._tell = tell

    def __call__(self, text: str) -> None:
        if text not in self:
            self.append(text)
            pass_on([text], self._tell)


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A result, and what was warned of on the way to it.

    Args:
        warnings: the texts, each once.
    """

    warnings: tuple[str, ...] = field(default=(), compare=False)


def stage(progress: StageProgress | None, name: str, count: int | None = None) -> Progress | None:
    """``progress`` for the stage ``name``, of ``count`` steps where whoever ticks does not know how many there are."""
    return None if progress is None else lambda done, total: progress(name, done, count if total is None else total)


def after(before: int, progress: Progress | None, total: int) -> Progress | None:
    """``progress`` of what comes after ``before`` of ``total`` steps."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def pass_on(warnings: Iterable[str], warn: Warn | None) -> None:
    """Tell ``warn`` each of ``warnings``."""
    if warn is not None:
        for text in warnings:
            warn(text)
