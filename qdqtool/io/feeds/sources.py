"""Where feeds come from: folders of ``.npz``, Python functions and readers, random numbers. Each can be read again.

Sources yield ``(label, feed)`` with the feed as found; `qdqtool.io.feeds.feeds` checks it against the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core import budget
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.sample_arrays import pick_arrays
from qdqtool.io.feeds.spec import InputSpec, is_float
from qdqtool.io.feeds.stored_array import arrays_in
from qdqtool.io.files.progress import Warn
from qdqtool.io.files.python_objects import import_object

RawFeed = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Feeds that can be read any number of times.

    Args:
        read: starts a new reading; yields a label for messages and the feed.
        count: how many there are, None when only reading tells.
        read_from: starts a reading at feed number so and so without going through those before; None where there is no way.
        is_drawn: whether they are random numbers, as large as the model says.
    """

    read: Callable[[], Iterator[tuple[str, RawFeed]]]
    count: int | None = None
    read_from: Callable[[int], Iterator[tuple[str, RawFeed]]] | None = None
    is_drawn: bool = False


@dataclass(frozen=True)
class Part:
    """A part of the samples: every so-many-th, which is held out, or the others.

    Args:
        every: of so many samples the last is held out.
        is_held_out: whether it is those.
    """

    every: int
    is_held_out: bool

    def of(self, source: Source, samples: int | None) -> Source:
        """This part of the first ``samples`` of ``source``; None of all."""
        every, count = self.every, source.count
        count = count if samples is None or count is None else min(count, samples)

        def read() -> Iterator[tuple[str, RawFeed]]:
            for at, found in enumerate(itertools.islice(source.read(), samples)):
                if (at % every == every - 1) == self.is_held_out:
                    yield found

        held = None if count is None else count // every
        return Source(
            read, held if self.is_held_out or held is None or count is None else count - held, None, source.is_drawn
        )


@runtime_checkable
class DataReader(Protocol):
    """What onnxruntime calls a ``CalibrationDataReader``; ``rewind`` is optional there."""

    def get_next(self) -> RawFeed | None:
        """The next feed, None at the end."""


def npz_folder(files: Sequence[Path], inputs: Sequence[InputSpec], warn: Warn, *, extras: bool = False) -> Source:
    """One feed per ``.npz``, in the order given; with ``extras`` also what the file holds beside the inputs."""

    def read(start: int = 0) -> Iterator[tuple[str, RawFeed]]:
        for file in files[start:]:
            yield file.name, pick_arrays(arrays_in(file), inputs, where=str(file), warn=warn, extras=extras)

    return Source(read, len(files), read)


def random_feeds(count: int, seed: int, inputs: Sequence[InputSpec]) -> Source:
    """Standard normal floats, bytes over their full range, 0 or 1 for other integers (indices?); dynamic sizes are 1."""

    def draw(generator: np.random.Generator, spec: InputSpec) -> Array:
        shape = tuple(d if isinstance(d, int) else 1 for d in spec.shape or ())
        if is_float(spec.dtype):
            return generator.standard_normal(shape, np.float32).astype(spec.dtype)
        if spec.dtype in (np.uint8, np.int8):
            limits = np.iinfo(spec.dtype)
            return generator.integers(limits.min, limits.max, shape, endpoint=True).astype(spec.dtype)
        return generator.integers(0, 2, shape).astype(spec.dtype)

    def read() -> Iterator[tuple[str, RawFeed]]:
        for spec in inputs:
            elements = math.prod(d if isinstance(d, int) else 1 for d in spec.shape or ())
            size = elements * np.dtype(spec.dtype).itemsize
            budget.demand(size, "a random sample of it", where=f"input {spec.name!r}", least=budget.LEAST // 4)
        generator = np.random.default_rng(seed)
        for index in range(count):
            yield f"random sample {index}", {spec.name: draw(generator, spec) for spec in inputs}

    return Source(read, count, is_drawn=True)


def python_feeds(text: str) -> Source:
    """``module:function`` or ``file.py:function``; the current folder is searched too.

    Raises:
        UsageError: there is no such module or function, or it fails.
    """
    where = f"--data {text}"
    return object_feeds(import_object(text, where=where), where=where)


def object_feeds(made_by: Any, *, where: str) -> Source:
    """Feeds of a Python object: a data reader, an iterable of feeds, or a function or class that makes one of these.

    A generator object can be read once only: give the function that makes it.
    """
    once = False

    def read() -> Iterator[tuple[str, RawFeed]]:
        nonlocal once
        is_factory = isinstance(made_by, type) or (callable(made_by) and not isinstance(made_by, DataReader))
        feeds = _call(made_by, where) if is_factory else made_by
        if not is_factory and once and not _rewind(made_by):
            raise UsageError(
                "the feeds can be read only once", where=where, hint="give a list, or a function that yields them"
            )
        once = True
        for index, feed in enumerate(_guard(_items(feeds, where), where)):
            yield f"sample {index}", feed

    return Source(read, _length(made_by))


def _call(factory: Callable[[], Any], where: str) -> Any:
    try:
        return factory()
    except QdqError:
        raise
    except Exception as error:
        raise UsageError(f"calling it fails: {type(error).__name__}: {error}", where=where) from error


def _items(feeds: Any, where: str) -> Iterator[Any]:
    if isinstance(feeds, DataReader):
        return iter(feeds.get_next, None)
    if isinstance(feeds, Iterable) and not isinstance(feeds, str | bytes | Mapping):
        return iter(feeds)
    raise UsageError(
        f"it gives {type(feeds).__name__}, not feeds", where=where, hint="yield one dict of arrays per feed"
    )


def _guard(feeds: Iterator[Any], where: str) -> Iterator[Any]:
    """``feeds``, with a failure inside them reported as theirs."""
    while True:
        try:
            feed = next(feeds)
        except StopIteration:
            return
        except QdqError:
            raise
        except Exception as error:
            raise UsageError(f"yielding a feed fails: {type(error).__name__}: {error}", where=where) from error
        yield feed


def _rewind(feeds: Any) -> bool:
    """Start ``feeds`` anew where that is possible."""
    if isinstance(feeds, DataReader):
        rewind = getattr(feeds, "rewind", None)
        if rewind is not None:
            rewind()
        return rewind is not None
    return iter(feeds) is not feeds


def _length(feeds: Any) -> int | None:
    try:
        return len(feeds)
    except (TypeError, NotImplementedError):
        return None
