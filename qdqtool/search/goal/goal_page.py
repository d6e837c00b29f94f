"""The page of a search for a goal: every trial by what it costs and what it reaches, and why the rest lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from qdqtool.io.files import html
from qdqtool.io.files.text_table import megabytes
from qdqtool.search.goal.trials import are_told_by_weights


def goal_page(sought: Mapping[str, Any], name: str, command: Sequence[str] = ()) -> str:
    """One HTML document: nothing is loaded, nothing runs.

    Args:
        sought: what was found, as `quantize --goal --json` says it.
        name: of the model.
        command: that makes the chosen one again.
    """
    best, trials = sought["chosen"], sought["trials"]
    timed = any(trial["ms"] is not None for trial in trials)
    sized = are_told_by_weights(trials)
    share = "weights" if sized else "MACs in 8 bit"
    columns = ("tried", "because of", sought["metric"], "on samples", share, "refused", "quantizations")
    met, taken = ("met", "chosen") if sought["met"] else ("not met", "the nearest")
    rows = [_row(trial, timed, sized, taken) for trial in trials]
    floating = "" if sought["float"] is None else f", float {sought['float']:.6g}"
    told = f"{sought['goal']}: {met}; bound {sought['bound']:.6g}{floating}. {sought['units']:.1f} quantizations' work."
    return html.document(
        f"{name}: {sought['goal']}",
        [
            f"<p>{escape(told)}</p>", *_plot(sought, timed, sized),
            *html.table((*columns, *(["ms"] if timed else []), "why it lost"), rows, best=best), *html.commands(command),
        ],
    )  # fmt: skip


def _row(trial: Mapping[str, Any], timed: bool, sized: bool, taken: str) -> tuple[object, ...]:
    figure = "" if trial["reason"] else "exact" if trial["figure"] is None else f"{trial['figure']:.6g}"
    share = "" if trial["cost"] is None else f"{trial['cost']['share_8_bit']:.1%}"
    share = megabytes(trial["weight_bytes"]) if sized and share else share
    time = [] if not timed else ["" if trial["ms"] is None else f"{trial['ms']:.4g}"]
    cells = (trial["text"], trial["why"], figure, trial["samples"], share, trial["refused"], f"{trial['units']:.2f}")
    return (*cells, *time, trial["lost"] or taken)


def _mebibytes(trial: Mapping[str, Any]) -> float:
    return float(trial["weight_bytes"]) / 2**20


def _plot(sought: Mapping[str, Any], timed: bool, sized: bool) -> list[str]:
    """Margin to the bound over what it costs: milliseconds on the chip, else the share of multiply-accumulates outside 8 bit, or
    the weights where that is the same."""
    shown = [trial for trial in sought["trials"] if trial["samples"]]
    if not shown:
        return []
    finite = [float(trial["margin"]) for trial in shown if trial["margin"] is not None]
    top = max([0.0, *finite])

    def cost(trial: Mapping[str, Any]) -> float:
        if timed:
            return float(trial["ms"])
        return _mebibytes(trial) if sized else 100 * (1 - trial["cost"]["share_8_bit"])

    def margin(trial: Mapping[str, Any]) -> float:
        return top if trial["margin"] is None else float(trial["margin"])

    costs, margins = [cost(trial) for trial in shown], [0.0, *finite]
    across = html.Axis.across(costs, 0.05 * (max(costs) - min(costs)) + (0.01 * max(costs) if sized else 0.5))
    up = html.Axis.up(margins, 0.05 * (max(margins) - min(margins)) + 1e-6)
    parts = html.frame(
        "ms on the chip" if timed else "weights, MiB" if sized else "multiply-accumulates outside 8 bit, %",
        f"{sought['metric']}, better than the bound by",
        *([(axis(at), f"{at:.3g}") for at in dict.fromkeys((min(v), max(v)))] for axis, v in ((across, costs), (up, margins))),
    )  # fmt: skip
    zero = up(0.0)
    parts.append(f'<line class="bound" x1="{html.LEFT}" y1="{zero:.1f}" x2="{html.WIDTH - 20}" y2="{zero:.1f}"/>')
    chosen = sought["trials"][sought["chosen"]]
    for trial in sorted(shown, key=lambda trial: trial is chosen):
        css = "best" if trial is chosen else "front" if trial["verdict"] == "met" else "fits"
        told = f"{trial['text']}: {'; '.join(filter(None, [trial['why'], trial['lost']]))}"
        parts.append(html.dot(across(cost(trial)), up(margin(trial)), css, told))
    return [*parts, "</svg>"]
