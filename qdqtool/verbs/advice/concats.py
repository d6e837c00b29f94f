"""The way out for a Concat whose branches are too far apart for one grid: options of `quantize` that the target takes, tried."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError
from qdq_passes.graph.uses import label

from qdqtool.lints.concat_range_mismatch import BY_HAND, ConcatRangeMismatch, ways_out
from qdqtool.lints.context import LintContext
from qdqtool.npu.shares import Placed
from qdqtool.quantization.quantizing import Quantization
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.quantizing import made


@dataclass(frozen=True)
class ConcatAdvice:
    """What to say of a Concat of a model that was quantized for a target.

    Args:
        asked: how it was quantized.
        done: what that made.
        placed: who runs what of it.
    """

    asked: Quantize
    done: Quantization
    placed: Placed

    def __call__(self, where: str) -> str:
        """Return the mildest way out for the Concat called ``where`` that keeps its layers on the target."""
        node = next(node for node in self.done.model.graph if label(node) == where)
        tried = []
        for options in ways_out(node):
            words = shlex.join([word for name, value in options.items() for word in _words(name, value)])
            lost = self._lost(where, options)
            if lost == 0:
                return f"quantize with {words}, which {self.placed.target} takes"
            if lost == 1 and "exclude" in options:
                return f"leave it float: quantize with {words}, which puts it on the CPU"
            tried.append(words)
        return f"{self.placed.target} takes neither {' nor '.join(tried)}; {BY_HAND}"

    def _lost(self, where: str, options: Mapping[str, tuple[str, ...] | bool]) -> int | None:
        """How many operators fewer the target takes with ``options``; None where layers are lost, or they do not help."""
        more: dict[str, Any] = {
            name: value if isinstance(value, bool) else (*getattr(self.asked, name), *value)
            for name, value in options.items()
        }
        again = replace(
            self.asked,
            output=None, report=None, save_statistics=None, data=None, warn=None, progress=None,
            ranges=self.done.ranges, statistics=self.done.statistics,
            **more,
        )  # fmt: skip
        try:
            found = made(again, compares=False, advises=False)
        except QdqError:  # such options are no way out
            return None
        starved = ConcatRangeMismatch().find(LintContext(model=found.model, ranges=found.quantization.ranges.bound))
        after = found.placed
        if after is None or after.share < self.placed.share or any(each.where == where for each in starved):
            return None
        return max(0, self.placed.npu_compute_nodes - after.npu_compute_nodes)


def _words(name: str, value: tuple[str, ...] | bool) -> list[str]:
    """The option ``name`` as a shell takes it, once for each selector."""
    return [word for text in value for word in (f"--{name}", text)] if isinstance(value, tuple) else [f"--{name}"]
