"""Ranges of all tensors of a model, as a versioned JSON file that can be merged with the ranges of further samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, QdqError, UsageError
from qdq_passes.numerics.documents import sha256_in, typed
from qdq_passes.numerics.histogram import Histogram

from qdqtool.calibrate.observer import Observer, Option, Range, State, checked_options, counts, observers
from qdqtool.io.feeds.hashes import join
from qdqtool.io.files.artifacts import read_json, sha256_of_json, write_json
from qdqtool.io.files.progress import Warned

KIND, VERSION = "ranges", 1
#: Where a histogram stands: in the state of a method that keeps one, else beside it.
HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Ranges(Warned):
    """What calibration found.

    Args:
        method: name of the calibration method.
        samples: number of feeds.
        tensors: range per tensor name, with the histogram of the tensor where one was kept.
        options: options of the method, those that were given.
        states: per tensor what the method needs to go on from here, where the range does not say it.
        statistics: per tensor the state of the histogram that was kept though the method keeps none.
        unobserved: tensors that were asked for and never held a value (zero elements in every sample).
        model_sha256: fingerprint of the model, see `qdqtool.calibrate.fingerprint`; empty when unknown.
        data_sha256: fingerprint of the feeds, see `qdqtool.io.feeds.hashes`; empty when unknown.
    """

    method: str
    samples: int
    tensors: Mapping[str, Range]
    options: Mapping[str, Option] = field(default_factory=dict)
    states: Mapping[str, State] = field(default_factory=dict)
    statistics: Mapping[str, State] = field(default_factory=dict)
    unobserved: tuple[str, ...] = ()
    model_sha256: str = ""
    data_sha256: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready payload; inverse of `from_json`. Floats are exact."""
        tensors: dict[str, dict[str, Any]] = {}
        for name, found in self.tensors.items():
            tensors[name] = {"low": found.low, "high": found.high}
            if self.states.get(name):
                tensors[name]["state"] = dict(self.states[name])
            if name in self.statistics:
                tensors[name][HISTOGRAM] = dict(self.statistics[name])
        return {
            "data_sha256": self.data_sha256,
            "method": self.method,
            "model_sha256": self.model_sha256,
            "options": dict(self.options),
            "samples": self.samples,
            "tensors": tensors,
            "unobserved": sorted(self.unobserved),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ranges:
        """Read the form written by `to_json`.

        Raises:
            ModelError: a key is missing or holds something else.
        """
        try:
            tensors: dict[str, Any] = data["tensors"]
            return cls(
                method=str(data["method"]),
                samples=typed(int, data["samples"], "samples"),
                tensors={name: _range(t) for name, t in tensors.items()},
                options=dict(data.get("options", {})),
                states={name: dict(t["state"]) for name, t in tensors.items() if "state" in t},
                statistics={name: dict(t[HISTOGRAM]) for name, t in tensors.items() if HISTOGRAM in t},
                unobserved=tuple(data.get("unobserved", ())),
                model_sha256=sha256_in(data.get("model_sha256"), "model_sha256"),
                data_sha256=sha256_in(data.get("data_sha256"), "data_sha256"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = (
                f"there is no {error.args[0]!r}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            )
            raise ModelError(f"the ranges are malformed: {what}", hint="calibrate again") from error

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ranges:
        """Read a ranges file.

        Raises:
            ModelError: missing, broken, of another kind or a newer version.
        """
        try:
            return cls.from_json(read_json(path, kind=KIND, max_version=VERSION))
        except QdqError as error:
            error.where = error.where or os.fspath(path)
            raise

    @classmethod
    def given(cls, value: Ranges | str | os.PathLike[str] | None) -> Ranges | None:
        """``value``, read where it names a file."""
        return cls.read(value) if isinstance(value, str | os.PathLike) else value

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write a ranges file, whole or not at all."""
        write_json(path, kind=KIND, version=VERSION, payload=self.to_json(), overwrite=overwrite)

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the canonical JSON of `to_json`, but for the statistics, which no range depends on."""
        return sha256_of_json(replace(self, statistics={}).to_json())

    @property
    def bound(self) -> dict[str, Range]:
        """What ``@ranges`` is bound to: the range of every tensor, [0, 0] for one that never held a value."""
        return {**self.tensors, **{name: Range(0.0, 0.0) for name in self.unobserved}}

    def observers(self) -> dict[str, Observer]:
        """The observers as they stood when these ranges were made."""
        make = observers(self.method, self.options)
        found = {name: make() for name in self.tensors}
        for name, observer in found.items():
            try:
                observer.restore(self.states.get(name, {}), self.tensors[name])
            except (KeyError, TypeError, ValueError) as error:
                raise ModelError(f"the state of {name!r} is malformed: {error}", hint="calibrate again") from error
        return found

    def by(self, method: str, options: Mapping[str, Option]) -> Ranges | None:
        """The ranges that ``method`` would have found, of the histograms that the method of these keeps; None where one of the
        two keeps something else, or sees the values otherwise.

        Raises:
            UsageError: no such method, or it does not take these options.
        """
        if not all(counts(make()) for make in (observers(self.method, self.options), observers(method, options))):
            return None
        seen = replace(self, method=method, options=checked_options(method, options))
        return Ranges.of(
            seen.observers(), seen.histograms(), method=method, samples=self.samples, options=seen.options,
            unobserved=self.unobserved, model_sha256=self.model_sha256, data_sha256=self.data_sha256,
        )  # fmt: skip

    def histograms(self) -> dict[str, Histogram]:
        """The histograms kept beside the observers, as they stood when these ranges were made."""
        return {name: Histogram.from_state(state) for name, state in self.statistics.items()}

    @classmethod
    def of(
        cls,
        seen: Mapping[str, Observer],
        beside: Mapping[str, Histogram],
        *,
        method: str,
        samples: int,
        options: Mapping[str, Option],
        unobserved: Iterable[str],
        model_sha256: str,
        data_sha256: str,
    ) -> Ranges:
        """Ranges of observers that saw at least one sample each, and of the histograms kept ``beside`` them; the other
        arguments are the fields of that name."""
        return cls(
            method=method,
            samples=samples,
            tensors={name: _with_histogram(observer, beside.get(name)) for name, observer in seen.items()},
            options=dict(options),
            states={name: state for name, observer in seen.items() if (state := observer.state())},
            statistics={name: beside[name].state() for name in seen if name in beside},
            unobserved=tuple(sorted(unobserved)),
            model_sha256=model_sha256,
            data_sha256=data_sha256,
        )


def _range(tensor: Mapping[str, Any]) -> Range:
    """The range of the JSON form of one tensor."""
    state = tensor.get("state", {}).get(HISTOGRAM, tensor.get(HISTOGRAM))
    histogram = None if state is None else Histogram.from_state(state)
    return Range(float(tensor["low"]), float(tensor["high"]), histogram)


def _with_histogram(observer: Observer, beside: Histogram | None) -> Range:
    found, own = observer.range(), observer.histogram()
    return Range(found.low, found.high, beside if own is None else own)


def merge(first: Ranges, *others: Ranges) -> Ranges:
    """The ranges of all samples together, exactly as calibrating on the concatenated data gives them.

    Raises:
        UsageError: the ranges are of different methods, options, models or tensors.
    """
    merged = first
    for other in others:
        merged = _merge(merged, other)
    return merged


def _merge(a: Ranges, b: Ranges) -> Ranges:
    names = {*a.tensors, *a.unobserved}
    for what, left, right in (
        ("methods", a.method, b.method),
        ("options", dict(a.options), dict(b.options)),
        ("models", a.model_sha256, b.model_sha256),
        ("tensors", sorted(names ^ {*b.tensors, *b.unobserved})[:3], []),
    ):
        if left != right:
            raise UsageError(f"these ranges are of different {what}: {left} and {right}", hint="calibrate both alike")
    if a.tensors and b.tensors and bool(a.statistics) != bool(b.statistics):
        raise UsageError("only some of these ranges have statistics", hint="calibrate both alike")
    seen, beside = a.observers(), a.histograms()
    for name, observer in b.observers().items():
        observer.shift(a.samples)
        if name in seen:
            seen[name].merge(observer)
        else:
            seen[name] = observer
    for name, histogram in b.histograms().items():
        beside.setdefault(name, Histogram()).merge(histogram)
    return Ranges.of(
        seen,
        beside,
        unobserved=names - set(seen),
        method=a.method,
        options=a.options,
        samples=a.samples + b.samples,
        model_sha256=a.model_sha256,
        data_sha256=join(a.data_sha256, b.data_sha256, b.samples) if a.data_sha256 and b.data_sha256 else "",
    )
