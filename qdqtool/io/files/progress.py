"""How long work tells how far it is: through a function that it is given."""

from __future__ import annotations

from collections.abc import Callable

#: Told (samples done, samples in all or None).
Progress = Callable[[int, int | None], None]
#: Told (stage, done, in all or None).
StageProgress = Callable[[str, int, int | None], None]
