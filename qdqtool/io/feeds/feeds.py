"""Feeds: the sample data that calibration, comparison and checks run a model on, in every form of ``--data``.

Streaming, re-iterable, checked: each feed holds exactly the model's inputs, in their types and shapes, without NaN or Inf."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core import budget
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.feeds.image_options import ImageOptions
from qdqtool.io.feeds.images import SUFFIXES as IMAGE_SUFFIXES
from qdqtool.io.feeds.images import image_feeds
from qdqtool.io.feeds.sample_arrays import SampleArrays
from qdqtool.io.feeds.sources import (
    DataReader,
    Part,
    RawFeed,
    Source,
    npz_folder,
    object_feeds,
    python_feeds,
    random_feeds,
)
from qdqtool.io.feeds.spec import InputSpec, conform, input_specs
from qdqtool.io.feeds.stored_array import arrays_in
from qdqtool.io.files.progress import Warn, Warnings

FORMS = "file.npz, a folder of .npz or of images, a text for a language model, module:function, or random:N[:SEED]"
#: A text as it stands; what verbs that know language models make feeds of.
TEXT_SUFFIXES = frozenset({".txt", ".md", ".text"})
#: Texts inside another format.
_RECORD_SUFFIXES = {".jsonl", ".json", ".csv", ".parquet"}
#: Random data as `--data`, and what is said of it.
RANDOM = re.compile(r"random:(?P<count>[0-9]{1,9})(?::(?P<seed>[0-9]{1,18}))?")
#: Samples from which their number is said: a file of a few bytes may hold so many.
MANY = 1_000_000
RANDOM_WARNING = "random data: ranges and figures say nothing about accuracy"
_PYTHON = re.compile(r"[^:]+:[A-Za-z_]\w*")

#: What feeds are opened from: a ``--data`` text, a path, arrays by input name, feeds, a data reader, a function giving feeds.
FeedSpec = str | os.PathLike[str] | Mapping[str, Any] | Iterable[Any] | DataReader | Callable[[], Any]


@dataclass(frozen=True)
class Opening:
    """How data were opened that can be opened again, in another process as well: files and random numbers.

    Args:
        spec: absolute path, or ``random:N:SEED``.
        samples: take the first so many.
        image: how images become arrays.
        is_path: whether ``spec`` is a path.
        part: of these samples.
    """

    spec: str
    samples: int | None
    image: ImageOptions | None
    is_path: bool
    part: Part | None = None

    def open(self, inputs: Sequence[InputSpec]) -> Feeds:
        """The feeds once more, see `open_feeds`."""
        return open_feeds(self.spec, inputs, samples=self.samples, image=self.image, part=self.part)


class Feeds:
    """Feeds of one model. Each iteration starts anew and yields dicts of arrays, one at a time.

    Args:
        source: where they come from.
        inputs: what the model wants.
        samples: take the first so many; None takes all.
        warnings: collects what may be a mistake in the data, while feeds are read.
        extras: feeds also hold what the data has beside the inputs (labels, boxes), as it is.
        opening: how another process can open them; None where it cannot.
    """

    def __init__(
        self,
        source: Source,
        inputs: Sequence[InputSpec],
        *,
        samples: int | None = None,
        warnings: Warnings | None = None,
        extras: bool = False,
        opening: Opening | None = None,
    ) -> None:
        self.opening = opening
        self._source = source
        self._samples = samples
        self._extras = extras
        self.inputs: tuple[InputSpec, ...] = tuple(inputs)
        self.warnings = Warnings() if warnings is None else warnings

    @property
    def count(self) -> int | None:
        """How many feeds there are; None when only reading tells."""
        known = [n for n in (self._source.count, self._samples) if n is not None]
        return min(known) if self._source.count is not None else None

    def __iter__(self) -> Iterator[dict[str, Array]]:
        found = False
        for label, raw in itertools.islice(self._source.read(), self._samples):
            found = True
            yield self.checked(raw, label)
        if not found:
            raise UsageError("the data holds no sample", hint=f"--data takes {FORMS}")

    @property
    def source(self) -> Source:
        """Where they come from: feeds that nobody has checked yet, those beyond ``samples`` as well."""
        return self._source

    def checked(self, raw: Any, label: str) -> dict[str, Array]:
        """A feed of `source` as the model wants it.

        Args:
            raw: the feed.
            label: which it is, for messages.

        Raises:
            UsageError: it lacks an input, or one does not fit.
            ModelError: it holds NaN or Inf.
        """
        if not isinstance(raw, Mapping):
            if len(self.inputs) != 1:
                raise UsageError(f"{label} is a {type(raw).__name__}", hint="yield a dict of arrays by input name")
            raw = {self.inputs[0].name: raw}
        missing = [spec.name for spec in self.inputs if spec.name not in raw]
        if missing:
            raise UsageError(
                f"{label} lacks {', '.join(missing)}", hint=f"it has {', '.join(map(str, raw)) or 'nothing'}"
            )
        feed = {spec.name: conform(raw[spec.name], spec, label=label, warn=self.warnings) for spec in self.inputs}
        budget.brought(**{"drawn" if self._source.is_drawn else "feed": sum(array.nbytes for array in feed.values())})
        if self._extras:
            feed |= {str(name): np.asarray(array) for name, array in raw.items() if name not in feed}
        return feed

    def sha256(self) -> str:
        """Fingerprint of all feeds in order (reads them once); see `qdqtool.io.feeds.hashes`."""
        chain = EMPTY
        for feed in self:
            chain = add_feed(chain, feed)
        return chain


def open_feeds(
    spec: FeedSpec,
    inputs: Sequence[InputSpec],
    *,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    extras: bool = False,
    part: Part | None = None,
) -> Feeds:
    """Open sample data for a model.

    Args:
        spec: a text as ``--data`` takes it, a path, a dict of arrays (first axis = samples), an iterable of dicts, a
            function that gives one, or an onnxruntime ``CalibrationDataReader``.
        inputs: what the model wants, from `input_specs`.
        samples: take the first so many feeds.
        seed: for ``random:N`` without a seed of its own.
        image: how images become arrays; default: `ImageOptions()`.
        extras: feeds also hold the arrays of the data that are no inputs: labels that a metric judges by. In an ``.npz`` they are
            cut as the inputs are, see `qdqtool.io.feeds.sample_arrays`.
        part: of the first ``samples`` those that are held out, or the others; None for all.

    Raises:
        UsageError: no such data, or it does not fit the model.
        ModelError: a file is broken.
        SetupError: images without Pillow.
    """
    if samples is not None and samples < 1:
        raise UsageError(f"{samples} samples", hint="--samples takes a number from 1")
    if isinstance(spec, Feeds):
        if samples is None and not extras and part is None:
            return spec
        taken = spec._samples if samples is None else samples
        opening = None if spec.opening is None or extras else replace(spec.opening, samples=taken, part=part)
        if part is not None:
            return Feeds(part.of(spec._source, taken), inputs, warnings=spec.warnings, extras=extras, opening=opening)
        return Feeds(spec._source, inputs, samples=taken, warnings=spec.warnings, extras=extras, opening=opening)
    warnings = Warnings()
    source = _source(spec, inputs, warnings, seed, image or ImageOptions(), extras=extras)
    if samples is None and source.count is not None and source.count >= MANY:
        warnings(f"the data hold {source.count:,} samples: take the first with --samples N")
    opening = None if extras else _opening(spec, samples, seed, image)
    if part is not None:
        opening = None if opening is None else replace(opening, part=part)
        return Feeds(part.of(source, samples), inputs, warnings=warnings, extras=extras, opening=opening)
    return Feeds(source, inputs, samples=samples, warnings=warnings, extras=extras, opening=opening)


def _opening(spec: FeedSpec, samples: int | None, seed: int, image: ImageOptions | None) -> Opening | None:
    if not isinstance(spec, str | os.PathLike):
        return None
    text = os.fspath(spec)
    drawn = RANDOM.fullmatch(text)
    if drawn:
        return Opening(f"random:{drawn['count']}:{drawn['seed'] or seed}", samples, image, is_path=False)
    return Opening(os.path.abspath(text), samples, image, is_path=True) if os.path.exists(text) else None


def _source(
    spec: FeedSpec, inputs: Sequence[InputSpec], warn: Warn, seed: int, image: ImageOptions, *, extras: bool
) -> Source:
    if isinstance(spec, Mapping):
        arrays = {str(name): np.asarray(array) for name, array in spec.items()}
        return _sample_source(SampleArrays(arrays, inputs, where="data", warn=warn, extras=extras))
    if not isinstance(spec, str | os.PathLike):
        return object_feeds(spec, where="data")
    text = os.fspath(spec)
    drawn = RANDOM.fullmatch(text)
    if drawn:
        warn(RANDOM_WARNING)
        return random_feeds(int(drawn["count"]), int(drawn["seed"] or seed), inputs)
    path = Path(text)
    if os.path.isdir(text):  # not of `path`: that raises where a name is too long
        return _folder(path, inputs, warn, image, extras=extras)
    if os.path.isfile(text):
        return _file(path, inputs, warn, extras=extras)
    if _PYTHON.fullmatch(text):
        return python_feeds(text)
    raise UsageError("no such file or folder", where=f"--data {text}", hint=f"--data takes {FORMS}")


def _file(path: Path, inputs: Sequence[InputSpec], warn: Warn, *, extras: bool) -> Source:
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy"):
        arrays = SampleArrays(arrays_in(path), inputs, where=str(path), warn=warn, extras=extras)
        return _sample_source(arrays)
    if suffix in TEXT_SUFFIXES:
        hint = "give it to quantize, calibrate or compare of a decoder, or tokenize it into an .npz of input_ids"
        raise UnsupportedError("a text is data of language models", where=f"--data {path}", hint=hint)
    if suffix in _RECORD_SUFFIXES:
        raise UnsupportedError(
            "a text inside another format", where=f"--data {path}", hint="write the text itself into a .txt file"
        )
    raise UsageError(
        f"unknown kind of file {suffix or path.name!r}", where=f"--data {path}", hint=f"--data takes {FORMS}"
    )


def _folder(path: Path, inputs: Sequence[InputSpec], warn: Warn, image: ImageOptions, *, extras: bool) -> Source:
    arrays = sorted(p for p in path.iterdir() if p.suffix.lower() == ".npz")
    images = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith("."))
    if bool(arrays) == bool(images):
        found = "both .npz files and images" if arrays else "neither .npz files nor images"
        hint = f"images are {', '.join(sorted(IMAGE_SUFFIXES))}"
        raise UsageError(f"the folder holds {found}", where=f"--data {path}", hint=hint)
    if arrays:
        return npz_folder(arrays, inputs, warn, extras=extras)
    return image_feeds(images, inputs, image, warn)


def _sample_source(arrays: SampleArrays) -> Source:
    return Source(lambda: iter(arrays), arrays.count)


__all__ = ["FORMS", "FeedSpec", "Feeds", "ImageOptions", "InputSpec", "Opening", "input_specs", "open_feeds"]


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
