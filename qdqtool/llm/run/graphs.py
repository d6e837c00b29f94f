"""The graphs of a folder for one batch size: which there are, and each with its memory once it is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qdq_passes.errors import ModelError, UsageError

from qdqtool.llm.folder.manifest import Manifest, StaticModel
from qdqtool.llm.run.cache import Cache
from qdqtool.llm.run.devices import Devices
from qdqtool.llm.run.pipelining import IN_FLIGHT, Chunk, Pipeline
from qdqtool.llm.run.steps import Opened, Step, Watch
from qdqtool.llm.run.timeline import Timeline


class Graphs:
    """Opens graphs when they are first asked for. All of a context length share one cache.

    Args:
        folder: where the files are.
        manifest: what is in it.
        batch_size: rows; None takes the fewest there are graphs for.
        contexts: use graphs of these context lengths only; None for all.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        optimize: let onnxruntime optimize the graphs.
        exact: compute in float32 what MatMulNBits would compute in 8 bit.
        watch: told before each run, see `qdqtool.llm.run.steps.Watch`.
        devices: what opens the graphs; None for onnxruntime's CPU provider alone.

    Attributes:
        batch_size: rows.
        contexts: context lengths there are graphs for, ascending.
        timeline: what ran on the devices; None without any.

    Raises:
        UsageError: there is no graph for ``batch_size``, or for ``contexts``.
    """

    def __init__(
        self,
        folder: str,
        manifest: Manifest,
        *,
        batch_size: int | None,
        contexts: Iterable[int] | None,
        threads: int,
        optimize: bool,
        exact: bool,
        watch: Watch | None = None,
        devices: Devices | None = None,
    ) -> None:
        self._folder, self._threads, self._optimize, self._exact = folder, threads, optimize, exact
        self._watch, self._devices = watch, devices
        self.timeline, self._pipeline = None, None
        if devices is not None:
            self.timeline = Timeline(devices.schedule, None if devices.times is None else devices.times.told)
            self._pipeline = Pipeline(devices.schedule, self.timeline, devices.times)
        sizes = sorted({model.batch_size for model in manifest.models})
        self.batch_size = sizes[0] if batch_size is None else batch_size
        if self.batch_size not in sizes:
            there = ", ".join(map(str, sizes))
            raise UsageError(
                f"has no graph for a batch of {batch_size}", where=folder, hint=f"there is a batch size of {there}"
            )
        wanted = None if contexts is None else set(contexts)
        self._models: dict[int, dict[int, StaticModel]] = {}
        for model in manifest.models:
            if model.batch_size == self.batch_size and (wanted is None or model.ctx_len in wanted):
                self._models.setdefault(model.ctx_len, {})[model.seq_len] = model
        if not self._models:
            there = ", ".join(str(n) for n in sorted({m.ctx_len for m in manifest.models}))
            raise UsageError(f"has no graph for a context of {contexts}", where=folder, hint=f"there is {there}")
        self.contexts = tuple(sorted(self._models))
        self._seq_lens = {ctx_len: tuple(sorted(group)) for ctx_len, group in self._models.items()}
        self._steps: dict[str, Step] = {}
        self._lanes: dict[str, list[Step]] = {}
        self._is_slide = manifest.layout == "slide"
        self._caches: dict[int, Cache] = {}

    def __iter__(self) -> Iterator[StaticModel]:
        """The models, opened or not."""
        return (model for group in self._models.values() for model in group.values())

    @property
    def steps(self) -> Mapping[str, Step]:
        """What is open, by name."""
        return self._steps

    def seq_lens(self, ctx_len: int) -> tuple[int, ...]:
        """Tokens of a run of each graph of a context length, ascending."""
        return self._seq_lens[ctx_len]

    def bucket(self, length: int, at_least: int = 0) -> int | None:
        """The smallest context that holds ``length`` tokens and is no smaller than ``at_least``; None when there is none."""
        return next((ctx_len for ctx_len in self.contexts if ctx_len >= max(length, at_least)), None)

    def step(self, ctx_len: int, seq_len: int) -> Step:
        """The graph that runs ``seq_len`` tokens in a context of ``ctx_len``.

        Raises:
            ModelError: it cannot be opened, or is not as the manifest says.
        """
        model = self._models[ctx_len][seq_len]
        if model.name not in self._steps:
            opened = Opened(
                self._folder, model, threads=self._threads, optimize=self._optimize, exact=self._exact, devices=self._devices,
            )  # fmt: skip
            specs = opened.cache_specs()
            if ctx_len not in self._caches:
                self._caches[ctx_len] = Cache(specs, ctx_len)
            elif self._caches[ctx_len].specs.keys() != specs.keys():
                raise ModelError(
                    "has another cache than the other graphs", where=model.name, hint="split the model again"
                )
            self._steps[model.name] = Step(opened, self._caches[ctx_len], self._watch)
            if self.timeline is not None:
                self.timeline.assume(opened.assumptions)
        return self._steps[model.name]

    def run(self, ctx_len: int, chunks: Sequence[tuple[int, Chunk]]) -> Iterator[tuple[Step, Chunk]]:
        """Run (tokens of the graph, chunk) after each other, or as the schedule of the devices has it; each chunk with the step
        whose memory holds its logits until the next is asked for.

        Raises:
            ModelError: a node fails.
        """
        if self._pipeline is None:
            for seq_len, chunk in chunks:
                step = self.step(ctx_len, seq_len)
                step.run(chunk.tokens, chunk.starts)
                yield step, chunk
            return
        size = 1 if self._is_slide or self._pipeline.policy == "sequential" else IN_FLIGHT
        for begin in range(0, len(chunks), size):
            batch = chunks[begin : begin + size]
            used: Counter[str] = Counter()
            steps = []
            for seq_len, _ in batch:
                first = self.step(ctx_len, seq_len)
                steps.append(self._lane(first, used[first.model.name]))
                used[first.model.name] += 1
            self._pipeline.run(steps, [chunk for _, chunk in batch])
            yield from zip(steps, (chunk for _, chunk in batch), strict=True)

    def run_one(self, step: Step, token: int, position: int) -> None:
        """Run one token of the only row in a graph of one token."""
        if self._pipeline is None:
            step.run_one(token, position)
        else:
            self._pipeline.run(
                [step], [Chunk(tokens=((token,),), starts=(position,), spans=((position, position + 1),))]
            )

    def _lane(self, first: Step, number: int) -> Step:
        """A step on the sessions of ``first`` with memory of its own."""
        lanes = self._lanes.setdefault(first.model.name, [first])
        while len(lanes) <= number:
            lanes.append(Step(first.opened, self._caches[first.model.ctx_len], self._watch))
        return lanes[number]

    def cache(self, ctx_len: int) -> Cache:
        """The cache of a context length; opens a graph of it, which says what it is like."""
        if ctx_len not in self._caches:
            self.step(ctx_len, self._seq_lens[ctx_len][0])
        return self._caches[ctx_len]

    def switch(self, before: int, after: int, lengths: Sequence[int]) -> None:
        """Copy what the cache of ``before`` slots holds, ``lengths`` tokens of each row, to that of ``after`` slots."""
        self.cache(after).take(self._caches[before], lengths)

    def clear(self) -> None:
        """Let every slot of the caches stand for 0."""
        for cache in self._caches.values():
            cache.clear()

    def forget(self) -> None:
        """What the caches hold is no longer of use."""
        for cache in self._caches.values():
            cache.forget()

    def computed(self, runs: Mapping[str, int]) -> int:
        """Tokens that graphs computed in ``runs`` (name → how often), padded ones too."""
        return sum(runs.get(model.name, 0) * model.seq_len * self.batch_size for model in self)
