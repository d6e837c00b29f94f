"""Sensitivity: what each node costs in quality, when only it is quantized, and when only it is left out.

*only*: the others stay float, so the figure is the harm that this node does by itself. *without*: the others are quantized, so
the figure is what there is to win by raising it. The worst stands first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.agreement import worst_first
from qdq_passes.select.selectors import Selector, select_nodes

from qdqtool.io.files.progress import Progress, Warned
from qdqtool.search.measuring import Measurements, Setting, figure_json
from qdqtool.search.metrics import Metric
from qdqtool.search.node_groups import By, NodeGroup, merged, node_groups, touching_nodes
from qdqtool.search.variants import Baseline, Measured, Point

Mode = Literal["only", "without", "both"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one node, or several together, do.

    Args:
        group: the nodes.
        only: when only they are quantized; None where that was not asked for.
        without: when only they are left float; None where that was not asked for.
    """

    group: NodeGroup
    only: Measured | None
    without: Measured | None

    @property
    def reason(self) -> str:
        """Why a figure is missing, in words; empty where none is."""
        return next((found.reason for found in (self.only, self.without) if found is not None and found.reason), "")

    @property
    def order(self) -> tuple[float, float]:
        """To sort by, worst first."""
        only = float("inf") if self.only is None or self.only.reason else worst_first(self.only.figure)
        without = -float("inf") if self.without is None or self.without.reason else worst_first(self.without.figure)
        return only, -without

    def to_json(self, metric: Metric) -> dict[str, Any]:
        """JSON-ready. ``only_db``, ``without_db`` where the figures are decibels, ``only``, ``without`` with any metric."""
        data: dict[str, Any] = {
            "name": self.group.name,
            "op": self.group.op,
            "scope": self.group.scope,
            "members": list(self.group.nodes),
            "macs": self.group.macs,
        }
        for key, found in (("only", self.only), ("without", self.without)):
            if found is not None and not found.reason:
                data[key] = figure_json(found.figure)
                if metric.unit == "dB":
                    data[f"{key}_db"] = figure_json(found.figure)
        return {**data, "reason": self.reason} if self.reason else data


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Warned):
    """Which nodes hurt.

    Args:
        rows: worst first.
        by: what a row is.
        mode: what was measured.
        metric: what judged.
        floating: figure of the float model; None where the metric finds no difference.
        quantized: figure of the plain quantization.
        samples: number of samples that were judged on.
        preset: name of the preset.
        method: calibration method.
        of: hashes of what this is of.
    """

    rows: tuple[Row, ...]
    by: By
    mode: Mode
    metric: Metric
    floating: float | None
    quantized: float | None
    samples: int
    preset: str
    method: str
    of: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract."""
        return {
            "preset": self.preset,
            "method": self.method,
            "metric": self.metric.name,
            "by": self.by,
            "mode": self.mode,
            "samples": self.samples,
            "float": figure_json(self.floating),
            "quantized": figure_json(self.quantized),
            "nodes": [row.to_json(self.metric) for row in self.rows],
            "of": dict(sorted(self.of.items())),
        }


def sensitivity_of(
    setting: Setting,
    measurements: Measurements[Baseline],
    *,
    metric: Metric,
    by: By = "node",
    mode: Mode = "both",
    select: Sequence[str] = (),
    progress: Progress | None = None,
) -> Sensitivity:
    """Measure every node of the plain quantization.

    Args:
        setting: what is measured.
        measurements: who measures.
        metric: what judges.
        by: put nodes together by layer, scope or operator type; one by one otherwise (a fused group is one).
        mode: which of the two figures.
        select: selectors of the nodes to measure; all by default.
        progress: called after each variant.

    Raises:
        UsageError: nothing that is quantized is selected.
    """
    found = _selected(setting.model, node_groups(setting.model, setting.plan), select)
    rows = merged(found, setting.model, by)
    points: list[Point] = [Point()]
    for row in rows:
        if mode != "without":
            points.append(Point(only=row.nodes))
        if mode != "only":
            points.append(Point.of(dict.fromkeys(row.nodes, "float")))
    results = measurements.of(points, progress)
    plain, rest = results[0], iter(results[1:])
    made = [
        Row(
            group=row,
            only=next(rest) if mode != "without" else None,
            without=next(rest) if mode != "only" else None,
        )
        for row in rows
    ]
    return Sensitivity(
        rows=tuple(sorted(made, key=lambda row: row.order)),  # a stable sort: equals stay in the order of the graph
        by=by,
        mode=mode,
        metric=metric,
        floating=setting.floating,
        quantized=plain.figure,
        samples=len(setting.baseline.feeds),
        preset=setting.plan.preset.name,
        method=setting.baseline.ranges.method,
        of=dict(setting.of),
    )


def _selected(model: ir.Model, found: list[NodeGroup], select: Sequence[str]) -> list[NodeGroup]:
    if not found:
        raise UsageError("nothing is quantized", hint="the preset, --exclude and --only leave no operator")
    if not select:
        return found
    chosen = touching_nodes(found, select_nodes(model, Selector.of(*select)))
    if not chosen:
        raise UsageError("--select hits nothing that is quantized", hint="see `qdqtool quantize`: excluded nodes")
    return chosen
