"""What `quantize` itself says: the lint that needs ranges alone, which it has."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from qdqtool.lints.concat_range_mismatch import ConcatRangeMismatch
from qdqtool.lints.context import Interval, LintContext


def concat_warnings(quantized: ir.Model, ranges: Mapping[str, Interval]) -> list[str]:
    """One line for each Concat of ``quantized`` whose branches are too far apart for its grid, with the way out."""
    found = ConcatRangeMismatch().find(LintContext(model=quantized, ranges=ranges))
    return [
        f"{each.where}: {each.message}; {each.hint} (concat-range-mismatch; `check --data` knows more)"
        for each in found
    ]
