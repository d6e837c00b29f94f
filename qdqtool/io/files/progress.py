"""How long work tells how far it is, and warns: through functions that it is given."""

from __future__ import annotations

from collections.abc import Callable

#: Told (samples done, samples in all or None).
Progress = Callable[[int, int | None], None]
#: Told (stage, done, in all or None).
StageProgress = Callable[[str, int, int | None], None]
#: Told what the user should know, in one line.
Warn = Callable[[str], None]
