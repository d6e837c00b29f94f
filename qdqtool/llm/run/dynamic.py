"""A decoder of dynamic length, run as it is: the reference of its static graphs, and the baseline of their speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.decoder.look.io import CachePair, DecoderIo, decoder_io
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import all_nodes, integer_of
from qdq_passes.numerics.arrays import Array
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import load
from qdqtool.io.models.working import ModelOrPath
from qdqtool.llm.run.masks import blocked
from qdqtool.runtime.bound import Buffer, Chained, Value
from qdqtool.runtime.session import open_session

#: Attribute of GroupQueryAttention: its cache is a ring of at least the size of its window, and cannot be empty.
RING = "sliding_window_cache"


class DynamicDecoder:
    """One text through a decoder whose cache grows. What comes out stays where onnxruntime put it and goes in again.

    Args:
        model: path, or a model in memory (which stays as it is).
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        optimize: let onnxruntime optimize the graph; off, it computes what the file says.
        io: roles of its inputs and outputs, where they are known already.
        exact: compute in float32 what MatMulNBits would compute in 8 bit.

    Raises:
        UnsupportedError: it is no decoder with a cache, or has an input of unknown meaning.
    """

    def __init__(
        self, model: ModelOrPath, *, threads: int = 0, optimize: bool = False, io: DecoderIo | None = None,
        exact: bool = False,
    ) -> None:  # fmt: skip
        graph = model if isinstance(model, ir.Model) else load(model)
        if any(node.op_type == "If" for node in graph.graph):  # merged with the decoder that has no cache
            graph = run_pipeline(graph, "choose-branch", copy=True).model
        self._io = io if io is not None else decoder_io(graph)
        ids = self._io.ids
        if ids.dtype is not None and not ids.dtype.is_integer():
            raise UnsupportedError("takes embeddings, not ids", where=ids.name, hint="export it with its embedding")
        for value in self._io.others:
            if _meaning(value) is None:
                raise UnsupportedError("is an input of unknown meaning", where=value.name, hint="export it without")
        if exact:
            graph = in_float32(copy_model(graph))
        if any(integer_of(node, RING, 0) for node in graph.graph):
            graph = _with_growing_caches(graph)
        self._session = Chained(open_session(graph, threads=threads, optimize=optimize))
        self._dtypes = self._session.session.input_dtypes
        self._outputs = [_name(self._io.logits), *(_name(pair.present) for pair in self._io.pairs)]
        self._empty = _empty_caches(self._io.pairs, graph, self._dtypes)
        self._length = 0
        self._past: dict[str, Buffer | Value] = {}
        self.reset()

    @property
    def length(self) -> int:
        """How many tokens are in the cache."""
        return self._length

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are, where the shape of the logits tells."""
        shape = self._session.session.output_shapes[_name(self._io.logits)]
        return shape[-1] if shape and isinstance(shape[-1], int) else None

    @property
    def is_half(self) -> bool:
        """Whether it keeps its cache in float16 or bfloat16, and so computes in it."""
        types = [self._dtypes[_name(pair.past)] for pair in self._io.pairs]
        return any(dtype is not None and dtype.itemsize == 2 for dtype in types)

    @property
    def pairs(self) -> tuple[CachePair, ...]:
        """The tensors of the cache."""
        return self._io.pairs

    def cache(self, pair: CachePair) -> Array:
        """What the cache of ``pair`` holds of the one row, [tokens, …], the other axes in their order."""
        array = self._past[_name(pair.past)].array
        found: Array = np.moveaxis(array, (pair.batch_axis, pair.axis), (0, 1))[0]
        return found

    def reset(self) -> None:
        """Forget all tokens."""
        self._length = 0
        self._past = {name: Buffer(array) for name, array in self._empty.items()}

    def prefill(self, ids: Sequence[int]) -> Array:
        """Run a prompt behind what the cache holds: logits [vocabulary] of the last token."""
        return self._last(ids)

    def decode(self, token: int) -> Array:
        """Run one token: logits [vocabulary]."""
        return self._last([token])

    def logits(self, ids: Sequence[int]) -> Array:
        """Run tokens behind what the cache holds: logits [tokens, vocabulary] of each, float32.

        Raises:
            UsageError: there are no tokens.
            ModelError: a node fails.
        """
        before = self._length, self._past
        rows = self._run(ids)
        if len(rows) == len(ids):
            return rows
        self._length, self._past = before  # it gives the last row alone
        return np.concatenate([self._run([token]) for token in ids])

    def inputs(self, ids: Sequence[int]) -> dict[str, Array]:
        """What the model would read to run ``ids`` behind what the cache holds: copies, by the name of the input."""
        feed = {**self._feed(np.asarray(ids, np.int64)[None]), **self._past}
        return {name: np.array(buffer.array) for name, buffer in feed.items()}

    def _last(self, ids: Sequence[int]) -> Array:
        last: Array = self._run(ids)[-1]
        return last

    def _run(self, ids: Sequence[int]) -> Array:
        """Logits [tokens or 1, vocabulary] of one run."""
        if not len(ids):
            raise UsageError("there are no tokens to run", hint="give at least one")
        feed = self._feed(np.asarray(ids, np.int64)[None])
        found = self._session.run({**feed, **self._past}, self._outputs)
        self._length += len(ids)
        self._past = {_name(pair.past): found[_name(pair.present)] for pair in self._io.pairs}
        logits = found[self._outputs[0]].array
        return np.array(logits.reshape(-1, logits.shape[-1]), np.float32)

    def _feed(self, ids: Array) -> dict[str, Buffer]:
        past, new = self._length, ids.shape[1]
        feed: dict[str, Array] = {_name(self._io.ids): ids}
        if self._io.mask is not None:
            feed[_name(self._io.mask)] = self._mask(self._io.mask, past, new)
        for value in (self._io.positions, *self._io.others):
            if value is not None:
                is_position = value is self._io.positions
                meaning = "positions" if is_position else _meaning(value)
                feed[_name(value)] = _shaped(value, meaning, past, new)
        return {name: Buffer(np.ascontiguousarray(a.astype(self._dtypes[name]))) for name, a in feed.items()}

    def _mask(self, value: ir.Value, past: int, new: int) -> Array:
        """Ones for each token so far; of rank 3 and 4 what each query sees, added to the scores where it is float."""
        rank = 2 if value.shape is None else len(value.shape)
        if rank <= 2:
            return np.ones((1, past + new)[2 - rank :])
        seen = np.arange(past + new) <= np.arange(past, past + new)[:, None]
        dtype = self._dtypes[_name(value)]
        if dtype is not None and dtype.kind not in "biu":
            seen = np.where(seen, dtype.type(0), blocked(dtype))
        return seen.reshape((1,) * (rank - 2) + seen.shape)


def _name(value: ir.Value) -> str:
    assert value.name is not None
    return value.name


def _with_growing_caches(model: ir.Model) -> ir.Model:
    """A copy of ``model`` whose caches begin empty and grow; local_window_size hides the same keys of them."""
    copied = copy_model(model)
    for node in copied.graph:
        node.attributes.pop(RING, None)
    return copied


def _meaning(value: ir.Value) -> str | None:
    """What an input without a role is by its name: counts, or positions under another name."""
    name = _name(value).lower()
    if value.dtype is not None and not value.dtype.is_integer():
        return None
    return next((word for word in ("positions", "total", "past") if word.rstrip("s") in name), None)


def _shaped(value: ir.Value, meaning: str | None, past: int, new: int) -> Array:
    rank = 2 if value.shape is None else len(value.shape)
    if meaning != "positions":
        return np.full((1,) * rank, past + new if meaning == "total" else past)
    positions = np.arange(past, past + new)
    if rank <= 1:
        return positions if rank else positions[0]
    return np.broadcast_to(positions, (1, new) if rank == 2 else (3, 1, new))  # rank 3: time, height and width


def _empty_caches(
    pairs: Sequence[CachePair], model: ir.Model, dtypes: Mapping[str, np.dtype[Any] | None]
) -> dict[str, Array]:
    """Caches without tokens, by the name of the input.

    Raises:
        UnsupportedError: neither the model nor shape inference says the size of an axis.
    """
    shapes = {_name(v): v.shape for pair in pairs for v in (pair.past, pair.present)}
    if any(None in _sizes(pair, shapes) for pair in pairs):
        inferred = run_pipeline(model, "infer-shapes", copy=True).model
        shapes = {_name(v): v.shape for v in (*inferred.graph.inputs, *inferred.graph.outputs)}
    found = {}
    for pair in pairs:
        sizes = _sizes(pair, shapes)
        if None in sizes:
            axis = sizes.index(None)
            raise UnsupportedError(
                f"the size of axis {axis} of the cache is not known",
                where=pair.past.name,
                hint="export it with its size",
            )
        found[_name(pair.past)] = np.zeros([size or 0 for size in sizes], dtypes[_name(pair.past)])
    return found


def _sizes(pair: CachePair, shapes: Mapping[str, ir.Shape | None]) -> list[int | None]:
    """Sizes of an empty cache of one row, None where neither ``past`` nor ``present`` has a number."""
    given = [shape for v in (pair.past, pair.present) if (shape := shapes[_name(v)]) is not None]
    fixed: dict[int, int | None] = {pair.batch_axis: 1, pair.axis: 0}
    return [
        fixed[axis]
        if axis in fixed
        else next((d for s in given for d in list(s)[axis : axis + 1] if isinstance(d, int)), None)
        for axis in range(len(given[0]) if given else 4)
    ]


def in_float32(model: ir.Model) -> ir.Model:
    """``model``, its MatMulNBits computing in float32, in place.

    With accuracy_level 4 onnxruntime quantizes activations to 8 bit, by other kernels for one row than for several: the same
    token's logits differ by 0.8 % of the largest (measured with 1.31 on a model of onnxruntime-genai's builder). Level 0 computes
    what the weights say, to within the order of the sums.
    """
    for node in all_nodes(model):
        if node.op_type == "MatMulNBits":
            node.attributes.pop("accuracy_level", None)
    return model
