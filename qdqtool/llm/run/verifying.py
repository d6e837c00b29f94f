"""Compares static graphs with the dynamic model they were made of: teacher-forced logits, and layer by layer the cache.

Greedy tokens hide errors (random models with tied embeddings repeat one token); logits of a forced text do not."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.progress import Progress
from qdqtool.io.models.working import ModelOrPath
from qdqtool.llm.folder.manifest import StaticModel
from qdqtool.llm.run.dynamic import DynamicDecoder
from qdqtool.llm.run.session import Session

#: Largest difference of logits allowed, in units of the largest logit. Both sides sum the same products in float32, in another
#: order and over more (masked) keys: about 1e-6 is seen, at random models as well; what is wrong differs by 1e-2 and more.
TOLERANCE = 1e-4
#: Tokens decoded one by one behind each prompt.
DECODED = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """One prompt.

    Args:
        prompt: its length, tokens.
        chunk: length of the graph that it is for: the longest, or the only one that runs it.
        decoded: tokens decoded behind it.
        context: slots of the cache used.
        batch_size: rows.
        difference: largest |static - dynamic| of a logit, in units of the largest |dynamic| logit.
        token: index of the token behind which the logits differ most.
        layer: the first layer whose cache differs beyond the tolerance; None where none does.
    """

    prompt: int
    chunk: int
    decoded: int
    context: int
    batch_size: int
    difference: float
    token: int
    layer: int | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was compared.

    Args:
        tolerance: largest difference allowed, in units of the largest logit.
        cases: one a prompt, context and batch size.
        is_half: whether the model computes in 16 bit.
    """

    tolerance: float
    cases: tuple[Case, ...]
    is_half: bool = False

    @property
    def passed(self) -> bool:
        """Whether every case is within the tolerance."""
        return all(case.difference <= self.tolerance for case in self.cases)

    @property
    def worst(self) -> float:
        """The largest difference."""
        return max(case.difference for case in self.cases)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "passed": self.passed,
            "tolerance": self.tolerance,
            "difference": self.worst,
            "cases": [case.to_json() for case in self.cases],
        }


def verify_split(
    folder: str | os.PathLike[str],
    model: ModelOrPath,
    *,
    tolerance: float = TOLERANCE,
    lengths: Sequence[int] | None = None,
    decoded: int = DECODED,
    seed: int = 0,
    threads: int = 0,
    progress: Progress | None = None,
) -> Verification:
    """Compare the graphs in ``folder`` with the dynamic ``model`` on random texts, graph optimization disabled on both sides.

    Every batch size and context there is runs prompts of 1, S-1, S, S+1, 2S and 3S+5 tokens, as far as they fit, for each length
    S of its prefill graphs, and decodes behind them; those of the longest are cut into chunks as a session does it, the others
    into chunks of S. Rows of a batch are of different lengths.

    Args:
        folder: what `split` wrote.
        model: the model it was made of.
        tolerance: largest difference allowed, in units of the largest logit.
        lengths: of the prompts instead, at least 1.
        decoded: tokens decoded behind each prompt, as far as they fit.
        seed: of the texts.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        progress: told (cases done, cases in all).

    Raises:
        UsageError: no length fits, ``folder`` was not made of ``model``, or the tolerance is no number.
        ModelError: the folder is damaged.
    """
    refuse_tolerance(tolerance)
    first = Session(folder)
    reference = _Reference(DynamicDecoder(model, threads=threads, optimize=False, exact=True), seed)
    jobs = _jobs(first.manifest.models, lengths)
    if not jobs:
        raise UsageError("no prompt fits the contexts of this folder", hint="give smaller --lengths")
    reference.extend(max(min(job.length + decoded, job.context) for job in jobs) + 2 * max(job.rows for job in jobs))
    cases: list[Case] = []
    for (rows, context), group in itertools.groupby(jobs, key=lambda job: (job.rows, job.context)):
        session = Session(
            folder, threads=threads, batch_size=rows, contexts=[context], verify=False, optimize=False, exact=True
        )  # fmt: skip
        _refuse_other_model(session, reference)
        for job in group:
            cases.append(_case(session, reference, job, min(decoded, context - job.length), tolerance))
            if progress is not None:
                progress(len(cases), len(jobs))
    return Verification(tolerance=tolerance, cases=tuple(cases), is_half=reference.is_half)


def refuse_tolerance(tolerance: float) -> None:
    """Refuse what nothing can be compared with.

    Raises:
        UsageError: it is negative, infinite or no number.
    """
    if not 0 <= tolerance < math.inf:
        raise UsageError(f"a tolerance of {tolerance:g}", hint="give a number such as 1e-4")


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A prompt to run, of ``length`` tokens, for the graph of ``size`` tokens, which runs it all where ``is_forced``."""

    rows: int
    context: int
    size: int
    length: int
    is_forced: bool

    @property
    def chunks(self) -> list[int] | None:
        """What `Session.prefill` is told."""
        return [self.size] * -(-self.length // self.size) if self.is_forced else None


def _jobs(models: Sequence[StaticModel], lengths: Sequence[int] | None) -> list[_Job]:
    """Prompts by batch size and context: those of the longest graph, then of each other prefill graph."""
    jobs = []
    groups = itertools.groupby(
        sorted(models, key=lambda m: (m.batch_size, m.ctx_len, -m.seq_len)), lambda m: (m.batch_size, m.ctx_len)
    )
    for (rows, context), group in groups:
        for number, model in enumerate(group):
            if number and model.seq_len == 1:  # decodes behind every prompt
                continue
            wanted = lengths if lengths is not None else boundary_lengths(model.seq_len)
            jobs += [
                _Job(rows=rows, context=context, size=model.seq_len, length=length, is_forced=number > 0)
                for length in wanted
                if 1 <= length <= context
            ]
    return jobs


def boundary_lengths(length: int) -> tuple[int, ...]:
    """Lengths of prompts at which chunks of ``length`` tokens begin and end: 1, S-1, S, S+1, 2S, 3S+5."""
    return tuple(sorted({1, max(length - 1, 1), length, length + 1, 2 * length, 3 * length + 5}))


class _Reference:
    """The dynamic model over one random text: logits and caches of all its tokens. Rows of a batch are its beginnings."""

    def __init__(self, decoder: DynamicDecoder, seed: int) -> None:
        self._decoder, self._source = decoder, np.random.default_rng(seed)
        self.ids: list[int] = []
        self.logits: Array = np.zeros((0, 0), np.float32)
        self.caches: dict[tuple[int, str], Array] = {}

    @property
    def is_half(self) -> bool:
        """Whether the model computes in 16 bit."""
        return self._decoder.is_half

    def extend(self, count: int) -> None:
        """Have ``count`` tokens."""
        self._decoder.reset()
        vocabulary = self._decoder.vocabulary or self._decoder.logits([0]).shape[-1]
        self._decoder.reset()
        self.ids = [int(token) for token in self._source.integers(0, vocabulary, count)]
        self.logits = self._decoder.logits(self.ids)
        self.caches = {(pair.layer, pair.part): self._decoder.cache(pair) for pair in self._decoder.pairs}


def _refuse_other_model(session: Session, reference: _Reference) -> None:
    """Refuse graphs that were made of a model with other tokens or another cache.

    Raises:
        UsageError: they were.
    """
    found = session.prefill([[0]] * session.batch_size if session.batch_size > 1 else [0]).shape[-1]
    known = reference.logits.shape[-1]
    kept = {
        (layer, part)
        for t in session.manifest.models[0].decoder.cache
        for layer in range(t.layer, t.layer + t.layers)
        for part in (("key", "value") if t.part == "both" else (t.part,))
    }
    if found == known and kept == reference.caches.keys():
        return
    what = f"{found} tokens are known" if found != known else f"{len(kept)} keys and values are kept"
    other = f"{known}" if found != known else f"{len(reference.caches)}"
    raise UsageError(f"{what}, by the model {other}", where=session.folder, hint="give the model that was split")


def _case(session: Session, reference: _Reference, job: _Job, decoded: int, tolerance: float) -> Case:
    """Run a prompt and tokens behind it; the second row of a batch is two tokens shorter, and so on."""
    session.reset()
    rows, length = session.batch_size, job.length
    lengths = [max(length - 2 * row, 1) for row in range(rows)]
    ids = [reference.ids[:n] for n in lengths]
    got = [np.atleast_2d(session.prefill(ids if rows > 1 else ids[0], chunks=job.chunks))]
    for step in range(decoded):
        tokens = [reference.ids[n + step] for n in lengths]
        got.append(np.atleast_2d(session.decode(tokens if rows > 1 else tokens[0])))
    scale = float(np.abs(reference.logits).max())
    differences = np.zeros((decoded + 1, rows))
    for step, logits in enumerate(got):
        for row, n in enumerate(lengths):
            differences[step, row] = np.abs(logits[row] - reference.logits[n - 1 + step]).max() / scale
    at = np.unravel_index(np.nanargmax(np.where(np.isfinite(differences), differences, np.inf)), differences.shape)
    worst = float(differences[at]) if np.isfinite(differences[at]) else float("inf")
    layer = (
        _first_bad_layer(session, reference, [n + decoded for n in lengths], tolerance) if worst > tolerance else None
    )
    return Case(
        prompt=length, chunk=job.size, decoded=decoded, context=session.context, batch_size=rows, difference=min(worst, 1e30),
        token=lengths[int(at[1])] - 1 + int(at[0]), layer=layer,
    )  # fmt: skip


def _first_bad_layer(session: Session, reference: _Reference, lengths: Sequence[int], tolerance: float) -> int | None:
    """The first layer whose keys or values differ by more than ``tolerance`` of their largest."""
    for (layer, part), expected in sorted(reference.caches.items()):
        scale = float(np.abs(expected).max()) or 1.0
        for row, length in enumerate(lengths):
            held, wanted = _cached(session, layer, part), expected[:length]
            if held is None or (got := held[row, :length]).shape != wanted.shape:  # the folder is another model's
                return layer
            if not np.abs(got.astype(np.float32) - wanted).max(initial=0.0) <= tolerance * scale:
                return layer
    return None


def _cached(session: Session, layer: int, part: str) -> Array | None:
    """Keys or values of ``layer``, [rows, slots, …], out of a state of several layers too; None where there is no such layer."""
    for tensor in session.manifest.models[0].decoder.cache:
        if tensor.part in (part, "both") and tensor.layer <= layer < tensor.layer + tensor.layers:
            held = session.cache(tensor.layer, tensor.part)
            if tensor.scale:
                held = ((held.astype(np.float64) - tensor.zero_point) * tensor.scale).astype(np.float32)
            if tensor.layers == 1 and tensor.part != "both":
                return held
            behind = tensor.layers if (tensor.part, part) == ("both", "value") else 0  # all keys, then all values
            found: Array = held[:, :, behind + layer - tensor.layer]
            return found
    return None
