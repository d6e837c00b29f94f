"""The verb behind ``llm perplexity``."""

from __future__ import annotations

import os
import time
from dataclasses import field
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import OnDevice, OrtThreads, Path, StepReports
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.llm.run.perplexity import Perplexity


@dataclass(frozen=True, kw_only=True)
class PerplexityOf(OrtThreads, OnDevice, StepReports, Verb["Perplexity"]):
    """Perplexity of a language model on a text: exp of the mean of −ln p over the tokens, teacher-forced in windows.

    A window runs from an empty cache; its own first token is not scored, and no token is scored twice.
    """

    model: Path = field(
        kw_only=False,
        metadata=metadata_of(
            "A folder that `split` wrote, or a dynamic decoder.", kind="argument", value="DIR|MODEL", use="read"
        ),
    )
    data: Path = field(
        kw_only=False, metadata=metadata_of("A text file, UTF-8.", value="FILE", use="read", required=True)
    )
    tokenizer: Path | None = option(
        None, "A tokenizer.json; by default the one in DIR, or beside MODEL.", value="FILE", use="read"
    )
    window: int | None = option(
        None,
        "Tokens of a window; by default the largest context of DIR, 512 for a MODEL. Give it to compare both.",
        value="N", least=2,
    )  # fmt: skip
    stride: int | None = option(
        None, "From the beginning of a window to that of the next; by default the window.", value="N", least=1
    )
    max_tokens: int | None = option(None, "Take the first N tokens of the text.", value="N", least=2)
    verify: bool = option(
        True, "Do not compare the files of DIR with the hashes of its manifest first.", flags=("--no-verify",)
    )

    def run(self) -> Perplexity:
        """The figure, see `qdqtool.llm.run.perplexity.measured`.

        Raises:
            UsageError: the window is longer than the largest context, or the text is shorter than two tokens.
            ModelError: a file is missing or damaged, or a logit is not a number.
            SetupError: the package tokenizers is not installed.
        """
        from qdqtool.io.files.read import read_text
        from qdqtool.llm.folder.tokenizing import Tokenizer
        from qdqtool.llm.run.dynamic import DynamicDecoder
        from qdqtool.llm.run.perplexity import WINDOW, measured, refuse_window
        from qdqtool.llm.run.session import Session

        is_folder, path = os.path.isdir(self.model), os.fspath(self.model)
        devices = (self.device, self.prefill_device, self.decode_device, self.target, self.arrange, self.schedule)
        if not is_folder and any(devices):
            raise UsageError("a device runs static graphs", where=path, hint="`qdqtool split` makes them")
        beside = path if is_folder else os.path.dirname(path) or "."
        tokenizer = Tokenizer(beside if self.tokenizer is None else self.tokenizer)
        ids = tokenizer.encode(read_text(self.data))[: self.max_tokens]
        if len(ids) < 2:
            raise UsageError(f"has {len(ids)} tokens", where=os.fspath(self.data), hint="give a longer text")
        start = time.perf_counter()
        if is_folder:
            session = Session(
                path, threads=self.threads, batch_size=1, verify=self.verify, device=self.device, target=self.target,
                arrange=self.arrange, schedule=self.schedule, prefill_device=self.prefill_device,
                decode_device=self.decode_device,
            )  # fmt: skip
            refuse_window(self.window, session.context)
            window = self.window or session.context
            return measured(session, ids, window, self.stride, start=start, progress=self.progress)
        decoder = DynamicDecoder(path, threads=self.threads or 0)
        return measured(decoder, ids, self.window or WINDOW, self.stride, start=start, progress=self.progress)


perplexity = function_of(PerplexityOf)
