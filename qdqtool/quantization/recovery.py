"""Recovery of accuracy in a quantization: where its passes stand in the plan, and the statistics that they read.

    prepare → rotate-decoder, equalize-layers, smooth-activations → calibration
            → annotate, insert, search-scales, refine → round-weights, correct-bias (or learn-rounding) → tune-weights

The first three change the float model, not its function: what is calibrated is the model behind them. Rounding wants the float
weights, so pairs are inserted on them, and folded into integers last where those are wanted. ``@statistics`` has the
magnitudes of the prepared model, and means and moments of the rotated, equalized and smoothed one; `qdqtool.calibrate.layer_sums`
collects both. What learn-rounding reads depends on the integers of the layers before: `qdqtool.quantization.learning` runs the
model as it goes, and `qdqtool.quantization.tuning` the whole of it, for tune-weights; the integers that both found are noted in
the statistics, so that a replay takes them from there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Named, Pass
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.pipeline.pipeline import Hook, PassReport, Pipeline
from qdq_passes.qdq.fold_weight_qdq import FoldWeightQdq
from qdq_passes.qdq.insert_qdq import InsertQdq

from qdqtool.calibrate.statistics import Statistics, known_of_both
from qdqtool.io.files.progress import StageProgress, Warn, stage
from qdqtool.presets.recovery import Recovery

if TYPE_CHECKING:
    from qdq_passes.recover.look.learning import LayerSamples
    from qdq_passes.recover.tune_weights import TuneWeights

    from qdqtool.calibrate.layer_sums import Wanted
    from qdqtool.quantization.learning import LayersAt
    from qdqtool.quantization.tuning.tuner import Tuner
    from qdqtool.workers.cluster import Workers

#: Named input that holds what was seen of the layers' inputs.
STATISTICS = "statistics"
#: Names of passes: a plan without them imports neither them nor what they learn from.
_LEARN, _TUNE, _ENDS = "learn-rounding", "tune-weights", "integer-io"
#: Moments of more bytes than these lie in a file while the weights are rounded.
IN_MEMORY = 1 << 29

Feeds = Iterable[Mapping[str, Any]]


def recovering(recovery: Recovery) -> Pipeline:
    """The passes between preparation and calibration."""
    passes: list[Pass] = []
    if recovery.rotate:
        from qdq_passes.recover.rotate_decoder import RotateDecoder

        passes.append(RotateDecoder())
    if recovery.equalize:
        from qdq_passes.recover.equalize_layers import EqualizeLayers

        passes.append(EqualizeLayers(clip=recovery.equalize))
    if recovery.smooths:
        from qdq_passes.recover.smooth_activations import SmoothActivations

        assert recovery.smooth is not None
        passes.append(SmoothActivations(statistics=Named(STATISTICS), alpha=float(recovery.smooth)))
    return Pipeline(tuple(passes))


def with_rounding(materialise: Pipeline, recovery: Recovery) -> Pipeline:
    """``materialise`` with the passes on weights and biases behind its pairs; integers are folded last."""
    rounds = bool(recovery.round_weights or recovery.learn_rounding)
    if not (rounds or recovery.search_scales or recovery.correct_bias or recovery.tune_weights):
        return materialise
    folds = any(isinstance(p, FoldWeightQdq) for p in materialise.passes)
    stored = any(isinstance(p, InsertQdq) and p.weights == "dq" for p in materialise.passes)
    passes = [p for p in materialise.passes if not isinstance(p, FoldWeightQdq)]
    centred = bool(recovery.correct_bias) and not recovery.learn_rounding
    narrow = any((isinstance(p, InsertQdq) and p.narrow) or p.name() == "narrow-weights" for p in passes)
    moved = rounds or bool(recovery.search_scales or recovery.tune_weights)
    if moved:
        passes = [replace(p, weights="qdq") if isinstance(p, InsertQdq) else p for p in passes]
    if recovery.search_scales:
        from qdq_passes.recover.search_scales import SearchScales

        behind = next(place for place, p in enumerate(passes, 1) if isinstance(p, InsertQdq))
        searching = SearchScales(
            statistics=Named(STATISTICS),
            rounding="compensated" if rounds else "nearest",
            centred=centred,
            narrow=narrow,
        )
        passes.insert(behind, searching)
    if recovery.learn_rounding:
        from qdq_passes.recover.learn_rounding import LearnRounding

        learning = LearnRounding(statistics=Named(STATISTICS), narrow=narrow, made=_made(materialise))
        places = (place for place, p in enumerate(passes) if p.name() == _ENDS)  # behind it samples do not fit
        passes.insert(next(places, len(passes)), learning)
    elif recovery.round_weights:
        from qdq_passes.recover.round_weights import RoundWeights

        passes.append(RoundWeights(statistics=Named(STATISTICS), centred=centred, narrow=narrow))
    if recovery.correct_bias and not recovery.learn_rounding:
        from qdq_passes.recover.correct_bias import CorrectBias

        passes.append(CorrectBias(statistics=Named(STATISTICS), made=_made(materialise)))
    if recovery.tune_weights:
        from qdq_passes.recover.tune_weights import TuneWeights

        ends = [p for p in passes if p.name() == _ENDS]
        tuning = TuneWeights(statistics=Named(STATISTICS), steps=int(recovery.tune_weights), narrow=narrow)
        passes = [*(p for p in passes if p.name() != _ENDS), tuning, *ends]
    if folds or (stored and moved):
        passes.append(FoldWeightQdq())
    return Pipeline(tuple(passes))


def learns(pipeline: Pipeline) -> bool:
    """Whether rounding is learned, or weights are tuned."""
    return _has(pipeline, _LEARN, _TUNE)


def _has(pipeline: Pipeline, *names: str) -> bool:
    return any(p.name() in names for p in pipeline.passes)


def samples_learned_from(pipeline: Pipeline) -> int:
    """How many samples its passes learn from at most."""
    if not learns(pipeline):
        return 0
    from qdqtool.quantization import learning
    from qdqtool.quantization.tuning import tuner

    return max(most for name, most in ((_LEARN, learning.SAMPLES), (_TUNE, tuner.SAMPLES)) if _has(pipeline, name))


def learning_runs(pipeline: Pipeline, samples: int) -> int:
    """Model runs that its passes learn by from ``samples``: both models once, layer by layer; tuning a few samples a step,
    there and back, which takes as long as three runs."""
    if not learns(pipeline):
        return 0
    from qdqtool.quantization import learning
    from qdqtool.quantization.tuning import tuner

    steps = sum(cast("TuneWeights", p).steps for p in pipeline.passes if p.name() == _TUNE)
    return 2 * min(samples, learning.SAMPLES) * _has(pipeline, _LEARN) + 3 * min(samples, tuner.BATCH) * steps


def wanted_behind(materialise: Pipeline) -> list[Wanted]:
    """What the passes of ``materialise`` read of the layers' inputs, but for what `LearnRounding` and `TuneWeights` ask for
    by themselves."""
    readers = [p.name() for p in materialise.passes if STATISTICS in Pipeline((p,)).needs()]
    if "round-weights" in readers or "search-scales" in readers:
        return ["means", "moments"]
    return ["means"] if any(name not in (_LEARN, _TUNE) for name in readers) else []


def _made(materialise: Pipeline) -> Literal["float", "int32", "int8", "none"]:
    """What a bias becomes that was not there: what the preset makes of others."""
    kind = next((p.bias for p in materialise.passes if isinstance(p, AnnotateEncodings)), "none")
    return "int32" if kind == "int32" else "int8" if kind == "int8" else "float"


@dataclass
class _Read:
    """What ``@statistics`` is where one pass reads sums and another samples: whichever is ``source``.

    Args:
        source: by the name of a layer.
    """

    source: Mapping[str, LayerStatistics] | LayersAt | Tuner

    def get(self, name: str) -> LayerStatistics | LayerSamples | None:
        """What is known of the layer ``name``."""
        return self.source.get(name)


@dataclass
class Recovering:
    """The data of a recovery, while a model is quantized.

    Args:
        given: statistics that were found before.
        file: where statistics are to be written.
        progress: told how far collecting is.
        warn: told what is likely a mistake.
    """

    given: Statistics | None = None
    file: str | os.PathLike[str] | None = None
    progress: StageProgress | None = None
    warn: Warn | None = None

    def __post_init__(self) -> None:
        self._scratch: AbstractContextManager[str] = nullcontext("")
        self.statistics: Statistics | None = None
        self._layers: LayersAt | None = None
        self._tuner: Tuner | None = None
        self._read: _Read | None = None

    def __enter__(self) -> Recovering:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the file that statistics lie in."""
        self._scratch.__exit__(None, None, None)
        self._scratch = nullcontext("")

    @classmethod
    def learning(cls, model: ir.Model, feeds: Feeds, sums: Statistics | None) -> Recovering:
        """What is there once the passes before calibration ran on ``model``, where rounding is learned from ``feeds``; a hook.

        Args:
            model: the prepared float model, to be quantized in place.
            feeds: the samples.
            sums: what other passes read.
        """
        made = cls()
        made.statistics = sums
        made._learn_from(model, feeds)
        return made

    def _learn_from(self, model: ir.Model, feeds: Feeds) -> None:
        """Samples for what learns of the prepared ``model``."""
        told = [
            None if self.progress is None else stage(self.progress, text)
            for text in ("learning rounding", "tuning weights")
        ]
        from qdqtool.quantization.learning import LayersAt
        from qdqtool.quantization.tuning.tuner import Tuner

        reference = copy_model(model)
        self._layers = LayersAt(model, reference, feeds, progress=told[0])
        self._tuner = Tuner(model, reference, feeds, progress=told[1], warn=self.warn)

    def recover(
        self,
        model: ir.Model,
        recover: Pipeline,
        materialise: Pipeline,
        *,
        feeds: Feeds | None,
        hooks: Iterable[Hook] = (),
        workers: Workers | None = None,
    ) -> tuple[PassReport, ...]:
        """Run ``recover`` on the prepared ``model``; collect what it and ``materialise`` read, where it was not given.

        Raises:
            UsageError: there are neither data nor statistics, or the data can be read only once.
        """
        needed = [STATISTICS in pipeline.needs() for pipeline in (recover, materialise)]
        self.statistics = self.given if any(needed) else None
        if self.given is not None and not any(needed) and self.warn is not None:
            self.warn("no pass reads @statistics: --statistics is not used")
        if needed[0] and self.given is None:
            self._collect(model, feeds, ["magnitudes"], "measuring channels", workers)
        done = recover.run(model, inputs=self.inputs(recover), hooks=hooks).passes if recover.passes else ()
        self._tell(recover, done)
        if learns(materialise) and not self.is_learned(materialise):
            wanted = wanted_behind(materialise)
            if wanted and self.given is None:
                self._collect(model, feeds, wanted, "collecting moments", workers)
            if feeds is None:
                raise UsageError("no data to learn from", hint="give --data, or --statistics of such a run")
            self._learn_from(model, feeds)
            return done  # the statistics are complete once it has learned
        if needed[1] and self.given is None:
            self._collect(model, feeds, wanted_behind(materialise), "collecting moments", workers)
        self._write()
        return done

    def _tell(self, recover: Pipeline, done: Iterable[PassReport]) -> None:
        """Warn of a pass that had nothing to act on."""
        for each, report in zip(recover.passes, done, strict=True):
            if report.modified or self.warn is None:
                continue
            from qdq_passes.recover.look.channel_flow import CUTS_OFF

            is_cut = each.name() == "equalize-layers" and any(c.because.endswith(CUTS_OFF) for c in report.changes)
            hint = "between its layers stand Clips: --equalize bounds takes those along" if is_cut else "-v says why"
            self.warn(f"{each.name()} changed nothing; {hint}")

    def inputs(self, pipeline: Pipeline) -> dict[str, Any]:
        """What ``pipeline`` reads by name."""
        if STATISTICS not in pipeline.needs():
            return {}
        if self._layers is not None and learns(pipeline):
            self._read = _Read({} if self.statistics is None else self.statistics.layers)
            return {STATISTICS: self._read}
        assert self.statistics is not None
        return {STATISTICS: self.statistics.layers}

    def is_learned(self, pipeline: Pipeline) -> bool:
        """Whether the statistics that are given say what the passes of ``pipeline`` would learn; what was tuned has scales."""
        tunes = _has(pipeline, _TUNE)
        known = [] if self.given is None else [each for each in self.given.layers.values() if each.integers is not None]
        return bool(known) and tunes == any(each.scales is not None for each in known)

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Let `LearnRounding` read samples, and `TuneWeights` what is tuned; what stands before and between reads sums."""
        if self._read is None or self._layers is None or self._tuner is None:
            return
        if pass_.name() == _LEARN:
            self._read.source = self._layers
        elif pass_.name() == _TUNE:
            tuning = cast("TuneWeights", pass_)
            self._tuner.steps, self._tuner.narrow = tuning.steps, tuning.narrow
            self._read.source = self._tuner
        else:
            self._read.source = {} if self.statistics is None else self.statistics.layers

    def on_error(self, pass_: Pass, model: ir.Model, error: Exception) -> None:
        """A hook of the pipeline behind calibration."""

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        """Take what `LearnRounding` and `TuneWeights` found into the statistics, so that a replay needs no data."""
        if self._layers is None or self._tuner is None or pass_.name() not in (_LEARN, _TUNE):
            return
        tunes = pass_.name() == _TUNE
        if tunes and not self._tuner.samples:
            return
        from qdq_passes.recover.learn_rounding import learned_of

        seen, known = (
            self._tuner if tunes else self._layers,
            {} if self.statistics is None else self.statistics.layers,
        )
        layers = dict(known.items()) | {
            name: known_of_both(known.get(name), one) for name, one in learned_of(model, scales=tunes).items()
        }
        self.statistics = Statistics.of(
            layers, samples=seen.samples, model_sha256=seen.model_sha256, data_sha256=seen.data_sha256
        )
        self._write()

    def _write(self) -> None:
        if self.file is not None and self.statistics is not None:
            self.statistics.write(self.file)

    def _collect(
        self, model: ir.Model, feeds: Feeds | None, wanted: list[Wanted], stage: str, workers: Workers | None
    ) -> None:
        if feeds is None:
            raise UsageError(
                "no data to collect statistics on", hint="give --data, or --statistics from --save-statistics"
            )
        from qdqtool.calibrate.layer_sums import moment_bytes, share_statistics
        from qdqtool.io.feeds.array_store import scratch_file
        from qdqtool.workers.cluster import InProcess

        file = None
        if "moments" in wanted and moment_bytes(model) > IN_MEMORY:
            self._scratch = scratch_file(".npz")
            file = self._scratch.__enter__()
        progress = self.progress
        alone = (
            file is not None or "moments" not in wanted
        )  # a file is for what is too much here; the rest is quickly summed up
        self.statistics = share_statistics(
            model,
            feeds,
            InProcess() if workers is None or alone else workers,
            wanted=wanted,
            before=self.statistics,
            file=file,
            progress=None if progress is None else lambda done, total: progress(stage, done, total),
        )
