"""What the layers of a model are fed: magnitudes, means and second moments of each layer's input, as a record and as a file.

The passes of the recover family read them as ``@statistics``. Magnitudes are of the model before smoothing, means and moments of
the one behind it; one record holds both. A layer of K numbers a vector (C/g·Πk of a convolution) has a moment of 4·G·K² bytes;
layers that read the same value share it. A record that was read from a file holds one layer in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.documents import sha256_in, typed
from qdq_passes.numerics.moments import LayerStatistics, merged

from qdqtool.io.feeds.array_store import ArrayFile, ArrayWriter, hash_of, writing_arrays
from qdqtool.io.feeds.hashes import join
from qdqtool.io.files.artifacts import sha256_of_json

KIND, VERSION = "statistics", 1
_FIELDS = {field.name for field in fields(LayerStatistics)}


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What was seen of the layers' inputs.

    Args:
        layers: layer's node name → what was seen; a file's are read when they are asked for.
        samples: number of feeds.
        model_sha256: fingerprint of the model that ran.
        data_sha256: fingerprint of the feeds, see `qdqtool.io.feeds.hashes`.
        sha256: hex SHA-256 of all that the layers hold.
    """

    layers: Mapping[str, LayerStatistics]
    samples: int
    model_sha256: str
    data_sha256: str
    sha256: str

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write them as ``.npz``, one layer in memory at a time.

        Raises:
            UsageError: the file exists and ``overwrite`` is off, or the place cannot be written.
        """
        with writing_arrays(path, overwrite=overwrite) as writer:
            entries = Entries(writer)
            for name in sorted(self.layers):
                entries.add(name, self.layers[name])
            entries.finish(samples=self.samples, model_sha256=self.model_sha256, data_sha256=self.data_sha256)

    @classmethod
    def given(cls, value: Statistics | str | os.PathLike[str] | None) -> Statistics | None:
        """``value``, read where it names a file."""
        return cls.read(value) if isinstance(value, str | os.PathLike) else value

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Statistics:
        """Open a file that `write` or `qdqtool.calibrate.layer_sums.collect_statistics` wrote.

        Raises:
            UsageError: there is no such file.
            ModelError: it is broken, of another kind or a newer version.
        """
        file = ArrayFile(path, kind=KIND, max_version=VERSION)
        try:
            about = file.about
            return cls(
                layers=_StoredLayers(file, typed(dict[str, Mapping[str, str | int]], about["layers"], "layers")),
                samples=typed(int, about["samples"], "samples"),
                model_sha256=sha256_in(about["model_sha256"], "model_sha256"),
                data_sha256=sha256_in(about["data_sha256"], "data_sha256"),
                sha256=sha256_of_json(about["layers"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"there is no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
            raise ModelError(
                f"the statistics are malformed: {what}",
                where=os.fspath(path),
                hint="collect them again: --save-statistics",
            ) from error

    @classmethod
    def of(
        cls, layers: Mapping[str, LayerStatistics], *, samples: int, model_sha256: str, data_sha256: str
    ) -> Statistics:
        """Statistics in memory."""
        entries = Entries()
        for name in sorted(layers):
            entries.add(name, layers[name])
        return cls(
            layers=dict(layers),
            samples=samples,
            model_sha256=model_sha256,
            data_sha256=data_sha256,
            sha256=sha256_of_json(entries.layers),
        )


def combined(first: Statistics, second: Statistics) -> Statistics:
    """Both records of the same data in one: what ``second`` knows of a layer stands before what ``first`` knows."""
    layers = dict(first.layers.items())
    for name, found in second.layers.items():
        layers[name] = known_of_both(layers.get(name), found)
    return Statistics.of(
        layers, samples=second.samples, model_sha256=second.model_sha256, data_sha256=second.data_sha256
    )


def merge(first: Statistics, *others: Statistics) -> Statistics:
    """The statistics of all samples together; equal to collecting on the concatenated data but for the last bits of a sum.

    For the same bytes however the work is divided, divide the layers among workers, not the samples: `collect_statistics` takes
    ``layers``, and `combined` puts the parts together.

    Raises:
        UsageError: the statistics are of different models or layers.
    """
    total = first
    for other in others:
        if total.model_sha256 != other.model_sha256 or set(total.layers) != set(other.layers):
            raise UsageError("these statistics are of different models or layers", hint="collect both alike")
        total = Statistics.of(
            {name: merged(found, other.layers[name]) for name, found in total.layers.items()},
            samples=total.samples + other.samples,
            model_sha256=total.model_sha256,
            data_sha256=join(total.data_sha256, other.data_sha256, other.samples),
        )
    return total


def known_of_both(first: LayerStatistics | None, second: LayerStatistics) -> LayerStatistics:
    """What is known of a layer: of ``second``, and of ``first`` where that knows nothing."""
    if first is None:
        return second
    known = {**first.arrays(), **second.arrays()}
    return LayerStatistics(count=second.count or first.count, **known)


class Entries:
    """Layers on their way into a file, or only into a hash.

    Args:
        writer: writes the arrays; None hashes them alone.
    """

    def __init__(self, writer: ArrayWriter | None = None) -> None:
        self._writer = writer
        self._last: dict[str, tuple[Array, str]] = {}
        self.layers: dict[str, dict[str, Any]] = {}

    def add(self, layer: str, found: LayerStatistics) -> None:
        """Take in one layer."""
        entry: dict[str, Any] = {"count": found.count}
        for field, array in found.arrays().items():
            last = self._last.get(field)  # layers that share an array come one after the other
            if last is None or last[0] is not array:
                self._last[field] = last = (array, hash_of(array) if self._writer is None else self._writer.add(array))
            entry[field] = last[1]
        self.layers[layer] = entry

    def finish(self, *, samples: int, model_sha256: str, data_sha256: str) -> None:
        """Write what the file says of them."""
        assert self._writer is not None
        self._writer.about(
            {
                "kind": KIND, "version": VERSION, "samples": samples, "model_sha256": model_sha256,
                "data_sha256": data_sha256, "layers": self.layers,
            }
        )  # fmt: skip


class _StoredLayers(Mapping[str, LayerStatistics]):
    """Layers of a file, read when they are asked for; the last one is kept."""

    def __init__(self, file: ArrayFile, entries: Mapping[str, Mapping[str, Any]]) -> None:
        self._file, self._entries = file, {name: dict(entry) for name, entry in entries.items()}
        self._last: tuple[str, LayerStatistics] | None = None
        for entry in self._entries.values():
            if not {"count"} <= set(entry) <= _FIELDS or not isinstance(entry["count"], int):
                raise ValueError("a layer has no count, or an unknown field")

    def __getitem__(self, layer: str) -> LayerStatistics:
        entry = self._entries[layer]
        if self._last is None or self._last[0] != layer:
            arrays: dict[str, Any] = {f: self._file.numbers(str(name)) for f, name in entry.items() if f != "count"}
            self._last = layer, LayerStatistics(count=int(entry["count"]), **arrays)
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
