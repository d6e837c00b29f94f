"""Whether a target takes an edited model as it took the model before: its operators, and the rules that change no verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Finding, is_at_least
from qdq_passes.graph.edit import copy_model
from qdq_passes.npu.units.units import units_of
from qdq_passes.npu.units.verdict import VERDICT_KINDS
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.npu.analyzing import FOLD_STATIC, INLINE, PREPARE, placed_on, silent_findings
from qdqtool.npu.compiled import refuse_compiled
from qdqtool.npu.figures import broken_rules
from qdqtool.npu.report import Analysis, BrokenRule
from qdqtool.npu.shares import NodeReport, Placed
from qdqtool.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a target makes of a model: who runs what, (rule, where) → what is said of a rule that does not hold, and (rule, where)
    of all that is found, notes too."""

    placed: Placed
    broken: Mapping[tuple[str, str], str]
    found: frozenset[tuple[str, str]]

    @cached_property
    def nodes(self) -> dict[str, NodeReport]:
        """Operators by name."""
        return {node.name: node for node in self.placed.nodes if node.is_compute}

    @cached_property
    def on_cpu(self) -> list[NodeReport]:
        """Operators that the NPU does not run."""
        return [node for node in self.nodes.values() if not node.is_npu]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a target says of an edit.

    Args:
        loses: what it no longer takes, or which rule no longer holds, and why; "" of nothing.
        gains: what it takes more of; "" of nothing.
        more: so many operators more on the NPU.
    """

    loses: str = ""
    gains: str = ""
    more: int = 0

    @property
    def said(self) -> str:
        """One of the two."""
        return self.loses or self.gains

    @property
    def rank(self) -> tuple[bool, int]:
        """What it takes most of first, what it takes less with last."""
        return bool(self.loses), -self.more


#: Where there is nothing to say.
NOTHING = Judgement()


class Judge:
    """A target, and what it makes of a model before any edit.

    Raises:
        UsageError: the model is compiled already.
    """

    def __init__(self, model: ir.Model, target: Target, known: Analysis | None = None) -> None:
        """Look at ``model``, unless its analysis is ``known``."""
        refuse_compiled(model, target)
        self.target, self._folds = target, known is None
        self._before = self._look(copy_model(model)) if known is None else _known(known)

    @property
    def placed(self) -> Placed:
        """Who runs what of the model, as `analyze` says it."""
        return self._before.placed

    @property
    def floats(self) -> frozenset[str]:
        """Names of the operators that it does not compute on integers."""
        nodes = self._before.nodes.items()
        return frozenset(name for name, node in nodes if node.placement.verdict != "npu-int")

    @property
    def takes_all(self) -> bool:
        """Whether it takes every operator of the model as it is."""
        return not self._before.on_cpu

    def judged(self, edited: ir.Model) -> Judgement:
        """What it says of the ``edited`` model, a copy that nobody needs any more."""
        return self.weighed(edited)[0]

    def weighed(self, edited: ir.Model) -> tuple[Judgement, Look]:
        """As `judged`, and what the target makes of the ``edited`` model."""
        after = self._look(edited)
        return self._compared(after), after

    def _compared(self, after: Look) -> Judgement:
        before = self._before
        more = len(before.on_cpu) - len(after.on_cpu)
        if more > 0:
            return Judgement(gains=f"{self.target.name}: {_operators(more)} more on the NPU", more=more)
        if more < 0:
            known = {node.name for node in before.on_cpu}
            first = next(node for node in after.on_cpu if node.name not in known)
            return self._lost(f"{_operators(-more)} fewer on the NPU", f"{first.name}: {_reason(first)}")
        kinds: tuple[str, ...] = VERDICT_KINDS
        worse = [
            (was, node)
            for name, node in after.nodes.items()
            if (was := before.nodes.get(name)) is not None
            and kinds.index(node.placement.verdict) > kinds.index(was.placement.verdict)
        ]
        if worse:
            was, now = worse[0]
            verdicts = f"{now.placement.verdict}, not {was.placement.verdict}"
            return self._lost(f"{_operators(len(worse))} {verdicts}", f"{now.name}: {_reason(now)}")
        for (rule, where), message in after.broken.items():
            if (rule, where) not in before.broken:
                return self._lost(f"{where} does not keep {rule}", message)
        better = [
            node.placement.verdict
            for name, node in after.nodes.items()
            if (was := before.nodes.get(name)) is not None
            and kinds.index(node.placement.verdict) < kinds.index(was.placement.verdict)
        ]
        return Judgement(gains=f"{self.target.name}: {_operators(len(better))} {better[0]}") if better else NOTHING

    def _lost(self, what: str, why: str) -> Judgement:
        return Judgement(loses=f"{self.target.name}: {what}: {why}")

    def _look(self, model: ir.Model) -> Look:
        """Of ``model``, which is prepared as `analyze` does it."""
        if model.functions:
            run_pipeline(model, INLINE)
        run_pipeline(model, PREPARE if _lacks_shapes(model) else "give-names")
        self._folds = (
            self._folds and run_pipeline(model, FOLD_STATIC).modified
        )  # no edit of a pair makes anything static
        if self._folds:
            run_pipeline(model, "infer-shapes")
        rules = broken_rules(units_of(model), self.target) if self.target.policy == "whole-model" else ()
        findings = silent_findings(model, self.target)
        return Look(placed=placed_on(model, self.target), broken=_broken(findings, rules), found=places(findings))


def _known(found: Analysis) -> Look:
    """What ``found`` says already."""
    placed = Placed(target=found.target, nodes=found.nodes, partitions=len(found.partitions), refusals=found.refusals)
    return Look(placed=placed, broken=_broken(found.findings, found.rules), found=places(found.findings))


def places(findings: Iterable[Finding]) -> frozenset[tuple[str, str]]:
    """Return (rule, where) of each of ``findings``."""
    return frozenset((finding.rule, finding.where) for finding in findings)


def _broken(findings: Iterable[Finding], rules: Iterable[BrokenRule]) -> dict[tuple[str, str], str]:
    broken = {(f.rule, f.where): f.message for f in findings if is_at_least(f, "warning")}
    return broken | {(rule.rule, node): rule.reason for rule in rules for node in rule.nodes}


def _lacks_shapes(model: ir.Model) -> bool:
    return any(
        value.shape is None or value.type is None for node in model.graph for value in node.outputs if value.name
    )


def _operators(count: int) -> str:
    return f"{count} operator{'' if count == 1 else 's'}"


def _reason(node: NodeReport) -> str:
    return node.placement.reason or node.placement.rule
