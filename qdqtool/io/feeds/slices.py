"""Slices of feeds: those from one number to another, without going through the data more often than their form asks for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.feeds.sources import RawFeed


class Slices:
    """Slices of ``feeds``, asked for in rising order: then the data are read once. What stands before a slice is not checked, and
    where every feed has a file of its own not read."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._rest: Iterator[tuple[str, RawFeed]] = iter(())
        self._next: int | None = None

    @property
    def warnings(self) -> list[str]:
        """What may be a mistake in the data read so far."""
        return self._feeds.warnings

    def take(self, first: int, count: int) -> Iterator[dict[str, Array]]:
        """Feeds ``first`` to ``first + count - 1``, or those of them that there are."""
        for label, raw in itertools.islice(self._from(first), count):
            if self._next is not None:
                self._next += 1
            yield self._feeds.checked(raw, label)

    def _from(self, first: int) -> Iterator[tuple[str, RawFeed]]:
        source = self._feeds.source
        if source.read_from is not None:
            return source.read_from(first)
        if self._next is None or first < self._next:
            self._rest, self._next = source.read(), 0
        for _ in itertools.islice(self._rest, first - self._next):
            self._next += 1
        return self._rest
