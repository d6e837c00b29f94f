"""The verb `simulate`: run a quantized model on the simulated NPU, or on another execution provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option, pairs
from qdqtool.verbs.groups import MODEL, OnChip, Path, Reports, Samples, first_samples
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.npu.simulated import Simulation

#: Samples without ``samples``: the reference is slow.
SAMPLES = 16
_DATA = "Samples: file.npz, a folder of .npz or of images, module:function, or random:N[:SEED]."


@dataclass(frozen=True, kw_only=True)
class Simulate(Samples, OnChip, Reports, Verb["Simulation"]):
    """Run a quantized MODEL on the simulated NPU of --target inside onnxruntime, and compare with the reference.

    MODEL is QDQ, or what `compile` wrote. Exit 1 when an output of the simulated NPU differs from the reference.
    """

    leads: ClassVar[tuple[type, ...]] = (Samples,)

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    data: FeedSpec = field(
        kw_only=False, metadata=metadata_of(_DATA, value="D", use="read", required=True, before="samples")
    )
    samples: int | None = first_samples(SAMPLES)
    target: Path | None = option(
        None, "The NPU (`list targets`); a compiled model says it itself.", value="NAME|FILE", use="read", before="data"
    )
    float_model: ModelOrPath | None = option(
        None, "The float model; else MODEL without its activation pairs.", value="FILE", use="read", flags=("--float",)
    )
    against: ModelOrPath | None = option(
        None, "Of a compiled MODEL, the QDQ model that it was compiled from.", value="FILE", use="read"
    )
    boundary: Literal["cpu", "npu"] | None = option(None, "Where Q and DQ at float ends run, not as the target says.")
    optimize: bool = option(False, "Let onnxruntime optimize first, as an application's session does by default.")
    threads: int = option(1, "Threads inside an operator; 0: onnxruntime's choice.", value="N", least=0, shown=True)
    reference: bool = option(True, "Compare with the numpy reference (slow), or with the QDQ model.")
    trace: Path | None = option(
        None, "Write a timeline of the estimate (JSON, for chrome://tracing or Perfetto).", value="FILE", use="file"
    )
    output: Path | None = option(
        None, "Write the outputs of the NPU to an .npz.", value="FILE", use="file", flags=("-o", "--output")
    )
    overwrite: bool = option(False, "Replace files that exist.")
    ep_library: Path | None = option(
        None, "Run on the provider of this library instead of the simulated NPU.", value="FILE", use="read"
    )
    ep_name: str | None = option(None, "... of this name; can be left out when the library has one.", value="NAME")
    ep_options: Mapping[str, str] | None = option(
        None, "An option of the provider (repeat).",
        value="K=V", flags=("--ep-option",), many=True, read=lambda texts: pairs(texts, example="isa=portable"),
    )  # fmt: skip

    def run(self) -> Simulation:
        """Outputs, figures, placement and the estimate. Without the library of the simulated NPU the reference runs in its
        place, and a note says so.

        Raises:
            ModelError: ``model`` holds programs that were not compiled for ``target`` as it is now.
            QdqError: bad model, data or options; see each class's exit code.
        """
        from qdqtool.verbs.work.simulating import simulated

        return simulated(self)


simulate = function_of(Simulate)
