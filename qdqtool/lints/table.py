"""The lints there are, and the search."""

from __future__ import annotations

from collections.abc import Iterable

from qdq_passes.core.findings import Finding

from qdqtool.lints.concat_range_mismatch import ConcatRangeMismatch
from qdqtool.lints.context import LintContext
from qdqtool.lints.dead_slice import DeadSlice
from qdqtool.lints.rule import Lint
from qdqtool.lints.steep_function import SteepFunction

LINTS: tuple[Lint, ...] = (ConcatRangeMismatch(), SteepFunction(), DeadSlice())


def find_lints(context: LintContext, lints: Iterable[Lint] = LINTS) -> list[Finding]:
    """What ``lints`` find in ``context``, rule by rule, each in the order of the graph."""
    return [finding for lint in lints for finding in lint.findings(context)]
