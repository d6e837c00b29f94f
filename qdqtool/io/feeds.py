"""Feeds: the sample data that calibration, comparison and checks run a model on, in every form of ``--data``.

Streaming, re-iterable, checked: each feed holds exactly the model's inputs, in their types and shapes, without NaN or Inf."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from qdq_passes.errors import UnsupportedError, UsageError

from qdqtool.io.feed_hash import EMPTY, add_feed
from qdqtool.io.feed_sources import DataReader, Source, npz_folder, object_feeds, python_feeds, random_feeds
from qdqtool.io.feed_spec import Array, InputSpec, Warn, conform, input_specs
from qdqtool.io.images import SUFFIXES as IMAGE_SUFFIXES
from qdqtool.io.images import ImageOptions, image_feeds
from qdqtool.io.npz_feeds import SampleArrays
from qdqtool.io.stored_array import arrays_in

FORMS = "file.npz, a folder of .npz or of images, module:function, or random:N[:SEED]"
_TEXT_SUFFIXES = {".txt", ".jsonl", ".json", ".md", ".text"}
_RANDOM = re.compile(r"random:(?P<count>\d+)(?::(?P<seed>\d+))?")
_PYTHON = re.compile(r"[^:]+:[A-Za-z_]\w*")

#: What feeds are opened from: a ``--data`` text, a path, arrays by input name, feeds, a data reader, a function giving feeds.
FeedSpec = str | os.PathLike[str] | Mapping[str, Any] | Iterable[Any] | DataReader | Callable[[], Any]


class Warnings(list[str]):
    """Texts in the order they came up, each once; called to add one."""

    def __call__(self, text: str) -> None:
        if text not in self:
            self.append(text)


class Feeds:
    """Feeds of one model. Each iteration starts anew and yields dicts of arrays, one at a time.

    Args:
        source: where they come from.
        inputs: what the model wants.
        samples: take the first so many; None takes all.
        warnings: collects what may be a mistake in the data, while feeds are read.
    """

    def __init__(
        self,
        source: Source,
        inputs: Sequence[InputSpec],
        *,
        samples: int | None = None,
        warnings: Warnings | None = None,
    ) -> None:
        self._source = source
        self._samples = samples
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
            yield self._checked(raw, label)
        if not found:
            raise UsageError("the data holds no sample", hint=f"--data takes {FORMS}")

    def _checked(self, raw: Any, label: str) -> dict[str, Array]:
        if not isinstance(raw, Mapping):
            if len(self.inputs) != 1:
                raise UsageError(f"{label} is a {type(raw).__name__}", hint="yield a dict of arrays by input name")
            raw = {self.inputs[0].name: raw}
        missing = [spec.name for spec in self.inputs if spec.name not in raw]
        if missing:
            raise UsageError(
                f"{label} lacks {', '.join(missing)}", hint=f"it has {', '.join(map(str, raw)) or 'nothing'}"
            )
        return {spec.name: conform(raw[spec.name], spec, label=label, warn=self.warnings) for spec in self.inputs}

    def sha256(self) -> str:
        """Fingerprint of all feeds in order (reads them once); see `qdqtool.io.feed_hash`."""
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
) -> Feeds:
    """Open sample data for a model.

    Args:
        spec: a text as ``--data`` takes it, a path, a dict of arrays (first axis = samples), an iterable of dicts, a
            function that gives one, or an onnxruntime ``CalibrationDataReader``.
        inputs: what the model wants, from `input_specs`.
        samples: take the first so many feeds.
        seed: for ``random:N`` without a seed of its own.
        image: how images become arrays; default: `ImageOptions()`.

    Raises:
        UsageError: no such data, or it does not fit the model.
        ModelError: a file is broken.
        SetupError: images without Pillow.
    """
    if samples is not None and samples < 1:
        raise UsageError(f"{samples} samples", hint="--samples takes a number from 1")
    if isinstance(spec, Feeds):
        return spec if samples is None else Feeds(spec._source, inputs, samples=samples, warnings=spec.warnings)
    warnings = Warnings()
    source = _source(spec, inputs, warnings, seed, image or ImageOptions())
    return Feeds(source, inputs, samples=samples, warnings=warnings)


def _source(spec: FeedSpec, inputs: Sequence[InputSpec], warn: Warn, seed: int, image: ImageOptions) -> Source:
    if isinstance(spec, Mapping):
        arrays = {str(name): np.asarray(array) for name, array in spec.items()}
        return _sample_source(SampleArrays(arrays, inputs, where="data", warn=warn))
    if not isinstance(spec, str | os.PathLike):
        return object_feeds(spec, where="data")
    text = os.fspath(spec)
    drawn = _RANDOM.fullmatch(text)
    if drawn:
        warn("random data: ranges and figures say nothing about accuracy")
        return random_feeds(int(drawn["count"]), int(drawn["seed"] or seed), inputs)
    path = Path(text)
    if path.is_dir():
        return _folder(path, inputs, warn, image)
    if path.is_file():
        return _file(path, inputs, warn)
    if _PYTHON.fullmatch(text):
        return python_feeds(text)
    raise UsageError("no such file or folder", where=f"--data {text}", hint=f"--data takes {FORMS}")


def _file(path: Path, inputs: Sequence[InputSpec], warn: Warn) -> Source:
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy"):
        arrays = SampleArrays(arrays_in(path), inputs, where=str(path), warn=warn)
        return _sample_source(arrays)
    if suffix in _TEXT_SUFFIXES:
        hint = "tokenize it into an .npz of input_ids"
        raise UnsupportedError("text calibration data comes with language models", where=f"--data {path}", hint=hint)
    raise UsageError(
        f"unknown kind of file {suffix or path.name!r}", where=f"--data {path}", hint=f"--data takes {FORMS}"
    )


def _folder(path: Path, inputs: Sequence[InputSpec], warn: Warn, image: ImageOptions) -> Source:
    arrays = sorted(p for p in path.iterdir() if p.suffix.lower() == ".npz")
    images = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith("."))
    if bool(arrays) == bool(images):
        found = "both .npz files and images" if arrays else "neither .npz files nor images"
        hint = f"images are {', '.join(sorted(IMAGE_SUFFIXES))}"
        raise UsageError(f"the folder holds {found}", where=f"--data {path}", hint=hint)
    if arrays:
        return npz_folder(arrays, inputs, warn)
    return image_feeds(images, inputs, image, warn)


def _sample_source(arrays: SampleArrays) -> Source:
    return Source(lambda: iter(arrays), arrays.count)


__all__ = ["FORMS", "FeedSpec", "Feeds", "ImageOptions", "InputSpec", "input_specs", "open_feeds"]
