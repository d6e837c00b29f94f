"""What `qdqtool generate` does, in Python."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from qdq_passes.errors import UsageError

from qdqtool.io.files.atomic import refuse_existing, refuse_unwritable, write_whole
from qdqtool.io.files.progress import Progress
from qdqtool.llm.folder.manifest import MANIFEST
from qdqtool.llm.run.chat import Chat, Generated, OnText
from qdqtool.llm.run.devices import names_plain
from qdqtool.llm.run.generating import Sampling
from qdqtool.llm.run.session import Ids, Session
from qdqtool.llm.run.timeline import trace as trace_of


def generate(
    folder: str | os.PathLike[str],
    *,
    prompt: str | Sequence[str] | None = None,
    prompt_ids: Ids | None = None,
    max_new: int | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    eos: Iterable[int] | None = None,
    cache: bool = True,
    warm_up: bool = True,
    threads: int | None = None,
    verify: bool = True,
    device: str | None = None,
    target: str | os.PathLike[str] | None = None,
    arrange: str | None = None,
    schedule: str | None = None,
    prefill_device: str | None = None,
    decode_device: str | None = None,
    trace: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    on_text: OnText | None = None,
    progress: Progress | None = None,
) -> Generated:
    """Run the split model in ``folder`` on a prompt, token by token.

    Args:
        folder: what `split` wrote.
        prompt: text; several texts run side by side, where the folder has graphs for such a batch.
        prompt_ids: tokens instead of text, or a list of tokens for each row.
        max_new: new tokens at most; by default 128, or as many as the largest context holds.
        temperature: 0 takes the most likely token.
        top_k: draw among the k most likely; 0 for all.
        top_p: draw among the most likely that together reach this probability.
        seed: equal seeds draw equal tokens.
        eos: tokens that end a text; None takes those of the manifest.
        cache: false runs the whole text again for each token: the baseline that shows what the cache buys.
        warm_up: open the graphs and run each once before the clock starts.
        threads: threads inside an operator; None leaves the choice to onnxruntime.
        verify: compare every file with the hashes of the manifest first.
        device: what runs the graphs, ``"cpu"`` or ``"npusim"``; see `qdqtool.llm.Session`, also for the next five.
        target: name or file of the target of a device.
        arrange: ``"whole"`` or ``"linear"``.
        schedule: ``"sequential"``, ``"in-order"`` or ``"out-of-order"``.
        prefill_device: ``device`` of the prefill graphs alone.
        decode_device: ``device`` of the decode graphs alone.
        trace: where to write what ran when on a device: a timeline for ``chrome://tracing`` and Perfetto.
        overwrite: replace an existing ``trace``.
        on_text: called with the text of a single row as it comes; with its tokens, a space behind each, without a tokenizer.
        progress: told (files verified, files in all).

    Raises:
        QdqError: bad folder, prompt or options, before anything runs; see each class's exit code.
    """
    if (prompt is None) == (prompt_ids is None):
        raise UsageError("one prompt is needed", hint="give text or tokens: --prompt TEXT, or --prompt-ids 1,2,3")
    if trace is not None:
        if names_plain(device, prefill_device, decode_device):
            raise UsageError("a timeline is of a device", hint="give --device npusim --target NAME")
        refuse_existing(os.fspath(trace), overwrite=overwrite)
        refuse_unwritable(os.fspath(trace))
    how = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    texts = () if prompt is None else (prompt,) if isinstance(prompt, str) else tuple(prompt)
    given: Any = () if prompt_ids is None else prompt_ids
    rows = given if given and isinstance(given[0], Sequence) else [given] if prompt_ids is not None else ()
    count = len(texts) or len(rows)
    session = Session(
        folder, threads=threads, batch_size=None if count == 1 else count, verify=verify, progress=progress,
        device=device, target=target, arrange=arrange, schedule=schedule,
        prefill_device=prefill_device, decode_device=decode_device,
    )  # fmt: skip
    if trace is not None and _is_of(session, os.fspath(trace)):
        raise UsageError(
            "is a file of the folder that runs", where=os.fspath(trace), hint="write the timeline elsewhere"
        )
    found = Chat(session).turn(
        texts, rows, max_new=max_new, sampling=how, eos=eos, cache=cache, warm_up=warm_up, on_text=on_text
    )
    if trace is not None and session.timeline is not None:
        text = json.dumps(trace_of(session.timeline, os.fspath(target or "")), allow_nan=False, ensure_ascii=False)
        write_whole(trace, text.encode(), overwrite=overwrite)
    return found


def _is_of(session: Session, path: str) -> bool:
    """Whether ``path`` is a file that ``session`` was opened from."""
    names = [MANIFEST, *session.manifest.files]
    own = (os.path.join(session.folder, name) for name in names)
    return os.path.exists(path) and any(os.path.exists(name) and os.path.samefile(name, path) for name in own)
