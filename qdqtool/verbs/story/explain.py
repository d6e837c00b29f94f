"""The verb `explain`: what a quantized tensor costs at the outputs, why, and the edit that mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import DATA_NEEDED, MODEL, Path, Reports, Samples, Threaded, Tokenized
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.verbs.work.explaining import Explained


@dataclass(frozen=True, kw_only=True)
class Explain(Samples, Tokenized, Threaded, Reports, Verb["Explained"]):
    """Tell what quantized tensors of MODEL cost at its outputs, why, and which edit mends that; each edit's win is measured.

    Names are tensors or nodes; without any, the worst. Prices come from one float and one quantized run, and each node alone on
    what both have there.
    """

    examples: ClassVar = (
        "explain int8.onnx --float model.onnx --data calib.npz",
        "explain int8.onnx /head/concat --float model.onnx --data calib.npz",
        "explain int8.onnx --float model.onnx --data calib.npz --undo -o mended.onnx",
    )

    model: Path = field(kw_only=False, metadata=MODEL)
    data: FeedSpec = field(kw_only=False, metadata=DATA_NEEDED)
    names: Sequence[str] = field(
        default=(),
        metadata=metadata_of("Tensors or nodes.", kind="argument", value="[TENSOR|NODE]..."),
    )
    float_model: Path | None = option(
        None, "The float model; without it that which the pairs leave, and what rounding weights cost is not known.",
        value="F", use="read", flags=("--float",),
    )  # fmt: skip
    worst: int = option(3, "How many to tell of without names.", value="N", least=1, shown=True)
    ranges: Path | None = option(
        None, "The ranges MODEL was quantized with; tells what moved scales since.", value="FILE", use="read"
    )
    target: Path | None = option(
        None, "The NPU that is to take the edits: what it takes less of with one is told, and --undo leaves that one out.",
        value="NAME|FILE", use="read", listed_by="targets",
    )  # fmt: skip
    undo: bool = option(False, "Make the best edit of each that is told of, and write the model to -o.")
    output: Path | None = option(None, "Where --undo writes.", value="FILE", flags=("-o", "--output"), use="file")
    overwrite: bool = option(False, "Replace the output where there is one.")

    def run(self) -> Explained:
        """The worst, or those that are named.

        Raises:
            UsageError: a name that is no quantized tensor and no node of one, or ``undo`` without an output.
        """
        from qdqtool.verbs.work.explaining import explained

        return explained(self)


explain = function_of(Explain)
