"""The verb behind ``llm verify``: static graphs against the model that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import OrtThreads, Path, StepReports, Tolerance
from qdqtool.verbs.split import lengths
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.llm.run.verifying import Verification


@dataclass(frozen=True, kw_only=True)
class Verify(Tolerance, OrtThreads, StepReports, Verb["Verification"]):
    """Compare the static graphs in DIR with the dynamic MODEL they were made of: teacher-forced logits.

    Every batch size, context and prefill length there is runs random texts, graph optimization disabled on both sides. Exit 1
    where logits differ by more than the tolerance; the first layer whose cache differs is named.
    """

    leads = (Tolerance,)

    folder: Path = field(
        kw_only=False, metadata=metadata_of("What `split` wrote.", kind="argument", value="DIR", use="read")
    )
    model: ModelOrPath = field(
        kw_only=False,
        metadata=metadata_of("The model that it was made of.", kind="argument", value="MODEL", use="read"),
    )
    lengths: Sequence[int] | None = option(
        None,
        "Lengths of the prompts; by default 1, S-1, S, S+1, 2S and 3S+5 for each prefill length S.",
        value="N,…", read=lengths,
    )  # fmt: skip
    decoded: int = option(8, "Tokens decoded behind each.", value="N", least=0, shown=True)
    seed: int = option(0, "Seed of the texts.", least=0, shown=True)

    def run(self) -> Verification:
        """A figure for each case, see `qdqtool.llm.run.verifying`."""
        from qdqtool.llm.run.verifying import verify_split

        return verify_split(
            self.folder, self.model, tolerance=self.tolerance, lengths=self.lengths, decoded=self.decoded, seed=self.seed,
            threads=self.threads or 0, progress=self.progress,
        )  # fmt: skip


verify = function_of(Verify)
