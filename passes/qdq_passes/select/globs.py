"""Globs of names: what one matches, and the selector that one name alone matches, for tools that write selectors.

``*`` stands for any letters, ``/`` among them, ``?`` for one, ``[…]`` for one of several; ``&`` binds selectors, and is written
``\\&`` where it is meant itself."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable


def matcher(glob: str) -> Callable[[str], bool]:
    """Whether a name is as ``glob`` says, capitals apart from small letters."""
    pattern = re.compile(fnmatch.translate(glob))
    return lambda name: pattern.match(name) is not None


def literal(name: str) -> str:
    """The selector that matches this node name and nothing else."""
    if name.startswith(("!", "-")) or ":" in name:
        return f"re:^{re.escape(name)}$"
    return _glob(name)


def literal_tensor(name: str) -> str:
    """The selector that matches the value of this name and nothing else."""
    return f"tensor:{_glob(name)}"


def _glob(name: str) -> str:
    """The glob of this name alone; blanks at its ends are not taken for those around a selector."""
    return re.sub(r"[*?[]|^\s|\s$", r"[\g<0>]", name).replace("&", r"\&")
