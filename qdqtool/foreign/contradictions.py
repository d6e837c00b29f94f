"""Options that contradict each other, the scales, or options of ours: refused, with the reason and a way out (`keys.toml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from fnmatch import fnmatchcase

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError, UnsupportedError, UsageError

from qdqtool.foreign.options import OPTIONS, option_named, table


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """What is not said together.

    Args:
        when: key, or a glob of keys → what is said there: a value, a glob of texts, ``default``, or several of these.
        unless: what makes it none where one entry holds.
        what: what contradicts, in one line.
        way_out: what the user may do.
        error: class of the error.
    """

    when: Mapping[str, object]
    what: str
    way_out: str
    unless: Mapping[str, object] = field(default_factory=dict)
    error: type[QdqError] = UsageError

    def check(self, facts: Mapping[str, object]) -> None:
        """Raise an error if ``facts`` (key → what is said there, or comes of it) hold the contradiction."""
        keys = [_holding(key, pattern, facts) for key, pattern in self.when.items()]
        if None in keys or any(_holding(key, pattern, facts) for key, pattern in self.unless.items()):
            return
        words = {**facts, "option": next((option_named(key) for key in keys if key in _FILLED), "")}
        raise self.error(_filled(self.what, words), hint=_filled(self.way_out, words))


_FILLED = {option.fills for option in OPTIONS.values()}


def refuse(facts: Mapping[str, object]) -> None:
    """Raise the first contradiction there is.

    Args:
        facts: key → value: what is said, and what `keys.toml` names beside it.

    Raises:
        UsageError: options that contradict each other or the scales.
        UnsupportedError: a combination that the other tools do otherwise.
    """
    for contradiction in CONTRADICTIONS:
        contradiction.check(facts)


def _holding(key: str, pattern: object, facts: Mapping[str, object]) -> str | None:
    """The first name in ``facts`` that ``key`` means and ``pattern`` holds for."""
    names = [name for name in facts if fnmatchcase(name, key)]
    return next((name for name in names if _holds(pattern, name, facts)), None)


def _holds(pattern: object, key: str, facts: Mapping[str, object]) -> bool:
    if isinstance(pattern, list):
        return any(_holds(one, key, facts) for one in pattern)
    if pattern == "default":
        return any(option.default == facts[key] for option in OPTIONS.values() if option.fills == key)
    if isinstance(pattern, str):
        return fnmatchcase(str(facts[key]), _filled(pattern, facts))
    return facts[key] == pattern


def _filled(text: str, words: Mapping[str, object]) -> str:
    return re.sub(r"\{(.+?)\}", lambda match: str(words[match[1]]), text)


def _read() -> tuple[Contradiction, ...]:
    groups = [group for name, group in table("keys").items() if name != "keys"]
    return tuple(
        Contradiction(
            when=group.get("when", {}) | row["when"],
            unless=row.get("unless", {}),
            what=group.get("what", "{what}").replace("{what}", row["what"]),
            way_out=row.get("way_out", group.get("way_out", "")).replace("{what}", row["what"]),
            error=UnsupportedError if group.get("has_no_equivalent") else UsageError,
        )
        for group in groups
        for row in group["rows"]
    )


CONTRADICTIONS = _read()
