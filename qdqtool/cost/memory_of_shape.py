"""What a decoder needs of memory, from its numbers alone. Bytes everywhere; S tokens of a run, C slots of the cache.

    weights      layers · layer_weights · b / 8, b bits of a weight: 4.5 where 4 bits have a 16-bit scale a group of 32
                 (floating activations), else those of the precision; scales a channel are left out, below 1 % of it
    head         hidden · vocab · max(b, 8) / 8: heads keep 8 bits where layers have 4, 16 beside floating activations of a static
                 graph; the same again in float16 for the embedding where it is a table of its own
    cache        attended(C) · 2 · kv_heads · head_dim · e, e = 1 beside integer activations, else 2
    activations  of a graph, a bytes an element (a = 1, 2 by the precision, 2 where they float):
                 a · (2 · S · hidden + max(attention, MLP) + vocab), attention = S · (2 heads + 2 kv_heads) · head_dim
                 + (heads + 1) · S · C of scores and mask, MLP = S · ffn · (ffn_mats - 1); each static graph keeps its own,
                 in each session that it is cut into

A placement decides who holds what: *whole* keeps all but the embedding on the NPU; *linear* weights and activations of the linear
layers there, head, cache and scores with the CPU, which has weights of its own for decoding; *prefill* is whole, and the weights
a second time for the CPU. Nothing is known of a compiler's own buffers: a lower bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cost.precisions import bits_of
from qdqtool.cost.shapes import DecoderShape

Placement = Literal["whole", "linear", "prefill"]

#: Bits of a float activation, of a scale, and weights of a group.
FLOAT, SCALE, GROUP = 16, 16, 32


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one option.

    Args:
        weights: of the layers, all copies.
        head: with the embedding where that is a table of its own.
        cache: of the whole context.
        activations: of all graphs, in all sessions.
        sessions: of the NPU that the model must be cut into; 0 where a layer or the head alone is too large for one.
        session: bytes of the fullest session; of the smallest that is needed where none fits.
    """

    weights: int
    head: int
    cache: int
    activations: int
    sessions: int
    session: int

    @property
    def total(self) -> int:
        """Of all."""
        return self.weights + self.head + self.cache + self.activations

    def to_json(self) -> dict[str, int]:
        """JSON-ready, bytes."""
        return {**vars(self), "total": self.total}


def memory_of(
    shape: DecoderShape,
    precision: str,
    *,
    context: int,
    runs: Sequence[int],
    placement: Placement = "whole",
    is_static: bool = True,
    addressable: int | None = None,
) -> Memory:
    """What a decoder needs.

    Args:
        shape: it.
        precision: ``w4a16``, ``w8a8``, ``w4``.
        context: slots of the cache.
        runs: tokens of each prefill graph; what is not static has one buffer, for the longest.
        placement: who computes what.
        is_static: whether graphs are compiled for their lengths, decode among them.
        addressable: bytes of a session; None where nothing limits them.
    """
    stored, activation = bits_of(precision)
    bits = stored + SCALE / GROUP if stored < 8 and not activation else float(stored)
    head_bits = max(bits, 8.0 if activation or not is_static else FLOAT)
    copies = 1 if placement == "whole" else 2
    layer = math.ceil(shape.layer_weights * bits / 8)
    head = math.ceil(shape.head_weights * head_bits / 8)
    embedding = 0 if shape.tied else shape.head_weights * FLOAT // 8
    element = 2 if placement == "linear" or not activation else 1
    cache = shape.attended(context) * shape.cache_per_token * element
    lengths = [*runs, 1] if is_static else [max(runs)]
    scores = is_static and placement != "linear"
    buffers = [activation_bytes(shape, tokens, context if scores else 0, activation or FLOAT) for tokens in lengths]
    on_cpu = shape.heads * max(runs) * context * FLOAT // 8 if placement == "linear" else 0
    is_linear = placement == "linear"
    sessions, session = sessions_of(
        layers=shape.layers, layer=layer + (0 if is_linear else math.ceil(cache / shape.layers)),
        head=0 if is_linear else head, activations=sum(buffers), addressable=addressable,
    )  # fmt: skip
    return Memory(
        weights=shape.layers * layer * copies, head=head * (2 if placement == "prefill" else 1) + embedding, cache=cache,
        activations=sum(buffers) * max(sessions, 1) + on_cpu, sessions=sessions, session=session,
    )  # fmt: skip


def activation_bytes(shape: DecoderShape, tokens: int, context: int, bits: int) -> int:
    """What is alive at once in a run of ``tokens`` over ``context`` slots, elements of ``bits``; the formula stands above."""
    heads = tokens * 2 * (shape.heads + shape.kv_heads) * shape.head_dim + (shape.heads + 1) * tokens * context
    mlp = tokens * shape.ffn * (shape.ffn_mats - 1)
    return (2 * tokens * shape.hidden + max(heads, mlp) + shape.vocab) * math.ceil(bits / 8)


def sessions_of(*, layers: int, layer: int, head: int, activations: int, addressable: int | None) -> tuple[int, int]:
    """(sessions, bytes of the fullest): consecutive layers, the head in the last, activations in each; as few as will do, as
    alike as they can be, which is how `split` cuts; 0 where nothing helps.

    Args:
        layers: of the model.
        layer: bytes of one, its share of the cache among them.
        head: bytes of the head.
        activations: bytes that every session has.
        addressable: bytes of a session; None: one holds all.
    """
    if addressable is None or layers * layer + head + activations <= addressable:
        return 1, layers * layer + head + activations
    room = addressable - activations
    if room < max(layer, head):
        return 0, max(layer, head) + activations
    each, last = room // layer, (room - head) // layer
    count = math.ceil((layers - min(last, layers - 1)) / each)
    fullest = min(max(math.ceil((layers - n) / count) * layer, n * layer + head) for n in range(layers))
    return 1 + count, fullest + activations
