"""Tell how far work is, and warn, through functions that the caller gives.

Where it gives none, nothing is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: Told (samples done, samples in all or None).
Progress = Callable[[int, int | None], None]
#: Told (stage, done, in all or None).
StageProgress = Callable[[str, int, int | None], None]
#: Told what the user should know, in one line.
Warn = Callable[[str], None]


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
