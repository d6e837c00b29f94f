"""What a static decoder graph is, as its runner must know it: the record that `split` leaves on each graph and in the
manifest.

What the names of its caches tell, key or value and the number of the layer: `part_by_name`, `number_of`."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.annotate import Annotation
from qdq_passes.numerics.documents import typed

Layout = Literal["in-place", "slide"]
Phase = Literal["prefill", "decode"]

#: What is added to the score of a key that is not seen. Finite: a row that sees no key stays a row of numbers.
HIDDEN = -1e9
#: The same in float16, whose numbers end at 65504: -2^15 plus a score is finite for |score| < 2^15 - 32, and beside a seen key
#: the hidden one has weight exp(-2^15 + 2·|score|), which is 0 (below 2^-25, the least that rounds to a number) for
#: |score| ≤ 16375.
HIDDEN_FLOAT16 = -32768.0

#: Fields of a mask, and of a tensor of the cache, that are left out of the JSON form where they are 0.
_OF_MASKS, _OF_INTEGERS = ("hidden",), ("scale", "zero_point")


@dataclass(frozen=True, kw_only=True)
class CacheTensor:
    """One tensor of the KV cache of a static graph.

    In place: past and present are [B, H, C, D]; present is past with the S new rows written at the positions of the tokens.
    Slide: past is [B, H, C-S, D], its rows right-aligned; present is the S new rows, [B, H, S, D].

    Args:
        past: name of the graph input.
        present: name of the graph output.
        layer: number of the layer, from 0.
        part: ``"key"`` or ``"value"``; ``"both"`` of a state that holds all keys, then all values.
        axis: axis of the sequence.
        layers: how many layers have their part in it, in place alone: [layers·B, H, C, D], or twice that of both parts.
        scale: of a cache of integers, which stand for (q - zero_point)·scale, in past and in present; 0 where it is float.
        zero_point: the integer that stands for 0, which a slot holds that no token has written.
    """

    past: str
    present: str
    layer: int
    part: Literal["key", "value", "both"]
    axis: int
    layers: int = 1
    scale: float = 0.0
    zero_point: int = 0


@dataclass(frozen=True, kw_only=True)
class MaskInput:
    """A mask that the host makes: float [B, 1, S, C], 0 where query q sees key slot k, else ``hidden``.

    In place, p(q) being the position of query q: k ≤ p(q), and k > p(q) - window where there is a window.
    Slide: query q stands in slot C-S+q; k ≤ C-S+q, k > C-S+q - window, and slot k holds a token: k ≥ C - (tokens so far).

    Args:
        name: name of the graph input.
        window: how many keys a query sees at most, itself included; 0 for all before it.
        hidden: what stands where a key is not seen; 0 for `HIDDEN`, -1e9 (float16: -2^15).
    """

    name: str
    window: int = 0
    hidden: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """On the main graph of a static decoder: what its inputs and outputs are for.

    Args:
        layout: where the cache is updated: in place on the device, or by the host that slides it.
        phase: ``prefill`` for graphs of several tokens, ``decode`` for one.
        batch_size: rows, B.
        seq_len: tokens of one run, S.
        ctx_len: slots of the cache, C.
        ids: input, int64 [B, S].
        logits: output, [B, 1, V], or [B, S, V] where ``last_index`` is empty.
        positions: input, int64 [B, S]: the true index of each token, contiguous; in place it is the slot written to as well.
            Empty where ``index`` or ``last_slot`` stands in its place.
        index: input, int64 [B]: how many tokens the cache holds before this run; positions are index + 0…S-1. Mostly empty.
        last_slot: input, int32 [1, 1]: position of the last row of this run (onnxruntime-genai's ``past_seq_len``). Mostly empty.
        total: input, int32 [1]: the context length, not read by the graph's arithmetic (onnxruntime-genai). Mostly empty.
        last_index: input, int64 [B]: the row of the last real token of this run, 0…S-1; empty when all logits come out.
        masks: the masks that the host makes; none where the graph makes them of the positions.
        cache: the tensors of the cache, by layer, key before value.
    """

    layout: Layout
    phase: Phase
    batch_size: int
    seq_len: int
    ctx_len: int
    ids: str
    logits: str
    positions: str = ""
    index: str = ""
    last_slot: str = ""
    total: str = ""
    last_index: str = ""
    masks: tuple[MaskInput, ...] = ()
    cache: tuple[CacheTensor, ...] = ()

    def __post_init__(self) -> None:
        """Refuse lengths that no graph has (ValueError)."""
        counts = [n for each in self.cache for n in (each.layer, each.axis, each.layers)] + [
            m.window for m in self.masks
        ]
        if min(counts, default=0) < 0 or max(*counts, self.batch_size, self.ctx_len) >= 2**31:
            raise ValueError("a layer, an axis or a window is below 0, or beyond 31 bits")
        if min(self.batch_size, self.seq_len, self.ctx_len) < 1 or self.seq_len > self.ctx_len:
            lengths = f"{self.batch_size} × {self.seq_len} in {self.ctx_len}"
            raise ValueError(f"a run of {lengths} is none: batch size and lengths are 1 or more")

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; empty fields are left out."""
        data = {key: value for key, value in asdict(self).items() if value not in ("", ())}
        for key, fields in (("masks", _OF_MASKS), ("cache", _OF_INTEGERS)):
            if key in data:
                data[key] = [{k: v for k, v in each.items() if v or k not in fields} for each in data[key]]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Decoder:
        """What `to_json` gave.

        Raises:
            ValueError: it is something else.
        """
        return typed(cls, data)


DECODER: Annotation[Decoder] = Annotation("qdqtool.decoder", Decoder.to_json, Decoder.from_json)


Part = Literal["key", "value", "both"]

PART_WORDS: dict[str, Part] = {
    "ck": "key", "k": "key", "key": "key", "keys": "key", "cv": "value", "v": "value", "value": "value", "values": "value",
}  # fmt: skip


def number_of(name: str) -> int | None:
    """The first number in a name."""
    return next((int(token) for token in _tokens(name) if token.isdigit()), None)


def _tokens(name: str) -> list[str]:
    """Words and numbers of a name in camel case or with any separators; ``key_values`` as such is no word."""
    spread = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    return re.findall(r"[a-z]+|\d+", re.sub(r"key_?values?", "", spread))


def part_by_name(name: str) -> Part | None:
    """Key or value, where words of ``name`` tell one of them."""
    parts = {PART_WORDS[word] for word in _tokens(name) if word in PART_WORDS}
    return parts.pop() if len(parts) == 1 else None
