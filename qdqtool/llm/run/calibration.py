"""Texts through the graphs of a folder, so that whoever calibrates sees what each graph reads: ids, positions, masks, the cache.

A text is cut into windows, spread over it evenly. Each window runs from an empty cache, teacher-forced, until the context is
full: every other one a chunk of S tokens, `DECODED` tokens decoded behind it, the next chunk; the others chunk after chunk. So
each prefill graph is seen at every position, and decoding behind as many lengths as there are chunks. Every chunk is full: no
padded row is ever run. Slots of the cache that no token has written hold 0, which every encoding has; masks hide them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.llm.folder.manifest import Manifest, StaticModel, read_manifest
from qdqtool.llm.run.session import Session
from qdqtool.llm.run.steps import Watch

#: Windows where nothing is said.
SAMPLES = 32
#: Where there is no prefill graph, every so many-th step is watched.
EVERY = 8
#: Tokens decoded behind a chunk: a prefill graph that gives the logits of its last token shows one of each S, these show more.
DECODED = 8


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The windows that run one prefill graph, and the decode graph beside it.

    Args:
        batch_size: rows.
        ctx_len: slots of the cache.
        seq_len: tokens of a chunk; 1 where there are decode graphs alone.
        decodes: whether there is a graph of one token.
    """

    batch_size: int
    ctx_len: int
    seq_len: int
    decodes: bool

    def steps(self, window: int) -> Iterator[tuple[int, int]]:
        """(place in the window, tokens) of each run; windows of odd numbers decode nothing where they run chunks."""
        if window % 2 and self.seq_len > 1:
            yield from ((place, self.seq_len) for place in range(0, self.ctx_len - self.seq_len + 1, self.seq_len))
            return
        place = 0
        while place < self.ctx_len:
            is_chunk = place + self.seq_len <= self.ctx_len
            if is_chunk:
                yield place, self.seq_len
                place += self.seq_len
            if self.decodes and (self.seq_len > 1 or not is_chunk):
                behind = range(place, min(place + DECODED, self.ctx_len))
                yield from ((each, 1) for each in behind)
                place += len(behind)
            if not is_chunk:
                return  # the rest of the context is no chunk, and some steps have been seen

    @property
    def tokens(self) -> int:
        """Tokens of a window, at most."""
        return max(place + size for window in (0, 1) for place, size in self.steps(window))


def schedules(manifest: Manifest) -> list[Schedule]:
    """One for each prefill graph; for each context and batch size without one, one of decoding alone."""

    def key(model: StaticModel) -> tuple[int, int]:
        return model.batch_size, model.ctx_len

    found = []
    for (rows, ctx_len), group in itertools.groupby(sorted(manifest.models, key=key), key):
        sizes = sorted({model.seq_len for model in group})
        for size in [s for s in sizes if s > 1] or sizes:
            found.append(Schedule(batch_size=rows, ctx_len=ctx_len, seq_len=size, decodes=1 in sizes))
    return found


@dataclass(frozen=True)
class Texts:
    """What is calibrated on.

    Args:
        ids: of each text, at least 2 tokens; a text that is shorter than a window is repeated.
        samples: windows in all; None for `SAMPLES`. Every prefill graph has one at least.
    """

    ids: tuple[Sequence[int], ...]
    samples: int | None = None

    @classmethod
    def none(cls) -> Texts:
        """No text, where nothing is run."""
        return cls(())


class Windows:
    """Windows of texts through the graphs of a folder, which they are spread over evenly.

    Args:
        folder: what `split` wrote, verified.
        texts: the texts.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.

    Attributes:
        tasks: (schedule, window) of each, schedule by schedule.

    Raises:
        UsageError: too few tokens or samples.
    """

    def __init__(self, folder: str | os.PathLike[str], texts: Texts, *, threads: int = 1) -> None:
        self.schedules = schedules(read_manifest(folder))
        samples, least = texts.samples, min(map(len, texts.ids), default=0)
        if samples is not None and samples < 1:
            raise UsageError(f"{samples} samples", hint="--samples takes a number from 1")
        if least < 2:
            raise UsageError(f"{least} tokens to calibrate on", hint="give a longer text")
        self._folder, self._texts, self._threads = folder, texts.ids, threads
        plans = len(self.schedules)
        wanted = max(SAMPLES if samples is None else samples, plans)
        self._counts = [wanted // plans + (number < wanted % plans) for number in range(plans)]
        self.tasks = [(plan, window) for plan, count in enumerate(self._counts) for window in range(count)]
        self._open: tuple[int, Session, _Watched] | None = None

    @property
    def warning(self) -> str:
        """Which texts are shorter than a window; empty where none is."""
        window, many = max(plan.tokens for plan in self.schedules), len(self._texts)
        short = [len(text) for text in self._texts if len(text) < window]
        if not short:
            return ""
        if many == 1:
            return f"the text has {short[0]} tokens, less than a window: it is repeated"
        return f"{len(short)} of {many} texts have {min(short)} tokens or more, less than a window of {window}: they are repeated"

    def run(self, task: tuple[int, int], watch: Watch) -> None:
        """Run one of ``tasks``: ``watch`` is told before each run that counts the model, its part, and what that part reads:
        views, which the run may overwrite."""
        number, window = task
        plan = self.schedules[number]
        if self._open is None or self._open[0] != number:
            watched = _Watched(EVERY if plan.seq_len == 1 else 1)
            session = Session(
                self._folder, threads=self._threads, batch_size=plan.batch_size, contexts=[plan.ctx_len], verify=False,
                watch=watched,
            )  # fmt: skip
            self._open = number, session, watched
        _, session, watched = self._open
        watched.begin(watch)
        session.reset(clear=True)  # what an earlier window left must not widen ranges
        texts = [self._row(number, window * plan.batch_size + row) for row in range(plan.batch_size)]
        for place, size in plan.steps(window):
            session.extend([text[place : place + size] for text in texts], [size])

    def _row(self, number: int, row: int) -> list[int]:
        """Row ``row`` of all that schedule ``number`` runs: the rows of all schedules are spread over the texts, those of a
        schedule that fall on one text over it."""
        rows = [count * plan.batch_size for count, plan in zip(self._counts, self.schedules, strict=True)]
        before, total, texts = sum(rows[:number]), sum(rows), len(self._texts)
        text = (before + row) * texts // total
        first = max(before, -(-text * total // texts))
        last = min(before + rows[number], -(-(text + 1) * total // texts))
        return _cut(self._texts[text], self.schedules[number].tokens, before + row - first, last - first)


class _Watched:
    """Passes on the first run of a window, and every ``every``-th behind it."""

    def __init__(self, every: int) -> None:
        self._every, self._seen = every, 0
        self._watch: Watch | None = None

    def begin(self, watch: Watch) -> None:
        """A window begins."""
        self._watch, self._seen = watch, 0

    def __call__(self, model: StaticModel, part: int, inputs: Mapping[str, Array]) -> None:
        if self._watch is not None and self._seen % self._every == 0:
            self._watch(model, part, inputs)
        self._seen += part == len(model.parts) - 1


def _cut(ids: Sequence[int], length: int, number: int, count: int) -> list[int]:
    """Window ``number`` of ``count`` of ``length`` tokens, spread evenly over ``ids``, which are repeated where too short."""
    room = max(len(ids) - length, 0)
    begin = room * number // max(count - 1, 1)
    return [int(ids[(begin + k) % len(ids)]) for k in range(length)]
