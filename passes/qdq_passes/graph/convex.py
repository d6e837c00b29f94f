"""Convex groups: which items of a graph can run as one, so that no path leaves a group and comes back.

Each item has a level, which never falls along an edge: even for items that are taken, odd for others,

    level(i) = the least L ≥ max(level of what i reads, −1) of its parity

A path between two items of one level stays on that level, so every connected part of a level is convex; and as levels only rise,
groups do not wait for each other in a circle. A part whose readers all stand on later levels is raised to the first of them that
holds a group it can join. Time is linear in items and edges, and nothing is random."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


def convex_groups(before: Sequence[Iterable[int]], taken: Sequence[bool]) -> list[int | None]:
    """The group of each item that is taken, None of others; groups are numbered from 0 in the order of their first items.

    Args:
        before: per item, in topological order, the items it reads.
        taken: which items are to be in groups.
    """
    levels = _levels(before, taken)
    parts = DisjointSets(range(len(taken)))
    for item, read in enumerate(before):
        for other in read:
            if taken[item] and levels[item] == levels[other]:
                parts.join(other, item)
    _raise_parts(before, taken, levels, parts)
    numbers: dict[int, int] = {}
    return [
        numbers.setdefault(parts.root(item), len(numbers)) if is_taken else None for item, is_taken in enumerate(taken)
    ]


def _levels(before: Sequence[Iterable[int]], taken: Sequence[bool]) -> list[int]:
    levels: list[int] = []
    for item, read in enumerate(before):
        least = max((levels[other] for other in read), default=-1)
        levels.append(least + ((least % 2 == 0) != taken[item]))
    return levels


def _raise_parts(
    before: Sequence[Iterable[int]], taken: Sequence[bool], levels: list[int], parts: DisjointSets[int]
) -> None:
    """Raise each part to the first level of its readers, where one that is taken stands on it; the last parts first."""
    readers: list[list[int]] = [[] for _ in taken]
    for item, read in enumerate(before):
        for other in read:
            readers[other].append(item)
    members: dict[int, list[int]] = {}
    for item, is_taken in enumerate(taken):
        if is_taken:
            members.setdefault(parts.root(item), []).append(item)
    for part in sorted(members.values(), key=lambda items: (-levels[items[0]], items[0])):
        outside = [reader for item in part for reader in readers[item] if levels[reader] > levels[part[0]]]
        first = min((levels[reader] for reader in outside), default=-1)
        joined = [reader for reader in outside if levels[reader] == first and taken[reader]]
        if joined:
            for item in part:
                levels[item] = first
            for reader in joined:
                parts.join(part[0], reader)


def joined_siblings(before: Sequence[Iterable[int]], groups: Sequence[int | None]) -> list[int | None]:
    """``groups``, those that wait for the same items made one; numbered from 0 in the order of their first items.

        norm → {q}, {k}, {v} → attention          becomes          norm → {q, k, v} → attention

    It is still convex, and nothing waits in a circle: what one of several siblings waits for, all do, so that a circle through
    two of them would have been one through either. None begins later than alone. Groups that wait for nothing stay as they are.

    Args:
        before: per item, in topological order, the items it reads.
        groups: the group of each item, from `convex_groups`.
    """
    awaited: dict[int, set[int]] = {}
    for item, group in enumerate(groups):
        if group is not None:
            awaited.setdefault(group, set()).update(other for other in before[item] if groups[other] != group)
    first: dict[frozenset[int], int] = {}
    sibling = {group: first.setdefault(frozenset(read), group) if read else group for group, read in awaited.items()}
    numbers: dict[int, int] = {}
    return [None if group is None else numbers.setdefault(sibling[group], len(numbers)) for group in groups]


class DisjointSets(Generic[T]):
    """Items that are joined to sets; at first each is alone, and so is one that was never named."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._above = {item: item for item in items}

    def __contains__(self, item: object) -> bool:
        return item in self._above

    def root(self, item: T) -> T:
        """The item that stands for the set of ``item``."""
        above = self._above
        while (higher := above.get(item, item)) != item:
            above[item] = above.get(higher, higher)
            item = above[item]
        return item

    def join(self, one: T, other: T) -> None:
        """Make one set of two."""
        self._above[self.root(other)] = self.root(one)

    def groups(self) -> list[list[T]]:
        """The sets, in the order of their first items."""
        found: dict[T, list[T]] = {}
        for item in self._above:
            found.setdefault(self.root(item), []).append(item)
        return list(found.values())
