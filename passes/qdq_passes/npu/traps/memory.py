"""Traps of how tensors lie in memory: what is filled up, caches that a device does not keep. Only where a target lists them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Level
from qdq_passes.decoder.look.cache import CachePair, cache_pairs
from qdq_passes.decoder.look.cache_tensors import CacheWidths
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import FLOAT_TYPES, dtype_of, in_order, is_standard
from qdq_passes.npu.traps.rule import PairView, Trap, TrapRule, trap

#: What chooses the sizes of a decoder.
_SPLIT = "for a decoder choose tokens and slots that do: `qdqtool split --prefill N --context N`"


@dataclass(frozen=True)
class PaddedTiles(TrapRule):
    """A tensor whose last axes do not fill whole tiles of the memory: it is stored with what fills them up.

    Args:
        tile: elements of a tile along the last axes, the last one last: (8, 128) is 8 rows of 128.
    """

    level: ClassVar[Level] = "note"
    tile: tuple[int, ...]

    def find(self, view: PairView) -> Iterator[Trap]:
        """What operators write in floating point, or behind a pair; a scalar is in no tile."""
        for node in view.nodes:
            if is_qdq(node) or is_standard(node, "Constant", "Shape", "Size"):
                continue
            for value in node.outputs:
                sizes = static_sizes(value)
                if not sizes or 0 in sizes or dtype_of(value) not in FLOAT_TYPES:
                    continue
                stored = _filled(sizes, self.tile)
                if stored != sizes:
                    times = math.prod(stored) / math.prod(sizes)
                    message = f"writes {_shape(sizes)}, stored as {_shape(stored)}: {times:.3g} times the memory"
                    yield trap(node, message, f"sizes that fill tiles of {_shape(self.tile)} lose nothing; {_SPLIT}")


@dataclass(frozen=True)
class CacheSizes(TrapRule):
    """A KV cache that the device does not keep: a size behind the first is no power of two, or rows do not fill tiles.

    Args:
        tile: numbers along the last axis, which come in float16: (32,) is 64 bytes.
    """

    tile: tuple[int, ...]

    def find(self, view: PairView) -> Iterator[Trap]:
        """Each tensor of the cache whose sizes are known; of a cache that is not understood `CachePerLayer` says so."""
        widths = CacheWidths(last_axis_bytes=2 * self.tile[-1], powers_of_two=True, itemsize=2)
        for pair in _cache(view)[0]:
            sizes = static_sizes(pair.past)
            for complaint in widths.complaints(sizes, 2) if sizes else ():
                yield trap(
                    pair.past,
                    complaint,
                    "slots: `qdqtool split --naming ane --context N`; the head size and the number of heads are the model's",
                )


@dataclass(frozen=True)
class CachePerLayer(TrapRule):
    """A KV cache of one tensor for each layer, where the device keeps one state for keys and one for values."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """The first of the keys, and of the values."""
        pairs, trouble = _cache(view)
        yield from trouble
        for part in ("key", "value"):
            layers = [pair for pair in pairs if pair.part == part and pair.layers == 1]
            if len(layers) > 1:
                message = f"is one of {len(layers)} tensors of {part}s: the device keeps one state for all layers"
                yield trap(
                    layers[0].past,
                    message,
                    "make one of them: `qdqtool split --naming ane`; of a static decoder `qdqtool opt -p unify-kv-state`",
                )


def _cache(view: PairView) -> tuple[list[CachePair], list[Trap]]:
    """The cache of the model, and what is said where it is none that is known."""
    try:
        return [pair for pair, _ in cache_pairs(view.model.graph.inputs, in_order(view.model.graph))], []
    except UnsupportedError as error:
        graph = ir.Value(name=error.where or view.model.graph.name or "model")
        hint = error.hint or "export it with past key values"
        return [], [trap(graph, f"cannot be judged as a cache: {error.message}", hint)]


def _filled(sizes: Sequence[int], tile: Sequence[int]) -> list[int]:
    """``sizes`` with the last axes rounded up to whole tiles."""
    count = min(len(sizes), len(tile))
    last = [-(-size // of) * of for size, of in zip(sizes[-count:], tile[-count:], strict=True)]
    return [*sizes[:-count], *last]


def _shape(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))
