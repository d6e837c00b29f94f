"""One static decoder with its memory: a run takes up to S tokens in each row and leaves the logits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from qdq_passes.decoder.look.record import CacheTensor
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.models.load import load
from qdqtool.llm.folder.manifest import StaticModel
from qdqtool.llm.run.cache import Cache, CacheSpec, Key, Window
from qdqtool.llm.run.devices import Devices, GraphPlacement, Stage
from qdqtool.llm.run.dynamic import in_float32
from qdqtool.llm.run.masks import HostMask
from qdqtool.runtime.bound import Bound, Buffer, open_file
from qdqtool.runtime.session import Session, open_session

#: Told before each run: the model, the number of the part that runs, what its inputs hold: views, which the run may overwrite.
Watch = Callable[[StaticModel, int, Mapping[str, Array]], None]


class Opened:
    """The sessions of the parts of a static model.

    Args:
        folder: where its files are.
        model: its entry of the manifest.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        optimize: let onnxruntime optimize the graphs.
        exact: compute in float32 what MatMulNBits would compute in 8 bit.
        devices: what opens the graphs; None for onnxruntime's CPU provider alone.

    Attributes:
        parts: sessions, in the order in which they run: of each part, or of its stages.
        stages: what a device opened; empty without.
        placements: what it says of each part.
        assumptions: the numbers that its microseconds are made of.

    Raises:
        ModelError: a graph has other inputs or shapes than the manifest says.
    """

    def __init__(
        self,
        folder: str,
        model: StaticModel,
        *,
        threads: int,
        optimize: bool,
        exact: bool = False,
        devices: Devices | None = None,
    ) -> None:
        self.model = model
        self.parts: list[Session] = []
        self.stages: list[Stage] = []
        self.placements: list[GraphPlacement] = []
        self.assumptions: list[Mapping[str, Any]] = []
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for number, part in enumerate(model.parts):
            path = os.path.join(folder, part.file)
            if devices is not None:
                opened = devices.open(path, model, number)
                self.stages += opened.stages
                self.placements += [opened.placement] if opened.placement is not None else []
                self.assumptions += opened.assumptions
                self._take(path, *(stage.session for stage in opened.stages))
            elif exact:
                self._take(path, open_session(in_float32(load(path)), threads=threads, optimize=optimize))
            else:
                self._take(path, open_file(path, threads=threads, optimize=optimize))
        decoder = model.decoder
        wanted = [decoder.ids, decoder.logits, *(m.name for m in decoder.masks)]
        wanted += [n for n in (decoder.positions, decoder.index, decoder.last_slot, decoder.last_index) if n]
        wanted += [n for tensor in decoder.cache for n in (tensor.past, tensor.present)]
        for name in wanted:
            if name not in self.shapes:
                raise ModelError(f"no graph has {name!r}, which the manifest names", where=model.name)
        if self.dtypes[decoder.ids].kind not in "iu":
            raise UnsupportedError(
                f"it takes embeddings ({self.dtypes[decoder.ids]}), not ids",
                where=model.name,
                hint="split a model of ids",
            )

    def _take(self, path: str, *sessions: Session) -> None:
        for session in sessions:
            self.parts.append(session)
            for names, shapes, dtypes in (
                (session.input_names, session.input_shapes, session.input_dtypes),
                (session.output_names, session.output_shapes, session.output_dtypes),
            ):
                for name in names:
                    self._note(path, name, shapes[name], dtypes[name])

    def _note(self, path: str, name: str, shape: Sequence[Any], dtype: np.dtype[Any] | None) -> None:
        if dtype is None or not all(isinstance(size, int) for size in shape):
            raise ModelError(f"{name!r} has no static shape", where=path, hint="split the model again")
        self.dtypes.setdefault(name, dtype)
        self.shapes.setdefault(name, tuple(shape))

    def cache_specs(self) -> dict[Key, CacheSpec]:
        """What the cache of this model is like."""
        return {
            key_of(t): CacheSpec(
                shape=self.shapes[t.past],
                axis=t.axis,
                dtype=self.dtypes[t.past],
                groups=t.layers * (2 if t.part == "both" else 1),
                fill=t.zero_point,
            )
            for t in self.model.decoder.cache
        }


def key_of(tensor: CacheTensor) -> Key:
    """How tensors of several graphs are known as the same."""
    return tensor.layer, tensor.part


class Step:
    """A static decoder bound to a cache.

    Args:
        opened: its sessions.
        cache: the cache of its context length.
        watch: see `Watch`.

    Attributes:
        opened: its sessions.
        logits: memory of the logits, [B, 1, V] or [B, S, V].
    """

    def __init__(self, opened: Opened, cache: Cache, watch: Watch | None = None) -> None:
        self.opened, self._cache, self.model, self._watch = opened, cache, opened.model, watch
        decoder = self.model.decoder
        self.seq_len, self._is_slide = decoder.seq_len, decoder.layout == "slide"
        buffers: dict[str, Buffer] = {}
        self._new: dict[Key, Array] = {}
        for tensor in decoder.cache:
            if self._is_slide:
                buffers[tensor.past] = self._buffer(tensor.past)
                buffers[tensor.present] = self._buffer(tensor.present)
                self._new[key_of(tensor)] = buffers[tensor.present].array
            else:  # read and written where it is
                buffers[tensor.past] = buffers[tensor.present] = cache.buffers[key_of(tensor)]
        for name in opened.shapes:
            if name not in buffers:
                buffers[name] = self._buffer(name)
        self._bound = [Bound(session, buffers, buffers) for session in opened.parts]
        self._array = {name: buffer.array for name, buffer in buffers.items()}
        logits = self._array[decoder.logits]
        self.logits: Array = logits if logits.ndim == 3 else logits[:, None]
        self._masks = [HostMask(self._array[m.name], decoder.layout, m.window, m.hidden) for m in decoder.masks]
        if decoder.total:
            self._array[decoder.total][...] = decoder.ctx_len
        self.window = Window(cache, self.seq_len, self._readers(), self._new) if self._is_slide else None

    def _buffer(self, name: str) -> Buffer:
        return Buffer(np.zeros(self.opened.shapes[name], self.opened.dtypes[name]))

    def _readers(self) -> dict[Key, tuple[list[Bound], str]]:
        """Of each tensor of the cache, the parts that read it, and the name of the input."""
        found: dict[Key, tuple[list[Bound], str]] = {}
        for session, bound in zip(self.opened.parts, self._bound, strict=True):
            for tensor in self.model.decoder.cache:
                if tensor.past in session.input_names:
                    found.setdefault(key_of(tensor), ([], tensor.past))[0].append(bound)
        return found

    def run(self, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Run once.

        Args:
            tokens: per row, at most S of them, none for a row that waits.
            starts: per row, the position of its first token. In place, starts + S ≤ C; sliding, fewer than S tokens start at 0.

        Raises:
            ModelError: a node fails.
        """
        self.begin(tokens, starts)
        for number in range(len(self._bound)):
            self.run_stage(number)
        self.end(tokens, starts)

    def begin(self, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Write the inputs of a run; arguments as `run`. The stages may run then, in any order that their values allow."""
        self._write(tokens, starts)
        if self.window is not None:
            self.window.place(starts)

    def run_stage(self, number: int) -> None:
        """Run one of the sessions.

        Raises:
            ModelError: a node fails.
        """
        if self._watch is not None:
            self._watch(self.model, number, self._inputs(number))
        self._bound[number].run()

    def end(self, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Bring what a run gave into the cache, once all its stages have run."""
        if self.window is not None:
            self._keep(tokens, starts)

    def run_one(self, token: int, position: int) -> None:
        """`run` for a batch of 1 and a graph of one token."""
        decoder, array = self.model.decoder, self._array
        array[decoder.ids][0, 0] = token
        if decoder.positions:
            array[decoder.positions][0, 0] = position
        else:
            self._write_index([position], [1])
        if decoder.last_index:
            array[decoder.last_index][0] = 0
        starts = (position,)
        for mask in self._masks:
            mask.write(starts, (1,))
        if self.window is not None:
            self.window.place(starts)
        for number in range(len(self._bound)):
            self.run_stage(number)
        self.end(((token,),), starts)

    def row(self, row: int, count: int) -> Array:
        """Logits [V] of the last real token of ``row``, which had ``count`` in the last run: a view."""
        place = -1 if self._is_slide or self.logits.shape[1] == 1 else max(count - 1, 0)
        found: Array = self.logits[row, place]
        return found

    def rows(self, row: int, count: int) -> Array:
        """Logits [count, V] of the real tokens of ``row`` in the last run: a view. Only where all logits come out."""
        first = self.logits.shape[1] - count if self._is_slide else 0
        found: Array = self.logits[row, first : first + count]
        return found

    def _inputs(self, part: int) -> dict[str, Array]:
        """What a part reads in this run: views."""
        found = {name: self._array[name] for name in self.opened.parts[part].input_names}
        if self.window is not None:
            found |= {t.past: self.window.held(key_of(t)) for t in self.model.decoder.cache if t.past in found}
        return found

    def _write(self, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        decoder, array, seq_len = self.model.decoder, self._array, self.seq_len
        counts = [len(row) for row in tokens]
        ids = array[decoder.ids]
        ids[...] = 0
        for row, (given, count) in enumerate(zip(tokens, counts, strict=True)):
            first = seq_len - count if self._is_slide else 0
            ids[row, first : first + count] = given
            if decoder.last_index:
                array[decoder.last_index][row] = max(first + count - 1, 0)
        if decoder.positions:
            positions = array[decoder.positions]
            for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
                if self._is_slide:
                    positions[row] = 0
                    positions[row, seq_len - count :] = np.arange(start, start + count)
                else:
                    positions[row] = np.arange(start, start + seq_len)
        else:
            self._write_index(starts, counts)
        for mask in self._masks:
            mask.write(starts, counts)

    def _write_index(self, starts: Sequence[int], counts: Sequence[int]) -> None:
        """Where the positions are counted on the graph: from the first row of the run, a padded one too, or from the last."""
        decoder, array = self.model.decoder, self._array
        padded = [self.seq_len - count if self._is_slide else 0 for count in counts]
        first = [start - pad for start, pad in zip(starts, padded, strict=True)]
        if decoder.index:
            array[decoder.index][:] = first
        if decoder.last_slot:
            array[decoder.last_slot][...] = first[0] + self.seq_len - 1

    def _keep(self, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Bring the new rows of a graph that slides into the cache."""
        assert self.window is not None
        if self.window.can_push and all(tokens):
            self.window.push()
            return
        for key, new in self._new.items():
            rows = self._cache.by_token(key)
            fresh = np.moveaxis(new, self._cache.specs[key].axis, 1)
            for row, (given, start) in enumerate(zip(tokens, starts, strict=True)):
                rows[row, start : start + len(given)] = fresh[row, self.seq_len - len(given) :]
        self._cache.forget()
