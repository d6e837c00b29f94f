"""The verb `deploy`: from a float model to a folder for an NPU, judged, with everything that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.quantization.options import DecoderOptions
from qdqtool.verbs.ci.output_bounds import OutputBounds
from qdqtool.verbs.groups import DATA_NEEDED, LEAST_DB, MODEL, EvalData, Findings, HoldsOut, JUnit, Path, Working
from qdqtool.verbs.npu.analyze import share_of
from qdqtool.verbs.planned import Planned
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.verbs.work.deployment import Deployment

#: Share of the multiply-accumulates that is on the NPU where a deployment is worth its name.
REQUIRED = 0.9
#: Samples that are simulated: the reference is slow.
SIMULATED = 2


@dataclass(frozen=True, kw_only=True)
class Deploy(Planned, HoldsOut, EvalData, OutputBounds, Findings, Working, JUnit, Verb["Deployment"]):
    """Make a folder for an NPU of the float MODEL: clean, quantize, check, analyze, compare, simulate; exit 1 below a bound.

    The folder holds the quantized model, the float model as cleaned, the ranges, the pipeline and the commands that make them
    again, and a report. It is written whole also where a bound is missed; the report says which.
    """

    trails: ClassVar[tuple[type, ...]] = (DecoderOptions, JUnit, Findings, Working)
    placed: ClassVar[Mapping[str, str]] = {
        **Planned.placed,
        "samples": "eval_data",
        "seed": "eval_data",
        "statistics": "weights",
        "min_output": "max_partitions",
    }

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    output: Path = field(
        kw_only=False,
        metadata=metadata_of("Folder to write.", value="DIR", use="folder", flags=("-o", "--output"), required=True),
    )
    target: Path | None = field(
        default=None,
        metadata=metadata_of("The NPU.", value="NAME|FILE", use="read", listed_by="targets", required=True),
    )
    data: FeedSpec | None = field(default=None, metadata=DATA_NEEDED)
    overwrite: bool = option(False, "Replace the folder that an earlier `deploy` wrote.", recipe=False)
    require_npu: float = option(
        REQUIRED,
        "Exit 1 when fewer of the multiply-accumulates are on the NPU: 95%, or 0 to require nothing.",
        value="SHARE", read=share_of, shown=f"{REQUIRED:.0%}", recipe=False,
    )  # fmt: skip
    min_sqnr: float = option(
        LEAST_DB, "Exit 1 when an output is below this SQNR to the float model.", value="DB", shown=True, recipe=False
    )
    max_partitions: int | None = option(
        None, "Exit 1 when there are more partitions on the NPU.", value="N", least=0, recipe=False
    )
    baseline: Path | None = option(
        None, "report.json of an earlier deployment: exit 1 only when something is worse than there.",
        value="FILE", use="read", recipe=False,
    )  # fmt: skip
    float_metric: str | None = option(
        None,
        "Also judge the float and the quantized model: accuracy, or function F of module M (or file.py): "
        "f(outputs, feeds) -> number, higher is better.",
        value="NAME|M:F", recipe=False,
    )  # fmt: skip
    min_metric: float | None = option(
        None, "Exit 1 when the quantized model is below this figure of --float-metric.", value="X", recipe=False
    )
    simulate_samples: int = option(
        SIMULATED, "Samples to simulate; 0 for none.", value="N", least=0, shown=True, recipe=False
    )

    def run(self) -> Deployment:
        """What was written, and the figures.

        Raises:
            QdqError: bad model, data, target or options; see each class's exit code.
        """
        from qdqtool.verbs.ci.cases import cases_of_deployment
        from qdqtool.verbs.work.deploying import deployed

        found = deployed(self)
        self.write_junit("qdqtool deploy", cases_of_deployment(found))
        return found


deploy = function_of(Deploy)
