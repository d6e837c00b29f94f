"""A folder of static decoder graphs as one language model: prompts in chunks, a cache that stays, contexts that grow."""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.progress import Progress
from qdqtool.llm.folder.manifest import MANIFEST, Manifest, read_manifest, refuse_damaged
from qdqtool.llm.plan import buckets
from qdqtool.llm.run.devices import GraphPlacement, devices_of
from qdqtool.llm.run.generating import generate
from qdqtool.llm.run.graphs import Graphs
from qdqtool.llm.run.pipelining import Chunk
from qdqtool.llm.run.run_times import RunTimes
from qdqtool.llm.run.steps import Step, Watch
from qdqtool.llm.run.timeline import Timeline

Ids = Sequence[int] | Sequence[Sequence[int]]


class Session:
    """What `split` wrote, ready to run. Graphs are opened when they are first needed.

    Rows: a session runs ``batch_size`` texts side by side, of different lengths if need be. With one row, ids are a list of
    numbers and logits [vocabulary]; with more, ids are a list of such lists and logits [rows, vocabulary]. Logits are
    float32 and the caller's own. A session is for one thread at a time; several sessions of one folder run side by side.

    Args:
        folder: what `split` wrote.
        threads: threads inside an operator; None leaves the choice to onnxruntime.
        batch_size: rows; None takes the fewest there are graphs for.
        verify: first compare every file with the hashes of the manifest.
        optimize: let onnxruntime optimize the graphs. None: only where they are float, as the kernels that it fuses pairs into
            compute something else (8-bit products saturate on processors without VNNI).
        exact: compute in float32 what MatMulNBits would compute in 8 bit: then it does not matter how many tokens run at once.
        contexts: use graphs of these context lengths only; None for all.
        device: what runs the graphs: ``"cpu"`` (onnxruntime's provider, as by default) or ``"npusim"``, the simulated NPU.
        target: name or file of the target of a device.
        arrange: ``"whole"``: the NPU takes what it can; ``"linear"``: linear layers, with attention and norms on the CPU; by
            default as the target says.
        schedule: ``"sequential"``, ``"in-order"`` or ``"out-of-order"`` (of a device the default): how chunks and engines follow
            each other. The numbers are the same.
        prefill_device: ``device`` of the prefill graphs alone.
        decode_device: ``device`` of the decode graphs alone.
        times: of a device, what runs of the graphs take on a chip; by default what their pieces are estimated to take.
        watch: told before each run, see `qdqtool.llm.run.steps.Watch`; with a schedule from a thread of each engine.
        progress: told (files verified, files in all).

    Raises:
        ModelError: the folder is damaged, or not as it was written.
        UsageError: it has no graph for ``batch_size``, or for ``contexts``; or an option of the devices means nothing.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        threads: int | None = None,
        batch_size: int | None = None,
        verify: bool = True,
        optimize: bool | None = None,
        exact: bool = False,
        contexts: Sequence[int] | None = None,
        device: str | None = None,
        target: str | os.PathLike[str] | None = None,
        arrange: str | None = None,
        schedule: str | None = None,
        prefill_device: str | None = None,
        decode_device: str | None = None,
        times: RunTimes | None = None,
        watch: Watch | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.folder = os.fspath(folder)
        devices = devices_of(
            device, target=target, arrange=arrange, schedule=schedule, prefill_device=prefill_device,
            decode_device=decode_device, threads=threads or 0, times=times,
        )  # fmt: skip
        self.manifest: Manifest = read_manifest(folder)
        if verify:
            refuse_damaged(folder, progress=progress)
        self._graphs = Graphs(
            self.folder, self.manifest, batch_size=batch_size, contexts=contexts, threads=threads or 0,
            optimize=not self.manifest.quantization if optimize is None else optimize, exact=exact, watch=watch,
            devices=devices,
        )  # fmt: skip
        self.batch_size = self._graphs.batch_size
        self._ctx_len = 0
        self._tokens: list[list[int]] = []
        self._pending: list[list[int]] = []
        self.runs: Counter[str] = Counter()
        self.reset()

    def is_of(self, path: str) -> bool:
        """Whether ``path`` is a file that this session was opened from."""
        own = (os.path.join(self.folder, name) for name in (MANIFEST, *self.manifest.files))
        return os.path.exists(path) and any(os.path.exists(name) and os.path.samefile(name, path) for name in own)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths there are graphs for, ascending."""
        return self._graphs.contexts

    @property
    def context(self) -> int:
        """The largest number of tokens."""
        return self._graphs.contexts[-1]

    @property
    def ctx_len(self) -> int:
        """Slots of the cache at present; 0 before the first run."""
        return self._ctx_len

    @property
    def lengths(self) -> tuple[int, ...]:
        """Per row, how many tokens are in the cache."""
        return tuple(len(row) for row in self._tokens)

    @property
    def length(self) -> int:
        """How many tokens are in the cache, of the longest row."""
        return max(self.lengths)

    @property
    def position(self) -> int:
        """Position of the next token, of the longest row."""
        return self.length

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """Per row, the tokens in the cache."""
        return tuple(tuple(row) for row in self._tokens)

    @property
    def pending(self) -> tuple[tuple[int, ...], ...]:
        """Per row, what `generate` gave last and has not run: the next `generate` begins with it."""
        return tuple(tuple(row) for row in self._pending)

    def cache(self, layer: int, part: str) -> Array:
        """The keys or values of a layer, [rows, slots, …]: slot t holds the token at position t. A view, until the next run;
        of integers where the cache is of integers, see `CacheTensor.scale`.

        Raises:
            UsageError: there is no such tensor, or nothing has run yet.
        """
        held = self._graphs.cache(self._ctx_len) if self._ctx_len else None
        if held is None or (layer, part) not in held.specs:
            raise UsageError(f"has no {part} of layer {layer}", where=self.folder, hint="run a prompt first")
        held.flush()
        return held.by_token((layer, part))

    @property
    def timeline(self) -> Timeline | None:
        """What ran on the devices since the last `Timeline.clear`; None without a device."""
        return self._graphs.timeline

    @property
    def placements(self) -> tuple[GraphPlacement, ...]:
        """Where the operators run of each graph file that is open on a device."""
        return tuple(found for step in self._graphs.steps.values() for found in step.opened.placements)

    @property
    def gives_all_logits(self) -> bool:
        """Whether every graph gives the logits of all its tokens."""
        return all(not model.decoder.last_index for model in self._graphs)

    def reset(self, *, clear: bool = False) -> None:
        """Forget all tokens. The memory of the cache is kept, and the graphs stay open.

        Args:
            clear: also clear that memory. Without, slots hold what they held, which masks hide until a token is written there.
        """
        if clear:
            self._graphs.clear()
        self._graphs.forget()
        self._tokens = [[] for _ in range(self.batch_size)]
        self._pending = [[] for _ in range(self.batch_size)]
        self._ctx_len = 0

    def prefill(self, ids: Ids, *, chunks: Sequence[int] | None = None) -> Array:
        """Run a prompt, behind what the cache holds.

        Args:
            ids: tokens; of several rows, a row may be empty.
            chunks: lengths of the graphs to run, in this order; by default those of the least cost.

        Returns:
            Logits of the last token: [vocabulary], or [rows, vocabulary] (zeros for an empty row).

        Raises:
            UsageError: there are no ids, one is no token, or they do not fit into the largest context: before anything runs.
        """
        rows = self._rows(ids)
        if not any(rows):
            raise UsageError("there are no tokens to run", hint="give at least one")
        self._pending = [[] for _ in range(self.batch_size)]
        return self._shaped(self.extend(rows, chunks))

    def decode(self, token: int | Sequence[int]) -> Array:
        """Run one token, or one for each row.

        Returns:
            Logits [vocabulary], or [rows, vocabulary].

        Raises:
            UsageError: it is no token, or the largest context is full: before anything runs.
        """
        rows = self._rows([token] if isinstance(token, int | np.integer) else [[t] for t in token])
        self._pending = [[] for _ in range(self.batch_size)]
        return self._shaped(np.array(self.advance(rows), np.float32))

    def logits(self, ids: Sequence[int]) -> Array:
        """Run tokens, and give the logits of each, [tokens, vocabulary]: in chunks where the graphs give them all, else one
        by one.

        Raises:
            UsageError: the session has several rows, one is no token, or they do not fit into the largest context.
        """
        if self.batch_size != 1:
            raise UsageError(
                "logits of all tokens are given for one row only", hint="open the session with batch_size=1"
            )
        (row,) = self._rows(ids)
        if not self.gives_all_logits:
            return np.stack([self.decode(token) for token in row])
        found: dict[int, Array] = {}

        def collect(step: Step, spans: Sequence[tuple[int, int]]) -> None:
            ((first, last),) = spans
            found.update(zip(range(first, last), np.array(step.rows(0, last - first), np.float32), strict=True))

        before = self.length
        self._pending = [[]]
        self.extend([row], None, collect)
        return np.stack([found[position] for position in range(before, self.length)])

    def generate(
        self,
        prompt_ids: Ids,
        max_new: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        eos: Iterable[int] | None = None,
        on_token: Callable[[int, int], None] | None = None,
    ) -> list[int] | list[list[int]]:
        """New tokens for a prompt, behind what the cache holds; a token that ends the text is the last of them.

        Options and errors as `qdqtool.llm.run.generating.generate`, which also tells how long it took.
        """
        found = generate(
            self, prompt_ids, max_new, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, eos=eos,
            on_token=on_token,
        )  # fmt: skip
        return list(found.tokens[0]) if self.batch_size == 1 else [list(row) for row in found.tokens]

    def prompt_rows(self, ids: Ids) -> list[list[int]]:
        """Per row, what a prompt of ``ids`` runs: behind what the last `generate` has left to run."""
        return [[*left, *row] for left, row in zip(self._pending, self._rows(ids), strict=True)]

    def leave(self, rows: Sequence[Sequence[int]]) -> None:
        """Note what is given but has not run: the next `generate` begins with it."""
        self._pending = [list(row) for row in rows]

    def room(self, length: int, most: int) -> int:
        """How many new tokens fit behind ``length`` more: at most ``most``, at least 1 (which may be refused)."""
        return max(1, min(most, self.context - self.length - length + 1))

    def computed(self, runs: Mapping[str, int]) -> int:
        """Tokens that graphs computed in ``runs`` (name → how often), padded ones too."""
        return self._graphs.computed(runs)

    def warm_up(self, length: int, new: int) -> None:
        """Open the graphs that a prompt of ``length`` tokens and ``new`` more will need, and run each once."""
        first = self._bucket(self.length + length)
        last = self._bucket(min(self.length + length + max(new - 1, 0), self.context))
        for ctx_len in self.contexts:
            if first <= ctx_len <= last:
                there = self._graphs.seq_lens(ctx_len)
                for seq_len in {*(buckets.chunks(length, there) if ctx_len == first else ()), there[0]}:
                    self._graphs.step(ctx_len, seq_len)
        if not self.length:
            for step in self._graphs.steps.values():
                step.run([[]] * self.batch_size, [0] * self.batch_size)

    def advance(self, rows: Sequence[Sequence[int]]) -> Array:
        """Run at most one token in each row, as `decode` does: logits [rows, vocabulary], which the next run overwrites."""
        position = len(self._tokens[0])
        if self.batch_size == 1 and position < self._ctx_len and self._graphs.seq_lens(self._ctx_len)[0] == 1:
            step, token = self._graphs.step(self._ctx_len, 1), rows[0][0]
            if token >= step.logits.shape[2]:
                self._refuse_tokens(rows, step)
            self._graphs.run_one(step, token, position)
            self.runs[step.model.name] += 1
            self._tokens[0].append(token)
            return step.logits[:, -1]
        return self.extend(rows)

    def extend(
        self,
        rows: Sequence[Sequence[int]],
        sizes: Sequence[int] | None = None,
        each: Callable[[Step, Sequence[tuple[int, int]]], None] | None = None,
    ) -> Array:
        """Run the tokens of ``rows``: logits [rows, vocabulary] of the last of each, float32.

        Args:
            rows: tokens of each row.
            sizes: lengths of the graphs to run; None chooses.
            each: called after each run with (position of the first token, of the one behind the last) of each row.
        """
        before = self.lengths
        whole = [[*known, *new] for known, new in zip(self._tokens, rows, strict=True)]
        ends = [len(row) for row in whole]
        ctx_len = self._bucket(max(ends))
        most = max(len(row) for row in rows)
        if sizes is None:
            sizes = buckets.chunks(most, self._graphs.seq_lens(ctx_len))
        self._refuse_sizes(sizes, most, ctx_len)
        self._refuse_tokens(rows, self._graphs.step(ctx_len, sizes[0]))
        if self._ctx_len not in (0, ctx_len):
            self._graphs.switch(self._ctx_len, ctx_len, before)
        self._ctx_len = ctx_len
        found = np.zeros((self.batch_size, self._graphs.step(ctx_len, sizes[0]).logits.shape[2]), np.float32)
        chunks, done, left = [], 0, sum(sizes)
        for size in sizes:
            left -= size
            if self.manifest.layout == "in-place":
                spans = [buckets.from_left(b + done, e, size, ctx_len) for b, e in zip(before, ends, strict=True)]
            else:
                spans = [buckets.from_right(b, e - left, size) for b, e in zip(before, ends, strict=True)]
            done += size
            tokens = [row[first:last] for row, (first, last) in zip(whole, spans, strict=True)]
            chunks.append((size, Chunk(tokens=tokens, starts=[first for first, _ in spans], spans=spans)))
        for step, chunk in self._graphs.run(ctx_len, chunks):
            self.runs[step.model.name] += 1
            counts = [len(row) for row in chunk.tokens]
            for row, (_, last) in enumerate(chunk.spans):
                if rows[row] and counts[row] and last == ends[row]:
                    found[row] = step.row(row, counts[row])
            if each is not None:
                each(step, chunk.spans)
        self._tokens = whole
        return found

    def _rows(self, ids: Ids) -> list[list[int]]:
        """``ids`` as a list for each row, of plain numbers."""
        nested = [isinstance(item, Sequence | np.ndarray) for item in ids]
        given: list[Any] = list(ids) if any(nested) or (self.batch_size > 1 and not len(ids)) else [ids]
        if len(given) != self.batch_size or (any(nested) and not all(nested)):
            raise UsageError(
                f"{len(given)} rows of tokens for a session of {self.batch_size}", hint="give a list for each row"
            )
        try:
            rows = [[operator.index(token) for token in row] for row in given]
        except TypeError as error:
            raise UsageError(f"tokens are whole numbers ({error})", hint="give a list of ids") from error
        for row in rows:
            if row and min(row) < 0:
                raise UsageError(f"{min(row)} is no token", hint="tokens are numbers from 0")
        return rows

    def _shaped(self, logits: Array) -> Array:
        return logits[0] if self.batch_size == 1 else logits

    def _bucket(self, length: int) -> int:
        """The smallest context that holds ``length`` tokens, and is no smaller than the present one."""
        found = self._graphs.bucket(length, self._ctx_len)
        if found is not None:
            return found
        known = f"{self.length} and {length - self.length} more" if self.length else f"{length}"
        raise UsageError(
            f"{known} tokens do not fit: the largest context of the folder is {self.context}",
            hint="give fewer, reset the session, or split with a larger --context",
        )

    def _refuse_sizes(self, sizes: Sequence[int], length: int, ctx_len: int) -> None:
        there = self._graphs.seq_lens(ctx_len)
        for size in sizes:
            if size not in there:
                names = ", ".join(map(str, there))
                raise UsageError(f"no graph runs {size} tokens in a context of {ctx_len}", hint=f"there is {names}")
        if sum(sizes) < length:
            raise UsageError(f"chunks of {sum(sizes)} tokens for a prompt of {length}", hint="give more chunks")

    def _refuse_tokens(self, rows: Sequence[Sequence[int]], step: Step) -> None:
        highest, count = max(max(row, default=0) for row in rows), step.logits.shape[2]
        if highest >= count:
            raise UsageError(f"{highest} is no token, the model knows {count}", hint="use the tokenizer of this model")
