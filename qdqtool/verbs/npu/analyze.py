"""The verb `analyze`: what a target makes of a model."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.groups import MODEL, OUTPUT, JUnit, Path, Saving, Targeted, Warns
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.npu.analyzing import Stored
    from qdqtool.npu.report import Analysis


def share_of(text: str) -> float:
    """The share, 0 to 1, of ``95%``, ``95`` or ``0.95``; a number up to 1 without a sign is a share.

    Raises:
        ValueError: it is no share of 0 to 100 percent.
    """
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 100:
        raise ValueError(f"{text!r} is no share; write 95% or 0.95, up to 100%")
    return number / 100 if text.endswith("%") or number > 1 else number


@dataclass(frozen=True, kw_only=True)
class Analyze(Targeted, Saving, Warns, JUnit, Verb["Analysis"]):
    """Say of each node of MODEL whether an NPU computes it, why not, and what to change; exit 1 with errors or too little on it.

    Errors are what the target computes silently wrong; they change no verdict.
    """

    leads: ClassVar = (Targeted,)

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    output: Path | None = field(default=None, kw_only=False, metadata=OUTPUT)
    simulated: bool = option(False, "What the simulated NPU runs; it leaves to the CPU what it has no kernel for.")
    require_npu: float | None = option(
        None,
        "Exit 1 when less of the MACs is on the NPU: 95%, 0.95; with 100% also when an operator is not.",
        value="SHARE",
        read=share_of,
    )
    max_partitions: int | None = option(None, "Exit 1 when there are more partitions on the NPU.", value="N", least=0)
    baseline: Path | None = option(
        None, "JSON of an earlier analysis: exit 1 only when something is worse than there.", value="FILE", use="read"
    )
    memory: bool = option(
        False,
        "Also plan its memory on the target: weights, KV cache, activations; MODEL may be a folder that `split` wrote.",
    )
    trials: bool = option(
        True, "Do not try passes of the tool on a copy where no way out is known.", flags=("--no-trials",)
    )
    outline: bool = option(False, "… and with each partition as a local function, one box in Netron.")

    def run(self) -> Analysis:
        """The analysis; the model is written with it in the metadata of its nodes where there is an ``output``. What hangs on
        static shapes alone is computed first, as compilers do, and is no node any more (but where ``simulated``).

        Raises:
            UsageError: the model is compiled already, or the baseline is no report of an analysis.
            QdqError: bad model or target; see each class's exit code.
        """
        import onnx_ir as ir
        from qdq_passes.pipeline.pipeline import run_pipeline
        from qdq_passes.verification.rules import verify

        from qdqtool.io.files.progress import pass_on
        from qdqtool.io.models.load import missing_warnings, missing_weights
        from qdqtool.io.models.save import save
        from qdqtool.io.models.working import opened, provenance_of, refuse_errors, repair
        from qdqtool.npu.analyzing import (
            FOLD,
            INLINE,
            OUTLINE,
            PREPARE,
            analysis,
            judged,
            linear_arrangement,
            options,
            stored,
        )
        from qdqtool.npu.compiled import refuse_compiled
        from qdqtool.npu.memory import graph_memory, plan_of
        from qdqtool.targets.loading import load_target
        from qdqtool.verbs.advice.trying import advised

        chip = load_target(self.target)
        before = stored(self.baseline) if self.baseline is not None else None
        work, source = opened(self.model, weights=self.output is not None or self.simulated)
        pass_on(missing_warnings(missing_weights(work)), self.warn)
        refuse_compiled(work, chip)
        known = verify(work, minimum="error")
        steps = [INLINE] if work.functions else []
        steps += [*repair(work, self.warn), PREPARE, *([] if self.simulated else [FOLD])]
        run_pipeline(work, ",".join(steps))
        path = "model.onnx" if isinstance(self.model, ir.Model) else os.fspath(self.model)
        found = analysis(work, path, chip, self.boundary, simulated=self.simulated)
        if self.trials and not self.simulated:
            found = advised(found, chip, path)
        found = judged(found, before, self.require_npu)
        found = self._bounded(found, before)
        if self.memory:
            taken = linear_arrangement(work, chip) if chip.arrange == "linear" else chip
            plan = plan_of(chip, [graph_memory(work, taken, name=os.path.basename(path))])
            found = dataclasses.replace(found, memory=plan)
        if self.output is not None:
            steps.append("assign-targets{target=@target" + options(self.boundary, simulated=self.simulated) + "}")
            if self.outline:
                run_pipeline(work, OUTLINE)
                steps.append(OUTLINE)
            refuse_errors(work, known, allow_findings=self.allow_findings)
            entry = None if self.no_provenance else provenance_of(",".join(steps), source, {"target": chip.sha256})
            save(
                work,
                self.output,
                overwrite=self.overwrite,
                provenance=entry,
                annotations=True,
                copy_data=self.copy_data,
            )
        return found

    def _bounded(self, found: Analysis, before: Stored | None) -> Analysis:
        """``found`` with the bound on partitions, which a baseline replaces, written as test cases where asked for."""
        from qdqtool.io.files.text_table import plural
        from qdqtool.verbs.ci.cases import cases_of_analysis

        most = self.max_partitions if before is None else before.partitions
        if most is not None and len(found.partitions) > most:
            limit = f"allowed are {most}" if before is None else f"were {most}"
            more = f"{plural(len(found.partitions), 'partition')}, {limit}"
            found = dataclasses.replace(found, failures=(*found.failures, more))
        self.write_junit("qdqtool analyze", cases_of_analysis(found))
        return found


analyze = function_of(Analyze)
