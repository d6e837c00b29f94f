"""Named inputs of a pipeline (``@ranges``, ``@encodings``): what they are bound to, and which file that came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class NamedInput:
    """A value that a pipeline reads by name.

    Args:
        value: what the passes get.
        sha256: hex SHA-256 of its content, for provenance and edit scripts.
        file: where it was read.
    """

    value: Any
    sha256: str
    file: str


NamedInputs = Mapping[str, NamedInput]
