"""Selectors that match one name and nothing else."""

from __future__ import annotations

import re


def literal(name: str) -> str:
    """The selector that matches this node name alone."""
    if name.startswith(("!", "-")) or ":" in name:
        return f"re:^{re.escape(name)}$"
    return re.sub(r"([*?[])", r"[\1]", name).replace("&", r"\&")
