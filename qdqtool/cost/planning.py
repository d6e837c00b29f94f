"""What a decoder may be made of for a chip, option by option: memory, first token, tokens a second, energy; what fits, is best.

An option is a precision, a placement, lengths of chunks and a context. Times are those of the chip's profile with 80 % intervals;
the times of one answer are wrong together, so intervals add up end by end. Nothing is said of accuracy: options of another
precision do not push one off the front."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import Phase
from qdq_passes.errors import UsageError

from qdqtool.chips.chip import Chip, Profile
from qdqtool.cost.buckets import CHUNKS, bucket_lists, covering, padding_of, preparing_ms
from qdqtool.cost.decoders import PIPELINED_LINEAR, STATIC_CONTEXT, STREAMING, Call
from qdqtool.cost.memory_of_shape import Memory, Placement, memory_of
from qdqtool.cost.precisions import beside, precisions_of
from qdqtool.cost.predicting import Prediction, Span, decoder, fallen_back
from qdqtool.cost.shapes import DecoderShape

Axis = Literal["precision", "placement", "chunk", "context"]
#: How surely limits are kept: at both ends of the intervals, by the figures, or not.
Kept = Literal["yes", "likely", "no"]
#: Of a graph: phase, tokens, context.
Run = tuple[Phase, int, int]
#: Digits of a natural logarithm in which options differ: 1 %.
ALIKE = 2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an option must keep; None: anything goes.

    Args:
        memory: bytes in all.
        first_ms: milliseconds to the first token, of the longest prompt.
        tokens_per_second: at the end of the context.
    """

    memory: float | None = None
    first_ms: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is planned.

    Args:
        shape: the decoder.
        chip: where it runs.
        profile: of the runtime.
        contexts: slots of the cache that may be compiled for.
        prompts: their lengths, tokens.
        new: tokens of an answer.
        limits: to be kept.
        buckets: lists of chunks that may be compiled for; None for all of the usual lengths.
        placements: those that may be taken; () for all that the chip's profiles know.
        precisions: likewise; () for those that the profile's rows have.
        notes: what the profile stands in for.
        on_cpu: by phase how many operators the NPU does not run.
        times: of runs of static graphs, where they are known otherwise.
    """

    shape: DecoderShape
    chip: Chip
    profile: Profile
    contexts: tuple[int, ...] = (4096,)
    prompts: tuple[int, ...] = (512,)
    new: int = 256
    limits: Limits = Limits()
    buckets: tuple[tuple[int, ...], ...] | None = None
    placements: tuple[Placement, ...] = ()
    precisions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    on_cpu: Mapping[Phase, int] = field(default_factory=dict)
    times: Mapping[Run, Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing, and placements that nobody measured (UsageError)."""
        if not self.contexts or not self.prompts or min(*self.contexts, *self.prompts, self.new) < 1:
            raise UsageError("a context, a prompt or an answer without tokens", hint="give at least 1")
        known = placements_of(self.chip, self.profile)
        if unknown := [one for one in self.placements if one not in known]:
            what = f"nobody measured {unknown[0]} on {self.chip.name} with {self.profile.stack}"
            raise UsageError(what, hint=f"there is --placement {' or '.join(known)}; another --stack may know more")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One option, and what comes of it.

    Args:
        precision: of weights and activations: ``w4a16``.
        placement: who computes what.
        stack: runtime that the prefill's times are of.
        chunks: lengths of the prefill graphs; () where the runtime takes a prompt as it is.
        context: slots of the cache.
        memory: bytes.
        first: to the first token, of each prompt, the longest last.
        expected: mean of these.
        start: of a token behind the longest prompt.
        end: of a token when the context is full.
        answer: mean of the prompts' and all tokens of an answer behind the longest.
        padding: tokens computed ÷ tokens of the prompts.
        preparing_ms: of preparing the graphs online, None where nobody measured that.
        joules: of an answer, with its interval; None without data.
        busy: what a token's time goes into mostly.
        binds: what it fails at, else what is nearest to its limit.
        fits: into memory, sessions and context.
        kept: whether the limits are.
        front: whether no other of its precision is better in all.
    """

    precision: str
    placement: Placement
    stack: str
    chunks: tuple[int, ...]
    context: int
    memory: Memory
    first: tuple[Span, ...]
    expected: Span
    start: Span
    end: Span
    answer: Span
    padding: float
    preparing_ms: float | None
    joules: Span | None
    busy: str
    binds: str
    fits: bool
    kept: Kept
    front: bool = False

    @property
    def figures(self) -> tuple[float, float, float]:
        """What is to be small: logarithms of the first token's expected time, of a token's at the end, of the memory."""
        return tuple(round(math.log(x), ALIKE) for x in (self.expected.ms, self.end.ms, self.memory.total))  # type: ignore[return-value]

    def value_of(self, axis: Axis) -> object:
        """Where it stands on an axis."""
        return self.chunks if axis == "chunk" else getattr(self, axis)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; milliseconds, bytes, joules."""
        plain = ("precision", "placement", "stack", "context", "preparing_ms", "busy", "binds", "fits", "kept", "front")
        spans = {key: getattr(self, key).to_json() for key in ("expected", "start", "end", "answer")}
        joules = {} if self.joules is None else self.joules.to_json()
        return {
            **{key: getattr(self, key) for key in plain}, "chunks": list(self.chunks), "memory": self.memory.to_json(),
            "first": [span.to_json() for span in self.first], **spans, "padding": round(self.padding, 4),
            "joules": {"joules" if key == "ms" else key: value for key, value in joules.items()} or None,
            "tokens_per_second": {"start": tokens_per_second(self.start), "end": tokens_per_second(self.end)},
        }  # fmt: skip


def tokens_per_second(span: Span) -> dict[str, float]:
    """1000 ÷ milliseconds of a token, and the ends of the interval."""
    ends = {"rate": 1000 / span.ms, "low": 1000 / span.high, "high": 1000 / span.low}
    return {key: float(f"{rate:.4g}") for key, rate in ends.items()}


def candidates(asked: Question) -> tuple[Candidate, ...]:
    """Every option, those of the front marked, in the order in which they are tried: simple before manifold."""
    times = _Times(asked)
    found = [times.choice(*each) for each in _options(asked)]
    return _marked(found)


def best_of(found: Iterable[Candidate]) -> Candidate | None:
    """The option with the quickest answer among those that fit and keep the limits, surely before likely; None without one."""
    good = [one for one in found if one.fits and one.kept != "no"]
    return min(good, key=_rank, default=None)


def what_if(found: Sequence[Candidate], axes: Sequence[Axis]) -> tuple[Candidate, ...]:
    """The best option of each place on these axes; of a place where nothing fits, what comes nearest."""
    places: dict[tuple[object, ...], list[Candidate]] = {}
    for one in found:
        places.setdefault(tuple(one.value_of(axis) for axis in axes), []).append(one)
    return tuple(best_of(group) or min(group, key=_rank) for group in places.values())


def _rank(one: Candidate) -> tuple[object, ...]:
    kept = ("yes", "likely", "no").index(one.kept)
    alike = one.memory.sessions, len(one.chunks), one.memory.total, one.chunks
    return not one.fits, kept, round(math.log(one.answer.ms), ALIKE + 1), *alike


def _marked(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The front: what fits, and than which no other of its precision is better or alike in all of the figures."""
    front: list[Candidate] = []
    for one in sorted((one for one in found if one.fits), key=lambda one: (one.figures, len(one.chunks))):
        rivals = (other.figures for other in front if other.precision == one.precision)
        if not any(all(a <= b for a, b in zip(rival, one.figures, strict=True)) for rival in rivals):
            front.append(one)
    return tuple(replace(one, front=one in front) for one in found)


def placements_of(chip: Chip, profile: Profile) -> tuple[Placement, ...]:
    """Who may compute what under a profile, where a CPU beside the NPU was measured as well."""
    first: Placement = "linear" if profile.form == PIPELINED_LINEAR.name else "whole"
    return (first,) if beside(chip, profile) is None else (first, "prefill")


def _options(asked: Question) -> Iterator[tuple[str, Placement, tuple[int, ...], int]]:
    """(precision, placement, chunks, context)."""
    form = asked.profile.form
    lists = asked.buckets or tuple(bucket_lists(CHUNKS))
    if form == STREAMING.name:
        lists = ((),)
    elif form == PIPELINED_LINEAR.name:
        lists = tuple(one for one in lists if len(one) == 1) or (max(lists, key=len)[-1:],)
    for precision in asked.precisions or precisions_of(asked.profile):
        for placement in asked.placements or placements_of(asked.chip, asked.profile):
            for context in sorted(set(asked.contexts)):
                for chunks in lists:
                    if not chunks or max(chunks) <= context:
                        yield precision, placement, chunks, context


class _Times:
    """The times of a question's options; each call is predicted once."""

    def __init__(self, asked: Question) -> None:
        self.asked = asked
        self.cpu = beside(asked.chip, asked.profile)
        self.prompts = tuple(sorted(asked.prompts))

    @functools.cached_property
    def _known(self) -> dict[tuple[str, Call], Prediction]:
        return {}

    def of(self, profile: Profile, call: Call) -> Prediction:
        """The time of a call."""
        key = (profile.stack, call)
        if key not in self._known:
            self._known[key] = self._predicted(profile, call)
        return self._known[key]

    def _predicted(self, profile: Profile, call: Call) -> Prediction:
        """As the chip's rows tell it, with what falls back to the CPU; of a run that is known otherwise the time is that."""
        asked, found = self.asked, decoder(self.asked.chip, profile, self.asked.shape, call)
        if profile is not asked.profile:  # that of the CPU
            return found
        known = (
            asked.times.get((call.phase, call.tokens, call.context)) if profile.form == STATIC_CONTEXT.name else None
        )
        if known is not None:
            scale = known.ms / found.span.ms
            return replace(
                found, span=known, resources={key: ms * scale for key, ms in found.resources.items()}, widens=()
            )
        count = asked.on_cpu.get(call.phase, 0)
        return fallen_back(found, count) if count else found

    def choice(self, precision: str, placement: Placement, chunks: tuple[int, ...], context: int) -> Candidate:
        """What comes of an option."""
        asked, chip, longest = self.asked, self.asked.chip, self.prompts[-1]
        is_static = asked.profile.form == STATIC_CONTEXT.name
        first, runs = self._prefills(precision, chunks, context)
        start, end, last = (
            self._token(precision, placement, context, held)
            for held in (min(longest, context), context, min(longest + asked.new, context))
        )
        expected = _sum(first).times(1 / len(first))
        answer = _sum([expected, start.span.times(asked.new / 2), last.span.times(asked.new / 2)])
        addressable, watts = chip.hardware.get("addressable_gb"), chip.watts.get(asked.profile.stack)
        room = None if addressable is None else int(addressable.value * 2**30)
        memory = memory_of(
            asked.shape, precision, context=context, runs=chunks or self.prompts, placement=placement,
            is_static=bool(chunks), addressable=room,
        )  # fmt: skip
        fits, binds = _memory_binds(asked, memory, context, longest)
        kept, fails = _kept(asked.limits, first[-1], end.span)
        return Candidate(
            precision=precision, placement=placement, stack=asked.profile.stack, chunks=chunks, context=context, memory=memory,
            first=first, expected=expected, start=start.span, end=end.span, answer=answer, padding=padding_of(self.prompts, runs),
            preparing_ms=preparing_ms(chip.npu, (*chunks, 1)) if is_static else None,
            joules=None if watts is None or placement == "prefill" else answer.times(watts.value / 1000),
            busy=max(end.resources, key=lambda key: end.resources[key]),
            binds=fails if fits and kept == "no" else binds, fits=fits, kept=kept,
        )  # fmt: skip

    def _prefills(
        self, precision: str, chunks: tuple[int, ...], context: int
    ) -> tuple[tuple[Span, ...], list[tuple[int, ...]]]:
        """The time of each prompt, and the runs that it takes."""
        profile = self.asked.profile
        if profile.form != STATIC_CONTEXT.name:
            length = chunks[0] if chunks else max(self.prompts)
            calls = [Call(phase="prefill", tokens=n, precision=precision, chunk=length) for n in self.prompts]
            padded = [math.ceil(n / chunks[0]) * chunks[0] if chunks else n for n in self.prompts]
            return tuple(self.of(profile, call).span for call in calls), [(n,) for n in padded]
        spans = {
            c: self.of(profile, Call(phase="prefill", tokens=c, context=context, precision=precision, chunk=c)).span
            for c in chunks
        }
        runs = [covering(n, {c: span.ms for c, span in spans.items()}) for n in self.prompts]
        return tuple(_sum([spans[c] for c in each]) for each in runs), runs

    def _token(self, precision: str, placement: Placement, context: int, held: int) -> Prediction:
        """A token with ``held`` tokens in the cache; a static graph takes its whole context."""
        profile = self.cpu if placement == "prefill" and self.cpu is not None else self.asked.profile
        seen = context if profile.form == STATIC_CONTEXT.name else held
        return self.of(profile, Call(phase="decode", context=seen, precision=precision))


def _sum(spans: Sequence[Span]) -> Span:
    return Span(ms=sum(s.ms for s in spans), low=sum(s.low for s in spans), high=sum(s.high for s in spans))


def _memory_binds(asked: Question, memory: Memory, context: int, longest: int) -> tuple[bool, str]:
    """Whether an option fits, and what it fails at or is nearest to."""
    if longest + asked.new > context:
        return False, f"context: {longest} + {asked.new} tokens"
    addressable, dram = asked.chip.hardware.get("addressable_gb"), asked.chip.hardware.get("dram_gb")
    if memory.sessions == 0 and addressable is not None:
        return False, f"session of {addressable.value:g} GiB: {memory.session / 2**30:.2f} GiB"
    limit = asked.limits.memory or (None if dram is None else dram.value * 1e9)
    shares = {} if limit is None else {f"memory of {limit / 1e9:g} GB": memory.total / limit}
    if addressable is not None:
        shares[f"session of {addressable.value:g} GiB"] = memory.session / (addressable.value * 2**30)
    if not shares:
        return True, "no limit known"
    name, share = max(shares.items(), key=lambda one: one[1])
    return share <= 1, f"{name}: {100 * share:.0f} %"


def _kept(limits: Limits, first: Span, token: Span) -> tuple[Kept, str]:
    """Whether the limits of times are kept, and which is not."""
    slowest = None if limits.tokens_per_second is None else 1000 / limits.tokens_per_second
    told = [("first token", first, limits.first_ms), ("tokens a second", token, slowest)]
    asked = [(name, span, limit) for name, span, limit in told if limit is not None]
    fails = [name for name, span, limit in asked if span.ms > limit]
    if fails:
        return "no", ", ".join(fails)
    return ("yes" if all(span.high <= limit for _, span, limit in asked) else "likely"), ""
