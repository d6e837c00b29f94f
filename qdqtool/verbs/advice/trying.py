"""Suggestions for operators that a target does not take as they are: each is carried out on a copy before it is given.

works         the operator is on the NPU behind it, or computed on integers, or the finding is gone, and nothing else is lost
first step    another rule keeps it off then, which is said
fails         it is left out
unknown       it starts from the float model, or needs data: "not tried" """

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Finding
from qdq_passes.errors import QdqError
from qdq_passes.graph.annotate import TARGET
from qdq_passes.graph.edit import copy_model
from qdq_passes.npu.units.verdict import VERDICT_KINDS
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.npu.analyzing import FOLD, PREPARE, silent_findings
from qdqtool.npu.report import Analysis, BrokenRule, Repair
from qdqtool.npu.shares import NodeReport, Placed, Refusal
from qdqtool.npu.trying import NO_WAY, with_trials
from qdqtool.targets.remedies import anew
from qdqtool.targets.target import Target
from qdqtool.verbs.advice.commands import NOT_TRIED, Way, completed, run_way, ways_of
from qdqtool.verbs.work.judging import NOTHING, Judge, Judgement, Look, places

#: So many ways are tried; of the others it is said that they are not.
MOST = 16

#: What names several nodes and one suggestion.
Advised = Refusal | BrokenRule | Repair
Outcome = Literal["works", "step", "fails", "unknown"]


@dataclass(frozen=True)
class _Fate:
    """What became of a part of a suggestion: the ways in it to keep, and what is said behind them."""

    kept: tuple[int, ...]
    note: str = ""


@dataclass
class Advisor:
    """Suggestions for a model, tried on a target.

    Args:
        model: prepared as `analyze` does; stays as it is.
        target: the target; None where only traps of every backend are looked for.
        path: the file of the model, for commands.
        is_fresh: whether the model was quantized for this target just now: to do so is no advice.
        judge: what the target makes of the model as it is, looked at where it is first needed.
    """

    model: ir.Model
    target: Target | None
    path: str
    is_fresh: bool = False
    judge: Judge | None = None
    _fates: dict[tuple[str, str, str], list[_Fate | None]] = field(default_factory=dict)
    _carried_out: dict[Way, Outcome | tuple[Judgement, Look]] = field(default_factory=dict)

    def node_advice(self, node: NodeReport) -> str:
        """Return the suggestion for ``node``, without what fails, and with whole commands; of a pair, for which nothing can
        fail, as it stands."""
        if node.kind == "pair":
            return completed(node.placement.suggestion, self.path, self.target)
        return self._advice(node.name, (node.core, node.placement.rule), node.placement.suggestion)

    def advice(self, refusal: Advised) -> str:
        """As `node_advice`, of several nodes with one suggestion."""
        return self._advice(refusal.nodes[0], (refusal.ops[0], refusal.rule), refusal.suggestion)

    def hint(self, finding: Finding) -> str:
        """As `node_advice`, of a finding."""
        return self._advice(finding, (finding.rule, "finding"), finding.hint)

    def _advice(self, subject: str | Finding, key: tuple[str, str], said: str) -> str:
        if "`" not in said:
            return said
        parts = said.split("; or ")
        shape = "|".join(str(len(ways_of(part))) for part in parts)
        if (*key, shape) not in self._fates:
            self._fates[*key, shape] = [self._fate(part, subject) for part in parts]
        fates = self._fates[*key, shape]
        left = [self._text(part, fate) for part, fate in zip(parts, fates, strict=True) if fate is not None]
        if left:
            return "; or ".join(left)
        what = f"puts it on {self.target.name}" if self.target is not None and isinstance(subject, str) else "mends it"
        return f"{NO_WAY}{what} (known ones fail on a copy)"

    def _fate(self, part: str, subject: str | Finding) -> _Fate | None:
        ways = ways_of(part)
        if not ways:
            return _Fate(())
        if self.is_fresh and self.target is not None and anew(self.target.name).rpartition(": ")[2] in part:
            return None
        tried = [self._tried(way, subject) for way in ways]
        for wanted in ("works", "unknown", "step"):
            kept = tuple(at for at, (outcome, _) in enumerate(tried) if outcome == wanted)
            if kept:
                then = tried[kept[0]][1]
                note = {"works": "", "unknown": NOT_TRIED, "step": f" (a first step: then {then})"}[wanted]
                return _Fate(kept, note)
        return None

    def _tried(self, way: Way, subject: str | Finding) -> tuple[Outcome, str]:
        if way not in self._carried_out:
            self._carried_out[way] = self._result(way)
        found = self._carried_out[way]
        if isinstance(found, str):
            return found, ""
        judged, after = found
        if isinstance(subject, Finding):
            return ("fails" if judged.loses or (subject.rule, subject.where) in after.found else "works"), ""
        assert self.judge is not None  # who carried it out
        return _outcome(subject, self.judge.placed, judged, after.placed)

    def _result(self, way: Way) -> Outcome | tuple[Judgement, Look]:
        """What the target makes of the model behind ``way``."""
        tried = sum(not isinstance(result, str) for result in self._carried_out.values())
        if way.is_of_floats or tried >= MOST:
            return "unknown"
        copy = copy_model(self.model)
        try:
            if not run_way(way, copy):
                return "unknown"
            if self.target is None:
                nothing = Placed(target="", nodes=(), partitions=0, refusals=())
                return NOTHING, Look(placed=nothing, broken={}, found=places(silent_findings(copy)))
            if not all(command.startswith("qdqtool qdq ") for command in way.commands):
                run_pipeline(copy, f"{PREPARE},{FOLD}")  # as `analyze` does with the file
            if self.judge is None:
                self.judge = Judge(self.model, self.target)
            return self.judge.weighed(copy)
        except QdqError:  # a command that refuses the model is no way out
            return "fails"

    def _text(self, part: str, fate: _Fate) -> str:
        ways = ways_of(part)
        if len(fate.kept) == len(ways):
            return completed(part, self.path, self.target) + fate.note
        start = part.partition("`")[0]
        texts = [", then ".join(f"`{command}`" for command in ways[at].commands) for at in fate.kept]
        return completed(start + ", or ".join(texts), self.path, self.target) + fate.note


def _outcome(name: str, before: Placed, judged: Judgement, after: Placed) -> tuple[Outcome, str]:
    """What trying a way did for the operator ``name``."""
    was, now = (next((n for n in each.nodes if n.name == name), None) for each in (before, after))
    kinds: tuple[str, ...] = VERDICT_KINDS
    is_less = after.npu_compute_nodes < before.npu_compute_nodes if now is None else bool(judged.loses)
    if is_less or was is None:
        return "fails", ""
    if judged.gains and (now is None or kinds.index(now.placement.verdict) < kinds.index(was.placement.verdict)):
        return "works", ""
    if now is None:  # other operators stand in its place: a step where the target has rules for them
        known = {node.name for node in before.nodes}
        now = next(
            (node for node in after.nodes if node.is_compute and not node.is_npu and node.name not in known), None
        )
    if now is not None and now.placement.rule not in (was.placement.rule, "no-rule"):
        return "step", now.placement.reason or now.placement.rule
    return "fails", ""


def advised(found: Analysis, target: Target, path: str, *, is_fresh: bool = False) -> Analysis:
    """Return ``found`` with suggestions that were tried on copies of its model; for what has none left, passes of the tool are
    tried as `with_trials` does."""
    advisor = Advisor(found.model, target, path, is_fresh=is_fresh, judge=Judge(found.model, target, found))
    groups = {(node.core, node.placement.rule): node for node in reversed(found.nodes) if not _is_done(node)}
    for node in groups.values():  # the first of each is the one that is shown
        advisor.node_advice(node)
    tried = with_trials(_with(found, advisor.node_advice, advisor.advice), target)
    said = _with(
        tried,
        lambda node: completed(node.placement.suggestion, path, target),
        lambda r: completed(r.suggestion, path, target),
    )
    return replace(said, findings=tuple(replace(f, hint=advisor.hint(f)) for f in said.findings))


def placed_with_advice(placed: Placed, advisor: Advisor) -> Placed:
    """Return ``placed`` with suggestions that were tried."""
    return replace(
        placed,
        nodes=tuple(
            node
            if _is_done(node)
            else replace(node, placement=replace(node.placement, suggestion=advisor.node_advice(node)))
            for node in placed.nodes
        ),
        refusals=tuple(replace(refusal, suggestion=advisor.advice(refusal)) for refusal in placed.refusals),
    )


def _is_done(node: NodeReport) -> bool:
    return node.is_npu and not node.placement.suggestion


def _with(found: Analysis, of_node: Callable[[NodeReport], str], of_many: Callable[[Advised], str]) -> Analysis:
    """``found`` with other suggestions, also in the annotations of its model."""
    ways = {node.name: of_node(node) for node in found.nodes if not _is_done(node)}
    for node in found.model.graph.all_nodes():
        placement, way = TARGET.get(node), ways.get(node.name or "")
        if placement is not None and way is not None and way != placement.suggestion:
            TARGET.set(node, replace(placement, suggestion=way))
    return replace(
        found,
        nodes=tuple(
            replace(n, placement=replace(n.placement, suggestion=ways[n.name])) if n.name in ways else n
            for n in found.nodes
        ),
        refusals=tuple(replace(r, suggestion=of_many(r)) for r in found.refusals),
        rules=tuple(replace(r, suggestion=of_many(r)) for r in found.rules),
        repairs=tuple(replace(r, suggestion=of_many(r)) for r in found.repairs),
    )
