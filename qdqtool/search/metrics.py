"""Metrics: what a quantized model is judged by. The protocol of one's own, and those that are built in.

A metric of one's own is ``module:function`` (or ``file.py:function``),

    def top1(outputs, feeds) -> float: ...

    outputs     one dict a sample: output name → array, as the model gives it
    feeds       one dict a sample: input name → array, and with them what the data holds beside the inputs (labels, boxes)
    returns     a number, the higher the better

A third parameter, where the function has one, takes the outputs of the float model. Built in, all of them higher is better:

    sqnr        dB of the worst output against the float model, over all samples
    cosine      −1..1 of the worst output against the float model
    accuracy    share of samples, 0..1, whose largest value along the last axis of the first output is at the index in ``labels``
    map, map50  mean average precision of a detector, 0..1, see `qdqtool.search.mean_average_precision`

and, for goals alone, one of which lower is better:

    perplexity  of a language model: exp of the mean of −ln p of each token of ``input_ids`` behind those before it
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.numerics.agreement import Accumulator, Agreement, worst
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.surprise import surprise

from qdqtool.io.files.python_objects import import_object
from qdqtool.search.mean_average_precision import LABELS, labels_of, mean_average_precision, scenes

Arrays = Mapping[str, Array]

#: Other names of metrics.
ALIASES = {"top1": "accuracy", "mAP": "map", "mAP50": "map50"}
#: Input that `perplexity` scores; and what stands for logits of a decoder that ran elsewhere: −ln p of its tokens.
IDS, SURPRISES, PERPLEXITY = "input_ids", "surprises", "perplexity"


class Function(Protocol):
    """A metric as a user writes it."""

    def __call__(self, outputs: list[dict[str, Array]], feeds: list[dict[str, Array]]) -> float:
        """The figure, the higher the better."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model answers to one sample.

    Args:
        right: labels that it meets.
        count: labels.
        ease: by how much the score of a label lies above all others, of the one where that is least; negative where it is wrong.
    """

    right: int
    count: int
    ease: float


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric.

    Args:
        name: as it was asked for: ``sqnr``, ``mine.py:top1``.
        unit: of its figures: ``dB``, or none.
        needs_labels: it judges by more than the float model's outputs.
        function: (outputs, feeds, outputs of the float model) → figure; None where nothing differs from the float model.
        is_lower: the lower the better; goals alone take such.
        digest: (output, feed) of one sample → what counts of it; None where the figure is of all samples at once.
        gathered: digests of samples → the figure.
        are_answers: digests are `Answer`, and the figure is the share of right ones.
        agreed: how the outputs agree with those of the float model, one each → the figure; None where it is of more than that.
    """

    name: str
    unit: str
    needs_labels: bool
    function: Callable[[Sequence[Arrays], Sequence[Arrays], Sequence[Arrays]], float | None]
    is_lower: bool = False
    digest: Callable[[Arrays, Arrays], Any] | None = None
    gathered: Callable[[Sequence[Any]], float] | None = None
    are_answers: bool = False
    agreed: Callable[[Sequence[Agreement]], float | None] | None = None

    @classmethod
    def of_agreements(cls, name: str, unit: str, agreed: Callable[[Sequence[Agreement]], float | None]) -> Metric:
        """A metric of the difference from the float model alone."""

        def call(outputs: Sequence[Arrays], feeds: Sequence[Arrays], references: Sequence[Arrays]) -> float | None:
            return agreed(_together(_sums_of(outputs, references)))

        return cls(name=name, unit=unit, needs_labels=False, function=call, agreed=agreed)

    @classmethod
    def of_digests(
        cls,
        name: str,
        digest: Callable[[Arrays, Arrays], Any],
        gathered: Callable[[Sequence[Any]], float],
        *,
        are_answers: bool = False,
    ) -> Metric:
        """A metric that needs labels, and of each sample no more than its digest."""

        def call(outputs: Sequence[Arrays], feeds: Sequence[Arrays], references: Sequence[Arrays]) -> float:
            return gathered([digest(output, feed) for output, feed in zip(outputs, feeds, strict=True)])

        return cls(
            name=name, unit="", needs_labels=True, function=call, digest=digest, gathered=gathered, are_answers=are_answers
        )  # fmt: skip

    def measure(self, outputs: Sequence[Arrays], feeds: Sequence[Arrays], references: Sequence[Arrays]) -> float | None:
        """The figure of a model that gives ``outputs`` for ``feeds``, where the float model gives ``references``.

        Raises:
            UsageError: the metric fails, or gives no finite number.
        """
        return self._figure(lambda: self.function(outputs, feeds, references))

    def _figure(self, function: Callable[[], float | None]) -> float | None:
        with self._told():
            figure = function()
        return self._checked(figure)

    def figures(
        self, outputs: Sequence[Arrays], feeds: Sequence[Arrays], references: Sequence[Arrays]
    ) -> Callable[[Sequence[int]], float | None]:
        """The figure of the samples of some numbers, which may be there several times: digests and sums are made once, and now.

        Raises:
            UsageError: the metric fails; so does what is returned, and where it gives no finite number.
        """
        gathered, agreed = self.gathered, self.agreed
        if agreed is not None:
            with self._told():
                sums = _sums_of(outputs, references)
            return lambda at: self._figure(lambda: agreed(_together(sums[i] for i in at)))
        if gathered is None:
            return lambda at: self.measure(*([part[i] for i in at] for part in (outputs, feeds, references)))
        found = [self.digested(output, feed) for output, feed in zip(outputs, feeds, strict=True)]
        return lambda at: self._figure(lambda: gathered([found[i] for i in at]))

    def digested(self, output: Arrays, feed: Arrays) -> Any:
        """What counts of a sample.

        Raises:
            UsageError: the metric fails.
        """
        assert self.digest is not None
        with self._told():
            return self.digest(output, feed)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Whatever a metric raises is told as its failure."""
        try:
            yield
        except QdqError:
            raise
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(f"the metric fails with {text}", where=f"--metric {self.name}") from error

    def _checked(self, figure: float | None) -> float | None:
        """``figure``, which must be a finite number."""
        if figure is None and self.name in BUILT_IN:
            return None
        try:
            number = float(figure)  # type: ignore[arg-type]  # None of a function of the user's is told below
        except (TypeError, ValueError) as error:
            hint = "return one number, the higher the better"
            raise UsageError(
                f"the metric gives {type(figure).__name__}", where=f"--metric {self.name}", hint=hint
            ) from error
        if not math.isfinite(number):
            raise UsageError(f"the metric gives {number}", where=f"--metric {self.name}", hint="return a finite number")
        return number


def open_metric(name: str) -> Metric:
    """The metric called ``name``.

    Raises:
        UsageError: there is no such metric, or it cannot be imported.
    """
    name = ALIASES.get(name, name)
    if name in BUILT_IN:
        return BUILT_IN[name]
    where = f"--metric {name}"
    if ":" not in name:
        known = ", ".join(each for each, metric in BUILT_IN.items() if not metric.is_lower)
        raise UsageError("there is no such metric", where=where, hint=f"{known}, or module:function of your own")
    found = import_object(name, where=where)
    if not callable(found):
        raise UsageError(f"is {type(found).__name__}, no function", where=where)
    takes_references = _parameters(found) >= 3

    def call(outputs: Sequence[Arrays], feeds: Sequence[Arrays], references: Sequence[Arrays]) -> Any:
        given = [[dict(one) for one in each] for each in (outputs, feeds, references)]
        return found(*given) if takes_references else found(*given[:2])

    return Metric(name=name, unit="", needs_labels=True, function=call)


def anywhere(name: str) -> str:
    """``name`` as a process in another folder takes it: the file of ``file.py:function`` with its whole path."""
    file, colon, function = name.rpartition(":")
    return f"{os.path.abspath(file)}:{function}" if colon and file.endswith(".py") else name


def _parameters(function: Callable[..., Any]) -> int:
    """Number of positional parameters that have no default; 2 where it cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)


def _sums_of(outputs: Sequence[Arrays], references: Sequence[Arrays]) -> list[dict[str, Accumulator]]:
    """Return the sums that each sample adds to the agreement with the float model."""
    found: list[dict[str, Accumulator]] = []
    for tested, reference in zip(outputs, references, strict=True):
        found.append({name: Accumulator() for name in reference})
        for name, sums in found[-1].items():
            sums.add(reference[name], tested[name])
    return found


def _together(samples: Iterable[Mapping[str, Accumulator]]) -> list[Agreement]:
    """Add up the sums of ``samples`` for each output, in their order."""
    totals: dict[str, Accumulator] = {}
    for sample in samples:
        for name, sums in sample.items():
            totals.setdefault(name, Accumulator()).merge(sums)
    return [total.result() for total in totals.values()]


def _worst_sqnr(found: Sequence[Agreement]) -> float | None:
    return worst([each.sqnr_db for each in found])


def _least_cosine(found: Sequence[Agreement]) -> float:
    return min(each.cosine for each in found)


def _share(found: Sequence[Answer]) -> float:
    return sum(each.right for each in found) / sum(each.count for each in found)


def _answer(output: Arrays, feed: Arrays) -> Answer:
    if LABELS not in feed:
        hint = f"give data with an array {LABELS!r}, one integer a sample, as --eval-data or --data"
        raise UsageError(f"the data holds no {LABELS!r}", where="--metric accuracy", hint=hint)
    scores, labels = next(iter(output.values())), labels_of(feed).reshape(-1)
    chosen = scores.argmax(axis=-1).reshape(-1)
    if chosen.size != labels.size:
        sizes = f"{labels.size} for {chosen.size} answers"
        raise UsageError(f"the numbers of {LABELS} differ: {sizes}", where="--metric accuracy")
    return Answer(right=int((chosen == labels).sum()), count=labels.size, ease=_ease(scores, labels))


def _ease(scores: Array, labels: Array) -> float:
    """By how much the score of each label lies above the others, the least of these; −inf of a label that no score stands for."""
    classes = scores.shape[-1]
    if not labels.size or ((labels < 0) | (labels >= classes)).any():
        return -math.inf
    others = scores.reshape(-1, classes).astype(np.float64)
    at = np.arange(labels.size), labels
    own = others[at]
    others[at] = -np.inf
    return float((own - others.max(axis=-1)).min())


def _perplexity(outputs: Sequence[Arrays], feeds: Sequence[Arrays], references: Sequence[Arrays]) -> float | None:
    found = [part for output, feed in zip(outputs, feeds, strict=True) for part in _surprises(output, feed)]
    if not found:
        hint = "give a text (.txt), or arrays of input_ids of two tokens and more"
        raise UsageError("no token has another before it", where=f"--metric {PERPLEXITY}", hint=hint)
    every = np.concatenate(found)
    return float(np.exp(every.mean()))


def _surprises(output: Arrays, feed: Arrays) -> Iterator[npt.NDArray[np.float64]]:
    """−ln p of the tokens of each row but the first; rows filled up on the right or on the left are scored where they are not."""
    if SURPRISES in output:  # of a decoder that ran elsewhere
        yield np.asarray(output[SURPRISES])
        return
    logits = next((array for array in output.values() if array.ndim == 3), None)
    ids = feed.get(IDS)
    if logits is None or ids is None or logits.shape[:2] != ids.shape:
        hint = f"it needs an input {IDS!r} [rows, tokens] and logits [rows, tokens, vocabulary] of every token"
        raise UsageError("is of language models", where=f"--metric {PERPLEXITY}", hint=hint)
    mask = np.asarray(feed.get("attention_mask", np.ones(ids.shape)))[:, -ids.shape[1] :]
    for row, of, counts in zip(logits, ids, mask, strict=True):
        places = [at for at in range(1, len(of)) if counts[at] and counts[at - 1]]
        if places:
            yield surprise(row[[at - 1 for at in places]], [int(of[at]) for at in places])


BUILT_IN = {
    "sqnr": Metric.of_agreements("sqnr", "dB", _worst_sqnr),
    "cosine": Metric.of_agreements("cosine", "", _least_cosine),
    "accuracy": Metric.of_digests("accuracy", _answer, _share, are_answers=True),
    "map": Metric.of_digests("map", scenes, mean_average_precision),
    "map50": Metric.of_digests("map50", scenes, functools.partial(mean_average_precision, overlaps=1)),
    PERPLEXITY: Metric(name=PERPLEXITY, unit="", needs_labels=True, function=_perplexity, is_lower=True),
}
