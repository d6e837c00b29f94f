"""What a commit changed against what has landed, where that is known."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tests.extra.part import ROOT

#: The branch that commits land on.
LANDED = "origin/main"


def changed_files() -> list[str] | None:
    """Files that differ from the last commit that landed, or are not committed; None where nobody can say."""
    base, head = _git("merge-base", LANDED, "HEAD"), _git("rev-parse", "HEAD")
    if base is None or head is None or base == head:
        return None
    return changed_since(base[0])


def changed_since(commit: str) -> list[str] | None:
    """Return the files that differ from where this branch left ``commit``, or are not committed; None if git does not know it."""
    base = _git("merge-base", commit, "HEAD")
    if base is None:
        return None
    tracked, present = _git("diff", "--name-only", base[0]), _git("ls-files", "--others", "--exclude-standard")
    return None if tracked is None or present is None else [*tracked, *present]


def is_touched(sources: Iterable[str], changed: list[str] | None) -> bool:
    """Whether one of ``sources``, beginnings of paths, is among what changed; unknown counts as touched, and so does no source."""
    starts = tuple(sources)
    return changed is None or not starts or any(file.startswith(starts) for file in changed)


def _git(*arguments: str) -> list[str] | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else None
