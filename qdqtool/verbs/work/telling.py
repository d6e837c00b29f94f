"""How a verb tells its caller where it is and what is likely a mistake."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.io.files.progress import Progress, StageProgress, Warn


def stage(progress: StageProgress | None, name: str, count: int | None = None) -> Progress | None:
    """``progress`` for the stage ``name``, of ``count`` steps where whoever ticks does not know how many there are."""
    return None if progress is None else lambda done, total: progress(name, done, count if total is None else total)


def pass_on(warnings: Iterable[str], warn: Warn | None) -> None:
    """Tell ``warn`` each of ``warnings``."""
    if warn is not None:
        for text in warnings:
            warn(text)
