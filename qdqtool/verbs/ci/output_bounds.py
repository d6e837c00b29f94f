"""Bounds on the SQNR of single outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import option


def output_bounds(texts: Sequence[str]) -> dict[str, float]:
    """Name → decibels of texts like ``logits=30``; of names that hold a ``=`` the last one counts.

    Raises:
        ValueError: a text is no such bound.
    """
    found = {}
    for text in texts:
        name, _, figure = text.rpartition("=")
        try:
            found[name] = float(figure)
        except ValueError:
            name = ""
        if not name or found[name] != found[name]:
            raise ValueError(f"{text!r} is no NAME=DB; write logits=30")
    return found


@dataclass(frozen=True, kw_only=True)
class OutputBounds:
    """Least SQNR of single outputs."""

    min_output: Mapping[str, float] | None = option(
        None, "Exit 1 when the output NAME is below DB, in place of --min-sqnr (repeat).",
        value="NAME=DB", read=output_bounds, many=True, recipe=False,
    )  # fmt: skip

    def refuse_unknown_outputs(self, model: ir.Model) -> None:
        """Refuse bounds on what ``model`` does not give.

        Raises:
            UsageError: there is one.
        """
        names = [value.name or "" for value in model.graph.outputs]
        for name in self.min_output or {}:
            if name not in names:
                where = f"--min-output {name}"
                raise UsageError("the model has no such output", where=where, hint=f"its outputs: {', '.join(names)}")
