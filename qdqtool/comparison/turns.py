"""Which tensors of two models are compared at a time, so that their values fit into memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
from qdq_passes.graph.sizes import dims_of
from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.feeds import Feeds

#: Bytes of values that are held at once, about: with more of them tensors are compared in turns, each a run of both models.
HELD = 256 << 20
_FLOAT = 4


def peeked(feeds: Iterable[Mapping[str, Array]]) -> tuple[Mapping[str, Array], Iterable[Mapping[str, Array]]]:
    """The first of ``feeds``, empty where there is none, and all of them."""
    if isinstance(feeds, Feeds | Sequence):
        return next(iter(feeds), {}), feeds
    rest = iter(feeds)
    first = next(rest, None)
    return ({}, ()) if first is None else (first, itertools.chain([first], rest))


def turns_of(
    names: Sequence[tuple[str, str]], models: tuple[ir.Model, ir.Model], feed: Mapping[str, Array]
) -> list[range]:
    """Consecutive parts of ``names``, the tensors of two ``models`` that are compared, that hold `HELD` bytes each; a tensor that
    is larger by itself is a part. Symbolic sizes are those of ``feed``, sizes that nobody knows count as 1. What one model says
    of a tensor holds for both."""
    bytes_of = [_bytes(model, feed) for model in models]
    turns, begin, held = list[range](), 0, 0
    for at, pair in enumerate(names):
        more = 2 * max(known.get(name, 0) for known, name in zip(bytes_of, pair, strict=True))
        if held + more > HELD and at > begin:
            turns.append(range(begin, at))
            begin, held = at, 0
        held += more
    return [*turns, range(begin, len(names))]


def _bytes(model: ir.Model, feed: Mapping[str, Array]) -> dict[str, int]:
    """Bytes of the values of the main graph, of four bytes an element."""
    bound: dict[object, int] = {}
    for value in model.graph.inputs:
        array = feed.get(value.name or "")
        if array is not None and value.shape is not None and len(value.shape) == array.ndim:
            bound |= dict(zip(dims_of(value.shape), array.shape, strict=True))
    return {
        value.name: _FLOAT
        * math.prod(size if isinstance(size, int) else bound.get(size, 1) for size in dims_of(value.shape))
        for value in itertools.chain(model.graph.inputs, *(node.outputs for node in model.graph))
        if value.name and value.shape is not None
    }
