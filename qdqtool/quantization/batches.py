"""A symbolic batch that a target does not take as it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qdq_passes.clean.bind_batch import BOUND, BindBatch
from qdq_passes.clean.fold_constants import FoldConstants
from qdq_passes.pipeline.pipeline import PassReport, Pipeline

if TYPE_CHECKING:
    from qdqtool.targets.legalization import Legalization


def bound(prepare: Pipeline, target: Legalization) -> Pipeline:
    """``prepare`` with the batch bound as ``target`` wants it: behind the folding of what is static, and before its own."""
    if target.binds == "never":
        return prepare
    at = next((i + 1 for i, step in enumerate(prepare.passes) if isinstance(step, FoldConstants)), 0)
    folding = prepare.passes[at - 1 : at]
    return Pipeline((*prepare.passes[:at], BindBatch(always=target.binds == "always"), *folding, *prepare.passes[at:]))


def bindings(passes: Iterable[PassReport]) -> list[str]:
    """What is said of a batch that was bound."""
    return [
        f"{change.where}: {change.because}: the target computes with static shapes; --no-bind-batch leaves it symbolic"
        for report in passes
        for change in report.changes
        if change.kind == BOUND
    ]
