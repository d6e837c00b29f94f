"""The verb `reduce`: the smallest part of a model that still fails."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.io.feeds.image_options import ImageOptions
from qdqtool.options import group, option
from qdqtool.verbs.groups import DATA, MODEL, OUTPUT_NEEDED, Path, Reports
from qdqtool.verbs.named_paths import NamedPath
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.verbs.work.reducing import Reduction

#: Seconds that a check may take.
TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class Reduce(Reports, Verb["Reduction"]):
    """Find the smallest part of MODEL that still fails, and write it with the inputs that show it.

    What failing means is said by one of --check, --crashes and --min-sqnr. The end and the beginning are cut off by bisection,
    the rest is thinned out by delta debugging; pairs of Q and DQ stay whole. An interrupt writes the smallest part so far.
    """

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    output: Path | None = field(kw_only=False, metadata=OUTPUT_NEEDED)
    overwrite: bool = option(False, "Replace the files that are written.", recipe=False)
    check: str | None = option(
        None,
        "Shell command that fails, by an exit status other than 0, as long as the fault is there; {} in it is the file of the "
        "part, and so is $QDQTOOL_MODEL, beside $QDQTOOL_FEEDS (.npz).",
        value="CMD",
    )  # fmt: skip
    fail_codes: Sequence[int] = option(
        (), "With --check: only this exit status counts as failing (repeat).", value="N", flags=("--fail-code",)
    )
    fail_text: str | None = option(None, "With --check: ... and only where its output holds this.", value="REGEX")
    crashes: bool = option(
        False, "It fails when onnxruntime does not load or run it, or dies, in the way in which MODEL does."
    )
    min_sqnr: float | None = option(
        None,
        "It fails when an output is below this SQNR to the float model, fed with what that computes there.",
        value="DB",
    )
    float_model: ModelOrPath | None = option(
        None, "The float model; else MODEL without its activation pairs.", value="FILE", use="read", flags=("--float",)
    )
    data: FeedSpec | None = field(default=None, metadata=DATA)
    seed: int = option(0, "Seed of random data.", shown=True)
    image: ImageOptions | None = group(ImageOptions, prefix="image-", help="How images become inputs.", recipe=False)
    optimize: bool = option(False, "Let onnxruntime optimize first, as an application's session does by default.")
    max_checks: int | None = option(None, "Stop after N checks, with the smallest part so far.", value="N", least=1)
    timeout: float = option(
        TIMEOUT, "Seconds that one check may take; longer does not count as failing.", value="S", shown=True
    )

    def files(self) -> tuple[str, str, str]:
        """What it writes: the part, its inputs, the float model of it."""
        stem = os.path.splitext(os.fspath(self.output or ""))[0]
        return os.fspath(self.output or ""), f"{stem}.npz", f"{stem}_float.onnx"

    def named_paths(self) -> Iterator[NamedPath]:
        """As of every verb, and what lies beside the output."""
        yield from super().named_paths()
        yield from (NamedPath("--output", file, "file") for file in self.files()[1:])

    def run(self) -> Reduction:
        """The smallest part, and the files that were written.

        Raises:
            UsageError: the model does not fail, or options that do not go together.
            QdqError: bad model or data; see each class's exit code.
        """
        from qdqtool.verbs.work.reducing import reduced

        return reduced(self)


reduce = function_of(Reduce)
