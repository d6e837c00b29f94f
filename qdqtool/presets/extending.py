"""``extends``: a preset file that says only where it differs from another."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from qdq_passes.core.toml_registry import LONGEST_FAMILY, SUFFIX, TomlFile, TomlRegistry
from qdq_passes.errors import ModelError, UsageError

#: The key that names the other preset.
EXTENDS = "extends"
#: The table of passes; in its texts ``@before`` stands for what the other preset has there.
PIPELINE = "pipeline"


def extended(
    registry: TomlRegistry, file: TomlFile, *, check: Callable[[TomlFile], object], chain: tuple[str, ...] = ()
) -> TomlFile:
    """``file`` with the keys of those that it extends where it has none; its name and origin, so that messages are about it.

    Tables are laid over key by key; in a text of passes ``@before`` stands for those of the other. A text, number, flag or
    list takes the place of the other's, an empty list takes it away. The digest of the result is that of everything it says.

    Args:
        registry: where names are looked up.
        file: the file as read.
        check: raises `ModelError` where a whole file is wrong; what is wrong with an extended file is an error about that one.
        chain: origins of the files that extend this one.

    Raises:
        ModelError: files extend one another in a circle; what is extended is no text, or there is no such preset.
    """
    name = file.data.get(EXTENDS)
    if name is None:
        return file
    if not isinstance(name, str) or not name.strip():
        raise ModelError(f"{EXTENDS!r} cannot be {name!r}", where=file.origin, hint="name one preset, or a .toml file")
    chain = (*chain, os.path.realpath(file.origin))
    try:
        base = registry.read(_beside(file, name))
    except UsageError as error:
        raise ModelError(f"{EXTENDS!r}: {error.message}", where=file.origin, hint=error.hint) from error
    if os.path.realpath(base.origin) in chain:
        circle = " → ".join(Path(origin).name for origin in (*chain, base.origin))
        raise ModelError(
            f"presets extend one another: {circle}", where=file.origin, hint="one of them stands by itself"
        )
    if len(chain) >= LONGEST_FAMILY:
        hint = "let it extend one nearer to the root"
        raise ModelError(f"{LONGEST_FAMILY} presets extend one another", where=file.origin, hint=hint)
    base = extended(registry, base, check=check, chain=chain)
    check(base)
    own = {key: value for key, value in file.data.items() if key != EXTENDS}
    own = {**own, **_with_passes_of(base, own)}
    return replace(file, data=_laid_over({k: v for k, v in base.data.items() if k != "description"}, own))


def _with_passes_of(base: TomlFile, own: Mapping[str, object]) -> dict[str, object]:
    """The table ``pipeline`` of ``own``, in which ``@before`` stands for what ``base`` has there; likewise the others."""
    given, below = own.get(PIPELINE), base.data.get(PIPELINE, {})
    if not isinstance(given, dict) or not isinstance(below, dict):
        return {}
    found = dict(given)
    for key, text in given.items():
        if isinstance(text, str):
            passes = str(below.get(key, "")).strip()
            parts = [passes if part.strip() == f"@{key}" else part for part in text.split(",")]
            found[key] = ",".join(part for part in parts if part.strip() or passes)
    return {PIPELINE: found}


def _beside(file: TomlFile, name: str) -> str:
    """A file is looked for in the folder of the one that names it."""
    return str(Path(file.origin).parent / name) if name.endswith(SUFFIX) else name


def _laid_over(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    found = dict(base)
    for key, value in own.items():
        below = found.get(key)
        if value == [] and below is not None:
            del found[key]
        else:
            found[key] = _laid_over(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return found
