"""The verb `generate`: run a split model on a prompt."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import metadata_of, option, python_only
from qdqtool.verbs.groups import OnChip, OnDevice, OrtThreads, Path, StepReports
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.llm.run.chat import Generated
    from qdqtool.llm.run.generating import Sampling
    from qdqtool.llm.run.session import Ids, Session


def tokens(text: str) -> list[int]:
    """``"1,2,3"`` → [1, 2, 3].

    Raises:
        ValueError: it is no list of tokens.
    """
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f"{text!r} is no list of tokens; write 1,2,3") from None


@dataclass(frozen=True, kw_only=True)
class Generate(OnDevice, OnChip, OrtThreads, StepReports, Verb["Generated"]):
    """Run the language model in DIR on a prompt, token by token.

    The text goes to stdout as it comes; how long it took to stderr. Without a tokenizer.json in DIR tokens are shown as numbers.
    """

    folder: Path = field(
        kw_only=False, metadata=metadata_of("What `split` wrote.", kind="argument", value="DIR", use="read")
    )
    prompt: str | Sequence[str] | None = option(None, "The prompt (repeat for a batch).", value="TEXT")
    prompt_ids: Ids | None = option(
        None, "The prompt as tokens (repeat for a batch).",
        value="1,2,3", many=True, read=lambda texts: [tokens(text) for text in texts],
    )  # fmt: skip
    max_new: int | None = option(None, "New tokens at most; by default 128, or what fits.", value="N", least=1)
    temperature: float = option(0.0, "0 takes the most likely token.", shown=True)
    top_k: int = option(0, "Draw among the K most likely; 0: all.", value="K", shown=True)
    top_p: float = option(1.0, "... among those that reach probability P.", value="P", shown=True)
    seed: int = option(0, "Equal seeds draw equal tokens.", shown=True)
    eos: Iterable[int] | None = option(
        None, "Tokens that end a text, instead of the model's; `none` for none.",
        value="1,2", read=lambda text: [] if text == "none" else tokens(text),
    )  # fmt: skip
    cache: bool = option(
        True, "Run the whole text again for each token: shows what the cache buys.", flags=("--no-cache",)
    )
    warm_up: bool = option(True, "Start the clock at once: opening the graphs counts.", flags=("--no-warm-up",))
    verify: bool = option(
        True, "Do not compare the files with the hashes of the manifest first.", flags=("--no-verify",)
    )
    trace: Path | None = option(
        None,
        "Of a device, write a timeline (JSON, for chrome://tracing or Perfetto).",
        value="FILE",
        use="file",
        before="threads",
    )
    overwrite: bool = option(False, "Replace FILE if it exists.", before="threads")
    on_text: Callable[[str], None] | None = python_only(
        None,
        "Called with the text of a single row as it comes; with its tokens, a space behind each, without a tokenizer.",
    )

    def run(self) -> Generated:
        """What came of it.

        Raises:
            QdqError: bad folder, prompt or options, before anything runs; see each class's exit code.
        """
        from qdqtool.io.files.atomic import refuse_unwritable, write_whole
        from qdqtool.llm.run.chat import Chat
        from qdqtool.llm.run.timeline import trace as trace_of

        if (self.prompt is None) == (self.prompt_ids is None):
            raise UsageError("one prompt is needed", hint="give text or tokens: --prompt TEXT, or --prompt-ids 1,2,3")
        if self.chip is not None and not self.is_on_device:
            raise UsageError("the times of a chip are of a device", hint="give --device npusim --target NAME")
        if self.trace is not None:
            if not self.is_on_device:
                raise UsageError("a timeline is of a device", hint="give --device npusim --target NAME")
            refuse_unwritable(os.fspath(self.trace))
        how = self.sampling(self.seed)
        prompt = () if self.prompt is None else self.prompt
        texts = (prompt,) if isinstance(prompt, str) else tuple(prompt)
        given: Any = () if self.prompt_ids is None else self.prompt_ids
        rows = given if given and isinstance(given[0], Sequence) else [given] if self.prompt_ids is not None else ()
        count = len(texts) or len(rows)
        session = self.session(None if count == 1 else count)
        if self.trace is not None and session.is_of(os.fspath(self.trace)):
            hint = "write the timeline elsewhere"
            raise UsageError("is a file of the folder that runs", where=os.fspath(self.trace), hint=hint)
        found = Chat(session).turn(
            texts, rows, max_new=self.max_new, sampling=how, eos=self.eos, cache=self.cache, warm_up=self.warm_up,
            on_text=self.on_text,
        )  # fmt: skip
        if self.trace is not None and session.timeline is not None:
            timeline = trace_of(session.timeline, os.fspath(self.target or ""))
            text = json.dumps(timeline, allow_nan=False, ensure_ascii=False)
            write_whole(self.trace, text.encode(), overwrite=self.overwrite)
        return found

    def sampling(self, seed: int) -> Sampling:
        """How tokens are drawn.

        Raises:
            UsageError: a number is out of its range.
        """
        from qdqtool.llm.run.generating import Sampling

        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=seed)

    def session(self, batch_size: int | None = None) -> Session:
        """The folder, open."""
        from qdqtool.llm.run.session import Session
        from qdqtool.verbs.work.chip_times import decoder_times

        return Session(
            self.folder, threads=self.threads, batch_size=batch_size, verify=self.verify, progress=self.progress,
            device=self.device, target=self.target, arrange=self.arrange, schedule=self.schedule,
            prefill_device=self.prefill_device, decode_device=self.decode_device,
            times=decoder_times(self.folder, self, self.phases_on_device, rows=batch_size),
        )  # fmt: skip


generate = function_of(Generate)
