"""Run the lints: all of them with `find_lints`, and the one that needs ranges alone for `quantize`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir
from qdq_passes.core.findings import Finding

from qdqtool.lints.concat_range_mismatch import ConcatRangeMismatch
from qdqtool.lints.context import Interval, LintContext

if TYPE_CHECKING:
    from qdqtool.lints.rule import Lint


def all_lints() -> tuple[Lint, ...]:
    """Every rule, in the order of reports."""
    from qdqtool.lints.dead_slice import DeadSlice
    from qdqtool.lints.steep_function import SteepFunction

    return ConcatRangeMismatch(), SteepFunction(), DeadSlice()


def find_lints(context: LintContext, lints: Iterable[Lint] | None = None) -> list[Finding]:
    """Return the findings of ``lints`` (default: all) in ``context``, rule by rule, each in the order of the graph."""
    lints = all_lints() if lints is None else lints
    return [finding for lint in lints for finding in lint.findings(context)]


def concat_warnings(
    quantized: ir.Model, ranges: Mapping[str, Interval], advice: Callable[[str], str] | None = None
) -> Iterator[str]:
    """A line for each Concat whose branches are too far apart for its grid, with the way out; looked for when it is read.

    Args:
        quantized: the model with its pairs.
        ranges: what its tensors held in the float model.
        advice: says the way out for the Concat of a name; by default one that is not tried on a target.
    """
    for each in ConcatRangeMismatch().find(LintContext(model=quantized, ranges=ranges)):
        hint = each.hint if advice is None else advice(each.where)
        yield f"{each.where}: {each.message}; {hint} (concat-range-mismatch; `check --data` knows more)"
