"""A session with its tokenizer: turns of text or tokens in, text out as it comes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.llm.folder.tokenizing import TOKENIZER, TextStream, Tokenizer, is_installed
from qdqtool.llm.run import generating
from qdqtool.llm.run.devices import GraphPlacement
from qdqtool.llm.run.generating import Generation, Sampling
from qdqtool.llm.run.session import Session

#: New tokens where no number is given, and the context holds so many.
MAX_NEW = 128
#: Told pieces of text as they come.
OnText = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What was generated for prompts, and how.

    Args:
        prompt_ids: tokens of each prompt.
        generation: tokens, and what they took.
        texts: text of each row; None where the folder has no tokenizer.
        sampling: how tokens were chosen.
        warm_up_s: seconds to open the graphs and run each once; None without.
        placements: of each graph file that is open on a device, where its operators run.
        timeline: of this turn, on a device: what ran on which engine; JSON-ready.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    generation: Generation
    texts: tuple[str, ...] | None
    sampling: Sampling
    warm_up_s: float | None
    placements: tuple[GraphPlacement, ...] = ()
    timeline: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; of a single row, ``prompt_ids``, ``tokens``, ``text`` and ``stopped`` are its own, else lists."""
        is_single = len(self.prompt_ids) == 1
        texts = None if self.texts is None else self.texts[0] if is_single else list(self.texts)
        return {
            **self.generation.to_json(),
            "prompt_ids": list(self.prompt_ids[0]) if is_single else [list(row) for row in self.prompt_ids],
            "text": texts,
            "warm_up_s": self.warm_up_s,
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "seed": self.sampling.seed,
            **({} if self.timeline is None else {"placement": [p.to_json() for p in self.placements]}),
            **({} if self.timeline is None else {"timeline": self.timeline}),
        }


class Chat:
    """Turns with one session; each goes on behind the last.

    Args:
        session: the model.
        tokenizer: for text; by default the one that its folder has, if any.
    """

    def __init__(self, session: Session, tokenizer: Tokenizer | None = None) -> None:
        self.session = session
        has_one = TOKENIZER in session.manifest.tokenizer or os.path.exists(os.path.join(session.folder, TOKENIZER))
        self._has_tokenizer, self._tokenizer = has_one or tokenizer is not None, tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of text.

        Raises:
            UsageError: the folder has none.
            SetupError: the package tokenizers is not installed.
        """
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self.session.folder)
        return self._tokenizer

    def turn(
        self,
        texts: Sequence[str] = (),
        rows: Sequence[Sequence[int]] = (),
        *,
        max_new: int | None = None,
        sampling: Sampling | None = None,
        eos: Iterable[int] | None = None,
        cache: bool = True,
        warm_up: bool = False,
        on_text: OnText | None = None,
    ) -> Generated:
        """One prompt, as text or as tokens of each row, and what follows it.

        Args:
            texts: text of each row.
            rows: tokens of each row, instead.
            max_new: new tokens at most; by default 128, or as many as the largest context holds.
            sampling: how tokens are chosen; by default the most likely.
            eos: tokens that end a text; None takes those of the manifest.
            cache: false runs the whole text again for each token.
            warm_up: open the graphs and run each once before the clock starts.
            on_text: called with the text of a single row as it comes; with its tokens, a space behind each, without a tokenizer.

        Raises:
            UsageError: the prompt is empty or too long, before anything runs.
            SetupError: text is given, and the package tokenizers is not installed.
        """
        how = sampling if sampling is not None else Sampling()
        is_new = not self.session.length
        given = (
            [self.tokenizer.encode(text, special=is_new) for text in texts] if texts else [list(row) for row in rows]
        )
        ids: Any = given if self.session.batch_size > 1 or len(given) != 1 else given[0]
        prompts = self.session.prompt_rows(ids)
        longest = max(map(len, prompts))
        new = self.session.room(longest, MAX_NEW) if max_new is None else max_new
        generating.refuse(self.session, prompts, new)
        start = time.perf_counter()
        if warm_up:
            self.session.warm_up(longest, new)
        warmed = time.perf_counter() - start
        timeline = self.session.timeline
        if timeline is not None:
            timeline.clear()
        tokenizer = self.tokenizer if texts else self._optional()
        shown = _Printer(tokenizer, on_text) if on_text is not None and len(given) == 1 else None
        found = generating.generate(
            self.session, ids, new, temperature=how.temperature, top_k=how.top_k, top_p=how.top_p, seed=how.seed, eos=eos,
            cached=cache, on_token=None if shown is None else shown.push,
        )  # fmt: skip
        if shown is not None:
            shown.end()
        return Generated(
            prompt_ids=tuple(map(tuple, given)),
            generation=found,
            texts=None if tokenizer is None else tuple(tokenizer.decode(row) for row in found.tokens),
            sampling=how,
            warm_up_s=warmed if warm_up else None,
            placements=self.session.placements,
            timeline=None if timeline is None else timeline.to_json(),
        )

    def _optional(self) -> Tokenizer | None:
        """The tokenizer for what is shown only: None where the folder has none, or the package is not installed."""
        if self._tokenizer is None and (not self._has_tokenizer or not is_installed()):
            return None
        return self.tokenizer


class _Printer:
    """Prints the tokens of one row as text, or as numbers."""

    def __init__(self, tokenizer: Tokenizer | None, on_text: OnText) -> None:
        self._stream = None if tokenizer is None else TextStream(tokenizer)
        self._on_text = on_text

    def push(self, row: int, token: int) -> None:
        text = f"{token} " if self._stream is None else self._stream.push(token)
        if text:
            self._on_text(text)

    def end(self) -> None:
        if self._stream is not None and (text := self._stream.end()):
            self._on_text(text)
