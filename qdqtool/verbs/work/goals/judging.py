"""How a variant is judged on the way to a goal: what the target and the chip make of it, then the metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.npu.partitions.partition_graph import weight_bytes
from qdq_passes.npu.units.units import units_of

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.npu.shares import Placed
from qdqtool.quantization.plan import Plan
from qdqtool.search.goal.chance import early_of, stages_of, standing
from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.proof import Hardest
from qdqtool.search.goal.standing import Standing
from qdqtool.search.metrics import Arrays
from qdqtool.search.precision_cost import cost_of
from qdqtool.search.variants import FAILED, Baseline, Measured, Placing, Point, running
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from qdqtool.verbs.groups import OnChip
from qdqtool.verbs.work.chip_times import estimated_on_chip
from qdqtool.verbs.work.fitting import fit


@dataclass(frozen=True, kw_only=True)
class GoalBaseline(Baseline):
    """What variants are made of and judged by on the way to a goal.

    Args:
        goal: the goal.
        target: name or file of the target; None for none.
        on_chip: the chip that is asked how long a run takes.
        is_whole: all samples are judged on, whatever the first say.
    """

    goal: Goal
    target: str | None
    on_chip: OnChip
    is_whole: bool = False

    @cached_property
    def chip(self) -> Target | None:
        """The target."""
        return None if self.target is None else load_target(self.target)

    @cached_property
    def hardest(self) -> Hardest | None:
        """The samples that may refute a variant for certain."""
        return Hardest.of(self.goal, self.opened_metric, self.feeds, self.references)

    @cached_property
    def floating(self) -> Callable[[Sequence[int]], float | None]:
        """Figures of the float model, of the samples of some numbers."""
        return self.opened_metric.figures(self.references, self.feeds, self.references)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant that was made.

    Args:
        model: the model.
        plan: that made it.
    """

    model: ir.Model
    plan: Plan


def made(baseline: GoalBaseline, point: Point) -> tuple[Variant, Placed | None]:
    """A variant as `quantize` makes it, and who runs what of it on the target.

    Raises:
        QdqError: it cannot be made.
    """

    def of(plan: Plan) -> Variant:
        return Variant(model=baseline.planned(plan), plan=plan)

    first = of(baseline.scheme.plan(point))
    return (first, None) if baseline.chip is None else fit(first, baseline.chip, of)


def judged(baseline: GoalBaseline, point: Point) -> Measured:
    """Make and judge one variant, the plain one on all samples; one that cannot be made is told by the reason."""
    is_plain = point == Point()
    try:
        variant, placed = made(baseline, point)
        return weighed(replace(baseline, is_whole=True) if is_plain else baseline, variant.model, placed)
    except QdqError as error:
        if is_plain:
            raise
        return Measured(figure=None, cost=FAILED, reason=str(error))


def weighed(baseline: GoalBaseline, model: ir.Model, placed: Placed | None) -> Measured:
    """What ``model`` is worth."""
    on_cpu = None if placed is None else placed.on_cpu
    time = estimated_on_chip(
        model, baseline.on_chip, on_cpu=on_cpu, crossings=0 if placed is None else placed.partitions
    )
    placing = Placing(
        refused=tuple(on_cpu or ()), ms=None if time is None else time.prediction.span.ms, sha256=model_sha256(model),
        weight_bytes=weight_bytes(units_of(model)),
    )  # fmt: skip
    found = _standing(baseline, model)
    return Measured(figure=found.figure, cost=cost_of(model, baseline.prices), standing=found, placing=placing)


def _standing(baseline: GoalBaseline, model: ir.Model) -> Standing:
    """On the hardest samples, and on all where these do not refute it; of a metric that does not tell which are hard, on the
    first samples, and on more of them until it is below the goal there, whatever one draws."""
    feeds, every, hardest = baseline.feeds, len(baseline.feeds), baseline.hardest
    early = early_of(every) if hardest is None else 0

    def of(part: Sequence[Arrays]) -> Standing:
        size = len(part)
        return standing(
            baseline.goal,
            baseline.opened_metric,
            part,
            feeds[:size],
            baseline.references[:size],
            early=early,
            floating=baseline.floating,
        )

    def is_as_good(found: Standing) -> bool:
        """Whether the float model stands no better: that refutes nothing."""
        return of(baseline.references[: found.samples]).margin <= found.margin

    outputs: list[Arrays] = []
    with running(model) as run:
        if hardest is not None and not baseline.is_whole:
            return _standing_by(hardest, baseline, run, of)
        for count in () if baseline.is_whole else tuple(stages_of(every))[:-1]:
            outputs += run(feeds[len(outputs) : count])
            try:
                found = of(outputs)
            except UsageError:  # a metric that so few samples are too little for
                continue
            if found.high < 0 and not is_as_good(found):
                return found
        return of([*outputs, *run(feeds[len(outputs) :])])


def _standing_by(
    hardest: Hardest,
    baseline: GoalBaseline,
    run: Callable[[Sequence[Arrays]], list[Arrays]],
    whole: Callable[[Sequence[Arrays]], Standing],
) -> Standing:
    """On the ``hardest`` samples, and on the ``whole`` of them where these refute nothing."""
    feeds, answer = baseline.feeds, baseline.opened_metric.digested
    first = dict(zip(hardest.samples, run([feeds[at] for at in hardest.samples]), strict=True))
    found = hardest.refuted(answer(output, feeds[at]) for at, output in first.items())
    if found is not None:
        return found
    rest = [at for at in range(len(feeds)) if at not in first]
    outputs = first | dict(zip(rest, run([feeds[at] for at in rest]), strict=True))
    return whole([outputs[at] for at in range(len(feeds))])
