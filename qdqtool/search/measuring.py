"""Prepare and calibrate a model once, and measure many variants of it: in parallel, each once, kept in a journal."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Generic, TypeVar

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.pipeline import Pipeline, run_pipeline
from qdq_passes.select.selectors import NONE

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feeds.hashes import EMPTY, add_feed
from qdqtool.io.files.artifacts import sha256_of_json
from qdqtool.io.files.journal import Journal
from qdqtool.io.files.progress import Progress, Warn, after
from qdqtool.quantization.calibrating import Calibrator, left_float, observed_names
from qdqtool.quantization.plan import Plan
from qdqtool.quantization.precision import texts_of
from qdqtool.quantization.quantizing import prepare, wrong
from qdqtool.quantization.recovery import Recovering, samples_learned_from
from qdqtool.search.metrics import Metric, anywhere
from qdqtool.search.precision_cost import Prices
from qdqtool.search.variants import Arrays, Baseline, Measured, Point, Scheme, measure, outputs_of
from qdqtool.workers.cluster import Workers

B = TypeVar("B", bound=Baseline)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A baseline, and what is known of the model.

    Args:
        baseline: what variants are made of.
        model: the prepared float model.
        plan: of the plain quantization.
        floating: figure of the float model.
        of: what results are of, for a journal: hashes by a name in words.
        recovering: what keeps the statistics that lie in a file.
    """

    baseline: Baseline
    model: ir.Model
    plan: Plan
    floating: float | None
    of: Mapping[str, str]
    recovering: Recovering


def set_up(
    model: ir.Model,
    scheme: Scheme,
    workers: Workers,
    *,
    metric: Metric,
    judged: Sequence[Arrays],
    feeds: Iterable[Arrays] | None,
    references: Sequence[Arrays] | None = None,
    recovering: Recovering | None = None,
    ranges: Ranges | None = None,
    precisions: Sequence[str] = (),
    prices: Prices | None = None,
    allow_empty: bool = False,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    warn: Warn | None = None,
) -> Setting:
    """Prepare and calibrate ``model`` (edited in place) once for all variants.

    Args:
        model: the float model.
        scheme: what the variants have in common.
        workers: who will measure.
        metric: what judges.
        judged: samples to judge on.
        feeds: calibration samples; not needed with ``ranges``.
        references: outputs of the float model for ``judged``, where they are known.
        recovering: statistics of the layers' inputs, or what to do with those that are collected.
        ranges: ranges found before.
        precisions: that variants will have; the model is prepared for them (16-bit pairs want an opset of their own).
        prices: of what is not in 8 bit.
        allow_empty: selectors that match nothing are warned about.
        cache: folder of ranges found before.
        progress: called after each calibration sample.
        warn: told what is likely a mistake.

    Raises:
        QdqError: as `qdqtool.quantization.quantizing.quantize_model`.
    """
    fingerprint = model_sha256(model)
    if references is None:
        references = references_of(model, judged)
    base, most = scheme.plan(), scheme.plan(Point(raised=tuple((p, ("*",)) for p in precisions)))
    wished = replace(base, prepare=most.prepare, precision=Pipeline())  # every variant says its own precisions
    chosen, _ = prepare(model, wished, allow_empty=allow_empty, warn=warn)
    missing = (_selectors(wished) - _selectors(chosen)) | _refused(model, base, allow_empty=allow_empty, warn=warn)
    overrides = chosen.annotate.overrides if chosen.annotate.overrides != wished.annotate.overrides else None
    scheme = replace(scheme, missing=tuple(sorted(missing)), overrides=overrides)
    recovering = recovering or Recovering()
    recovering.recover(model, chosen.recover, chosen.materialise, feeds=feeds, workers=workers)
    taught = 0 if recovering.is_learned(chosen.materialise) else samples_learned_from(chosen.materialise)
    found = _calibrated(
        model, scheme, wished, chosen, ranges=ranges, feeds=feeds, workers=workers, cache=cache, progress=progress
    )
    baseline = Baseline(
        model=workers.share(model),
        scheme=scheme,
        ranges=found,
        inputs={} if taught else recovering.inputs(chosen.materialise),
        feeds=tuple(judged),
        references=tuple(references),
        metric=anywhere(metric.name),
        prices=prices or Prices(),
        learns_on=tuple(itertools.islice(feeds or (), taught)) if taught else (),
        sums=recovering.statistics if taught else None,
    )
    return Setting(
        baseline=baseline,
        model=model,
        plan=chosen,
        floating=metric.measure(references, judged, references),
        of={**_hashes(baseline, chosen, fingerprint, judged), "metric": metric.name},
        recovering=recovering,
    )


def references_of(model: ir.Model, judged: Sequence[Arrays]) -> list[Arrays]:
    """Outputs of the float ``model`` for ``judged``."""
    return outputs_of(
        run_pipeline(model, "give-names", copy=True).model, judged
    )  # onnxruntime takes no two nodes of one name


def _calibrated(
    model: ir.Model,
    scheme: Scheme,
    wished: Plan,
    chosen: Plan,
    *,
    ranges: Ranges | None,
    feeds: Iterable[Arrays] | None,
    workers: Workers,
    cache: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Ranges:
    """``ranges``, else those of every activation that the plain quantization observes: none where it observes none."""
    plain = copy_model(model)
    scheme.plan().precision.run(plain)
    names = observed_names(plain, chosen)
    if ranges:
        return ranges
    if not names:
        return Ranges(method=wished.method, samples=0, tensors={})
    calibrator = Calibrator(cache=cache, workers=workers, progress=progress, way_out=left_float)
    calibrator.observe(wished.seen(model, names), feeds or (), names, wished.method, wished.method_options)
    return calibrator.found


def _hashes(baseline: Baseline, chosen: Plan, model: str, judged: Sequence[Arrays]) -> dict[str, str]:
    """What results on ``baseline`` are of: hashes by a name in words, ``model`` that of the float model."""
    data = EMPTY
    for feed in judged:
        data = add_feed(data, feed)
    settings = [
        str(baseline.scheme.plan().pipeline),
        chosen.method,
        dict(chosen.method_options),
        *(["cut"] if chosen.cuts else []),
    ]
    return {
        "model": model,
        "preset or options": sha256_of_json(settings),
        "calibration": baseline.ranges.sha256,
        "data": data,
    }


@dataclass
class Measurements(Generic[B]):
    """Variants measured so far, each once.

    Args:
        baseline: what they are made of; or what is asked for that, by the point, where it hangs on its options.
        workers: who measures.
        journal: keeps the results; None keeps them here alone.
        judge: measures one variant; a function of a module.
        known: key of the point → what was measured.
        points: the points, in the order in which they were asked for.
    """

    baseline: B | Callable[[Point], B]
    workers: Workers
    journal: Journal | None = None
    judge: Callable[[B, Point], Measured] = measure
    known: dict[str, Measured] = field(default_factory=dict)
    points: dict[str, Point] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take over what the journal holds."""
        for key, result in (self.journal.results if self.journal is not None else {}).items():
            try:
                self.known[key] = Measured.from_json(result)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                assert self.journal is not None
                hint = "take it away, or give another file to begin anew"
                raise ModelError(f"a result cannot be read: {error!r}", where=self.journal.path, hint=hint) from error

    def of(self, points: Sequence[Point], progress: Progress | None = None) -> list[Measured]:
        """What ``points`` are worth, in their order; those that are not known yet are measured now.

        Raises:
            QdqError: a variant that was made cannot be judged.
        """
        wanted = {point.key: point for point in points}
        self.points |= wanted
        todo = {key: point for key, point in wanted.items() if key not in self.known}
        before = len(wanted) - len(todo)
        ticks = after(before, progress, len(wanted))
        for point, found in zip(todo.values(), self._results(list(todo.values()), ticks), strict=True):
            data = found.to_json()
            if self.journal is not None:
                self.journal.add(point.key, data)
            self.known[point.key] = Measured.from_json(data)
        return [self.known[point.key] for point in points]

    def _results(self, todo: Sequence[Point], ticks: Progress | None) -> Iterator[Measured]:
        """What points are worth, in their order; those of several baselines are measured side by side too."""
        if isinstance(self.baseline, Baseline):
            return self.workers.map(self.judge, self.baseline, todo, progress=ticks)
        bases: list[B] = []
        places: list[tuple[int, Point]] = []
        for _, group in itertools.groupby(todo, key=lambda point: (point.options, [p for p, _ in point.raised])):
            same = list(group)
            bases.append(self.baseline(same[0]))
            places += [(len(bases) - 1, point) for point in same]
        if len(bases) == 1:
            return self.workers.map(self.judge, bases[0], todo, progress=ticks)
        return self.workers.map(_judged, _Several(bases=tuple(bases), judge=self.judge), places, progress=ticks)


@dataclass(frozen=True)
class _Several(Generic[B]):
    """Baselines of points that are measured together."""

    bases: tuple[B, ...]
    judge: Callable[[B, Point], Measured]


def _judged(several: _Several[Any], place: tuple[int, Point]) -> Measured:
    """A point on its baseline."""
    at, point = place
    return several.judge(several.bases[at], point)


def _selectors(plan: Plan) -> set[str]:
    annotate = plan.annotate
    return {text for selector in (annotate.exclude, annotate.only) if selector != NONE for text in selector.texts}


def _refused(model: ir.Model, base: Plan, *, allow_empty: bool, warn: Warn | None) -> set[str]:
    """Selectors of the user's for precisions that match nothing in the prepared ``model``.

    Raises:
        UsageError: there is one, and ``allow_empty`` is off.
    """
    found = set()
    for text in texts_of(base.precision):
        error = wrong(model, text, values=True)
        if error is not None and not allow_empty:
            raise error
        if error is not None:
            found.add(text)
            if warn is not None:
                warn(str(error))
    return found


def figure_json(figure: float | None) -> Any:
    """A figure for JSON: rounded to what two machines agree on to the eye; null where nothing differs from the float model."""
    return None if figure is None else round(figure, 6)
