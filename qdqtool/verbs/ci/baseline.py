"""Deployments beside an earlier one: what is worse than its report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.documents import json_of

from qdqtool.io.files.read import read_text
from qdqtool.npu.analyzing import Stored, judged, stored_in
from qdqtool.verbs.work.bounds.outputs import missed

if TYPE_CHECKING:
    from qdqtool.verbs.work.deployment import Deployment

#: An output that is so much worse, dB, is worse: less is what another build of a library rounds otherwise.
TOLERATED_DB = 0.1


@dataclass(frozen=True, kw_only=True)
class StoredDeployment:
    """What the report of an earlier deployment says.

    Args:
        errors: (rule, where) of what `check` called errors.
        analysis: what the target made of it.
        npu_share: share of the multiply-accumulates on the NPU, 0 to 1.
        outputs: SQNR of each output, dB; None of an exact one.
        metric: figure of the quantized model; None without one.
        is_exact: whether the simulated NPU was equal to the reference; None where nothing was simulated.
    """

    errors: frozenset[tuple[str, str]]
    analysis: Stored
    npu_share: float
    outputs: Mapping[str, float | None]
    metric: float | None
    is_exact: bool | None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> StoredDeployment:
        """Return what the ``report.json`` at ``path`` says.

        Raises:
            UsageError: it is no report of a deployment.
        """
        try:
            data = json_of(read_text(path))
            return cls._of(data.get("payload", data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError("is no report.json of `qdqtool deploy`", where=os.fspath(path)) from error

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> StoredDeployment:
        analysis, simulation = data["analysis"], data["simulation"]
        exact = None if simulation is None else [each["exact"] for each in simulation["outputs"].values()]
        return cls(
            errors=frozenset((f["rule"], f["where"]) for f in data["check"]["findings"] if f["level"] in ("error", "fatal")),
            analysis=stored_in(analysis), npu_share=float(data["npu_share"]),
            outputs={name: each["sqnr_db"] for name, each in data["comparison"]["outputs"].items()},
            metric=None if data["metric"] is None else data["metric"]["quantized"],
            is_exact=None if exact is None else all(each in (None, 1.0) for each in exact),
        )  # fmt: skip

    def regressions(self, found: Deployment) -> Iterator[str]:
        """Yield what is worse of ``found``."""
        for finding in found.checked.findings:
            if finding["level"] in ("error", "fatal") and (finding["rule"], finding["where"]) not in self.errors:
                yield f"check: {finding['rule']} at {finding['where']}, not in the baseline"
        yield from (f"analyze: {failure}" for failure in judged(found.analysis, self.analysis, None).failures)
        if found.analysis.share < self.npu_share - 1e-9:
            yield f"{found.analysis.share:.1%} of the multiply-accumulates are on the NPU, were {self.npu_share:.1%}"
        if len(found.analysis.partitions) > self.analysis.partitions:
            yield f"{len(found.analysis.partitions)} partitions, were {self.analysis.partitions}"
        for output in found.outputs:
            figure, was = output.agreement.sqnr_db, self.outputs.get(output.name)
            if figure is not None and output.name in self.outputs and (was is None or figure < was - TOLERATED_DB):
                yield f"output {output.name}: SQNR {figure:.1f} dB, was {'exact' if was is None else f'{was:.1f} dB'}"
        for name, reason in found.comparison.uncompared:
            if name in self.outputs:
                yield f"output {name}: cannot be compared any more: {reason}"
        for text in missed(found.comparison, found.bounds.sqnr_db, found.bounds.outputs):
            if any(
                text.startswith(f"output {output.text}:") for output in found.outputs if output.name not in self.outputs
            ):
                yield text
        figure = None if found.judged is None else found.judged.quantized
        if figure is not None and self.metric is not None and figure < self.metric:
            yield f"{figure:.4g} by the metric, was {self.metric:.4g}"
        if found.simulation is not None and self.is_exact and not found.simulation.is_exact:
            yield "simulate: differs from the reference, did not in the baseline"
