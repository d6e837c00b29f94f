"""How well a decoder foresees a text: perplexity, of static graphs and of the dynamic model over the same windows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.progress import Progress
from qdqtool.io.files.read import read_text
from qdqtool.llm.folder.tokenizing import Tokenizer
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


def perplexity(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    window: int | None = None,
    stride: int | None = None,
    max_tokens: int | None = None,
    threads: int = 0,
    verify: bool = True,
    device: str | None = None,
    target: str | os.PathLike[str] | None = None,
    arrange: str | None = None,
    schedule: str | None = None,
    prefill_device: str | None = None,
    decode_device: str | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Perplexity of a decoder on a text.

    The text is one list of tokens (with those that the tokenizer puts around it), t₀ … t₍N−1₎. Windows of ``window`` tokens
    begin every ``stride`` tokens; each runs from an empty cache, teacher-forced: the logits behind t₍i−1₎ give p(tᵢ | the
    window up to t₍i−1₎). A window scores what no earlier one has, never its own first token. With stride = window each token
    but the first of a window is scored with what stands before it in the window; a smaller stride gives each more to look
    back on, and takes longer. The perplexity is exp(−Σ ln p(tᵢ) / count), natural logarithm, softmax in float64.

    Args:
        model: a folder that `split` wrote, or a dynamic decoder.
        data: a text file, UTF-8.
        tokenizer: a tokenizer.json, or a folder with one; by default beside the graphs, or beside the model.
        window: tokens of a window; by default the largest context of the folder, and 512 for a model.
        stride: by default the window.
        max_tokens: take only the first tokens of the text.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        verify: compare the files of the folder with its manifest first.
        device: what runs the graphs, ``"cpu"`` or ``"npusim"``; see `qdqtool.llm.Session`, also for the next five.
        target: name or file of the target of a device.
        arrange: ``"whole"`` or ``"linear"``.
        schedule: ``"sequential"``, ``"in-order"`` or ``"out-of-order"``.
        prefill_device: ``device`` of the prefill graphs alone.
        decode_device: ``device`` of the decode graphs alone.
        progress: told (windows done, windows in all).

    Raises:
        UsageError: the window is longer than the largest context, or the text is shorter than two tokens.
        ModelError: a file is missing or damaged, or a logit is not a number.
        SetupError: the package tokenizers is not installed.
    """
    is_folder = os.path.isdir(model)
    if not is_folder and any((device, prefill_device, decode_device, target, arrange, schedule)):
        raise UsageError("a device runs static graphs", where=os.fspath(model), hint="`qdqtool split` makes them")
    beside = os.fspath(model) if is_folder else os.path.dirname(os.fspath(model)) or "."
    ids = Tokenizer(beside if tokenizer is None else tokenizer).encode(read_text(data))[:max_tokens]
    if len(ids) < 2:
        raise UsageError(f"has {len(ids)} tokens", where=os.fspath(data), hint="give a longer text")
    start = time.perf_counter()
    if is_folder:
        session = Session(
            model, threads=threads, batch_size=1, verify=verify, device=device, target=target, arrange=arrange,
            schedule=schedule, prefill_device=prefill_device, decode_device=decode_device,
        )  # fmt: skip
        _refuse_window(window, session.context)
        return measured(session, ids, window or session.context, stride, start=start, progress=progress)
    return measured(
        DynamicDecoder(model, threads=threads), ids, window or WINDOW, stride, start=start, progress=progress
    )


def measured(
    decoder: Session | DynamicDecoder,
    ids: Sequence[int],
    window: int,
    stride: int | None = None,
    *,
    start: float | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """`perplexity` of an open decoder on tokens; ``start`` is when the clock began.

    Raises:
        UsageError: window and stride do not fit together, or a token is none of the model's.
        ModelError: a logit is not a number.
    """
    start = time.perf_counter() if start is None else start
    step = window if stride is None else stride
    if not 1 <= step <= window or window < 2:
        raise UsageError(f"a window of {window} and a stride of {step}", hint="give 2 ≤ window, 1 ≤ stride ≤ window")
    windows = spans(len(ids), window, step)
    total, count = 0.0, 0
    for done, (begin, end, first) in enumerate(windows):
        decoder.reset()
        for at, logits in _pieces(decoder, ids[begin : end - 1]):
            scored = [i for i in range(begin + at + 1, begin + at + 1 + len(logits)) if i >= first]
            if scored:
                rows = logits[len(logits) - len(scored) :]
                total += _surprise(rows, [ids[i] for i in scored])
                count += len(scored)
        if progress is not None:
            progress(done + 1, len(windows))
    return Perplexity(
        perplexity=math.exp(total / count), tokens=count, windows=len(windows), window=window, stride=step,
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def _pieces(decoder: Session | DynamicDecoder, ids: Sequence[int]) -> Iterator[tuple[int, Array]]:
    """(place of the first, logits [tokens, vocabulary]) of ``ids``, piece by piece."""
    for begin in range(0, len(ids), PIECE):
        yield begin, decoder.logits(ids[begin : begin + PIECE])


def _surprise(logits: Array, targets: Sequence[int]) -> float:
    """Σ −ln p of ``targets`` in nats, p the softmax of ``logits`` [tokens, vocabulary]."""
    scores = logits.astype(np.float64)
    if max(targets) >= scores.shape[1]:
        raise UsageError(
            f"the text has the token {max(targets)}, the model knows {scores.shape[1]}", hint="give its own --tokenizer"
        )
    highest = scores.max(axis=1)
    if not np.isfinite(highest).all():
        raise ModelError("the logits are not finite", hint="compare the model with its source: `llm verify`")
    norms = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    return float((norms - scores[np.arange(len(targets)), list(targets)]).sum())


def _refuse_window(window: int | None, context: int) -> None:
    if window is not None and window > context:
        raise UsageError(
            f"a window of {window} tokens, the largest context is {context}", hint="give a smaller --window"
        )
