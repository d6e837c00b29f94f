"""The verb `report`: one page of what is known of quantized models, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import WRITTEN, metadata_of, option
from qdqtool.verbs.groups import DATA_NEEDED, OnChip, Path, Reports, Samples, Threaded, Tokenized
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.verbs.work.reporting import Reported


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What quantized models are held against."""

    float_model: Path | None = option(
        None, "The float model of all; without it that which the pairs leave, and what rounding weights cost is not known.",
        value="F", use="read", flags=("--float",),
    )  # fmt: skip
    target: Path | None = option(
        None,
        "Also say which nodes run on this NPU, and why not; and of edits whether it takes less with them.",
        value="NAME|FILE",
        use="read",
        listed_by="targets",
    )
    ranges: Sequence[Path] = option(
        (), "The ranges the models were quantized with, one for all or one for each; tells what moved scales since.",
        value="FILE", use="read",
    )  # fmt: skip
    worst: int = option(3, "Of how many to measure edits.", value="N", least=1, shown=True)


@dataclass(frozen=True, kw_only=True)
class Report(Judged, OnChip, Samples, Tokenized, Threaded, Reports, Verb["Reported"]):
    """Write one HTML page about MODEL, or several side by side: what costs at the outputs and why, where nodes run, what to try.

    The page is one file and asks for no network: histograms with the grid over them, tables to sort and filter, links to tensors.
    """

    examples: ClassVar = (
        "report int8.onnx --float model.onnx --data calib.npz -o report.html",
        "report a.onnx b.onnx --float model.onnx --data calib.npz --target vitis_xint8 -o report.html",
    )

    leads: ClassVar[tuple[type, ...]] = (Judged,)

    models: Sequence[Path] = field(
        kw_only=False,
        metadata=metadata_of("Quantized models.", kind="argument", value="MODEL...", use="read"),
    )
    data: FeedSpec = field(kw_only=False, metadata=DATA_NEEDED)
    output: Path = field(
        metadata=metadata_of(
            "Where to write the page.", value="FILE", use="file", flags=("-o", "--output"), required=True,
            section=WRITTEN,
        )
    )  # fmt: skip
    overwrite: bool = option(False, "Replace the output where there is one.")

    def run(self) -> Reported:
        """The records; the page is written.

        Raises:
            UsageError: no model, one without pairs, not one file of ranges for each, or a chip that nobody measured.
        """
        from qdqtool.verbs.work.reporting import reported

        return reported(self)


report = function_of(Report)
