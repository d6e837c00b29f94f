"""Which samples of ``--data`` are kept to judge on: what was learned from says nothing of samples that come afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from qdq_passes.errors import UsageError

from qdqtool.io.feeds.feeds import Feeds, FeedSpec
from qdqtool.io.feeds.sources import DataReader, object_feeds
from qdqtool.verbs.planned import Planned

#: Of so many samples one is held out; of few samples more, down to every second, so that there are so many to judge on.
HELD_OUT, ENOUGH = 4, 16
#: Fewer samples than that tell nothing of others.
LEAST = 4

T = TypeVar("T")


def learns(asked: Planned) -> bool:
    """Whether weights are fitted to what the model computes on the samples, beside ranges."""
    recovery = asked.over(asked.loaded_preset().recovery)
    return bool(recovery.round_weights or recovery.learn_rounding or recovery.tune_weights)


def held_out(said: int | None, feeds: Feeds, enough: int = ENOUGH) -> int:
    """Of how many samples one is held out where that is needed: as ``said``, else of `HELD_OUT`, or of fewer where these
    would not be ``enough``.

    Raises:
        UsageError: there are too few.
    """
    count = feeds.count
    every = said if said is not None else HELD_OUT if count is None else min(HELD_OUT, max(2, count // enough))
    if said == 0:
        raise UsageError("--hold-out 0 leaves no samples to judge on", hint="leave it out, or give --eval-data")
    if every < 2:
        raise UsageError(f"--hold-out {every}: expected 0 or a number from 2")
    if count is not None and count < every:
        raise UsageError(
            f"to hold out one sample of {every} takes {every} samples, --data has {count}",
            hint="give more as --data; `deploy` and --goal also take --eval-data",
        )
    return every


def again_and_again(data: FeedSpec) -> FeedSpec:
    """``data``; held in memory where a reader or an iterator gives them only once."""
    is_once = isinstance(data, DataReader | Iterator) and not isinstance(data, type)
    return [feed for _, feed in object_feeds(data, where="--data").read()] if is_once else data


def apart(samples: Sequence[T], count: int | None) -> tuple[list[T], list[T]]:
    """Of ``samples`` those to choose by, ``count`` at most, and those that the figure of the chosen one is of.

    These are every second, or every third where there is no ``count``; none where they would be fewer than `LEAST`."""
    found, every = list(samples if count is None else samples[: 2 * count]), 3 if count is None else 2
    kept = found[every - 1 :: every]
    if len(kept) < LEAST:
        return found[:count], []
    return [each for at, each in enumerate(found) if at % every != every - 1], kept
