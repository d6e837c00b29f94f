"""How well a decoder foresees a text: perplexity, of static graphs and of the dynamic model over the same windows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.surprise import surprise

from qdqtool.io.files.progress import Progress
from qdqtool.llm.run.dynamic import DynamicDecoder
from qdqtool.llm.run.session import Session

#: Window without --window, where the folder does not say one.
WINDOW = 512
#: Tokens that the dynamic model runs at a time: its logits, of each of them, are in memory at once.
PIECE = 128


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """Perplexity over a text.

    Args:
        perplexity: exp of the mean of −ln p, in nats, over the tokens scored.
        tokens: how many tokens were scored.
        windows: in how many windows.
        window: tokens of a window, at most.
        stride: tokens from the beginning of a window to that of the next.
        seconds: how long it took.
    """

    perplexity: float
    tokens: int
    windows: int
    window: int
    stride: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def spans(count: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    """(begin, end, first scored) of each window over ``count`` tokens; every token but the first of the text, and with a
    stride of the window the first of each, is scored exactly once."""
    found: list[tuple[int, int, int]] = []
    scored = 0
    for begin in range(0, count, stride):
        end = min(begin + window, count)
        first = max(scored, begin + 1)
        if first < end:
            found.append((begin, end, first))
        scored = end
        if end == count:
            break
    return found


def measured(
    decoder: Session | DynamicDecoder,
    ids: Sequence[int],
    window: int,
    stride: int | None = None,
    *,
    start: float | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Perplexity of an open decoder on tokens; ``start`` is when the clock began.

    Windows of ``window`` tokens begin every ``stride`` tokens of t₀ … t₍N−1₎; each runs from an empty cache, teacher-forced: the
    logits behind t₍i−1₎ give p(tᵢ | the window up to t₍i−1₎). A window scores what no earlier one has, never its own first token.
    With stride = window each token but the first of a window is scored with what stands before it in the window; a smaller stride
    gives each more to look back on, and takes longer. The perplexity is exp(−Σ ln p(tᵢ) / count), natural logarithm, softmax in
    float64.


    Raises:
        UsageError: window and stride do not fit together, or a token is none of the model's.
        ModelError: a logit is not a number.
    """
    start = time.perf_counter() if start is None else start
    step = window if stride is None else stride
    if not 1 <= step <= window or window < 2:
        raise UsageError(f"a window of {window} and a stride of {step}", hint="give 2 ≤ window, 1 ≤ stride ≤ window")
    found = list(surprises(decoder, ids, window, step, progress=progress))
    count = sum(map(len, found))
    return Perplexity(
        perplexity=math.exp(sum(map(float, map(np.sum, found))) / count), tokens=count, windows=len(found), window=window,
        stride=step, seconds=time.perf_counter() - start,
    )  # fmt: skip


def surprises(
    decoder: Session | DynamicDecoder, ids: Sequence[int], window: int, stride: int, *, progress: Progress | None = None
) -> Iterator[npt.NDArray[np.float64]]:
    """−ln p of the tokens that each window scores, see `measured`.

    Raises:
        UsageError: a token is none of the model's.
        ModelError: a logit is not a number.
    """
    windows = spans(len(ids), window, stride)
    for done, (begin, end, first) in enumerate(windows):
        decoder.reset()
        found = []
        for at, logits in _pieces(decoder, ids[begin : end - 1]):
            scored = [i for i in range(begin + at + 1, begin + at + 1 + len(logits)) if i >= first]
            if scored:
                rows = logits[len(logits) - len(scored) :]
                found.append(surprise(rows, [ids[i] for i in scored]))
        yield np.concatenate(found)
        if progress is not None:
            progress(done + 1, len(windows))


def _pieces(decoder: Session | DynamicDecoder, ids: Sequence[int]) -> Iterator[tuple[int, Array]]:
    """(place of the first, logits [tokens, vocabulary]) of ``ids``, piece by piece."""
    for begin in range(0, len(ids), PIECE):
        yield begin, decoder.logits(ids[begin : begin + PIECE])


def refuse_window(window: int | None, context: int) -> None:
    if window is not None and window > context:
        raise UsageError(
            f"a window of {window} tokens, the largest context is {context}", hint="give a smaller --window"
        )
