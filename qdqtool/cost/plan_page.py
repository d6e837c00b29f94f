"""A plan as a document: JSON, the rows of its table, one HTML file without network: plot of the trade-off, table, commands."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cost.planning import Candidate, Question, tokens_per_second
from qdqtool.cost.predicting import Span
from qdqtool.io.files import html
from qdqtool.record.record import NOTHING, Record


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """What was planned.

    Args:
        asked: the question.
        candidates: every option.
        rows: those that are shown.
        best: within the limits; None where there is none.
        commands: that make it; they run as they stand where ``is_runnable``.
        is_runnable: whether the commands name a model that is there.
        notes: what is to be said of the figures and the commands.
        record: of the model's nodes, where records of it were given.
    """

    asked: Question
    candidates: tuple[Candidate, ...]
    rows: tuple[Candidate, ...]
    best: Candidate | None
    commands: tuple[str, ...] = ()
    is_runnable: bool = False
    notes: tuple[str, ...] = ()
    record: Record = NOTHING

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: milliseconds, bytes, tokens, joules; intervals of 80 %."""
        asked = self.asked
        return {
            "model": asked.shape.name, "shape": {k: v for k, v in vars(asked.shape).items() if k != "name"},
            "chip": asked.chip.name, "stack": asked.profile.stack, "version": asked.profile.version,
            "date": asked.profile.date, "prompts": sorted(asked.prompts), "new": asked.new, "limits": vars(asked.limits),
            "options": [one.to_json() for one in self.rows],
            "best": None if self.best is None else self.best.to_json(),
            "commands": list(self.commands), "runnable": self.is_runnable, "notes": list(self.notes),
            **self.record.as_key(),
        }  # fmt: skip

    @property
    def columns(self) -> tuple[str, ...]:
        """Titles of the table."""
        prompts = [f"first token of {n}, s" for n in sorted(self.asked.prompts)]
        head = ("", "precision", "placement", "chunks", "context", "parts", "memory")
        return (*head, *prompts, "tokens/s", "at the end", "energy", "binds")

    def row(self, one: Candidate) -> tuple[object, ...]:
        """The cells of an option."""
        mark = "best" if one == self.best else "front" if one.front else "" if one.fits else "no"
        rates = [tokens_per_second(span) for span in (one.start, one.end)]
        return (
            mark, one.precision, one.placement, ",".join(map(str, one.chunks)) or "-", one.context, one.memory.sessions or "-",
            f"{one.memory.total / 1e9:.3g} GB", *(seconds(span) for span in one.first),
            *(f"{r['rate']:.3g} ({r['low']:.3g}-{r['high']:.3g})" for r in rates),
            "no data" if one.joules is None else f"{one.joules.ms:.3g} J", one.binds,
        )  # fmt: skip


def seconds(span: Span) -> str:
    """``0.21 (0.15-0.3)`` s."""
    return "{:.3g} ({:.3g}-{:.3g})".format(*(ms / 1000 for ms in (span.ms, span.low, span.high)))


def plan_page(report: PlanReport) -> str:
    """One HTML document: nothing is loaded, nothing runs."""
    asked = report.asked
    title = f"{asked.shape.name} on {asked.chip.name} ({asked.profile.stack})"
    rows = html.table(report.columns, map(report.row, report.rows))
    notes = [f"<p>{escape(note)}</p>" for note in report.notes]
    return html.document(title, [*_plot(report), *rows, *html.commands(report.commands), *notes])


def _plot(report: PlanReport) -> list[str]:
    """Tokens a second at the end of the context over the expected time to the first token, both logarithmic."""
    shown = report.candidates
    if not shown:
        return []
    across = html.Axis.across([math.log10(one.expected.ms / 1000) for one in shown], 0.05)
    up = html.Axis.up([math.log10(1000 / one.end.ms) for one in shown], 0.05)

    def place(one: Candidate) -> tuple[float, float]:
        return across(math.log10(one.expected.ms / 1000)), up(math.log10(1000 / one.end.ms))

    parts = html.frame(
        "seconds to the first token, mean of the prompts", "tokens a second at the end of the context",
        *([(axis(at), f"{10**at:.3g}") for at in (axis.low, axis.high)] for axis in (across, up)),
    )  # fmt: skip
    for precision in dict.fromkeys(one.precision for one in shown if one.front):
        places = sorted(place(one) for one in shown if one.front and one.precision == precision)
        parts.append(f'<path d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>')
    for one in sorted(shown, key=lambda one: (one == report.best, one.front)):
        css = "best" if one == report.best else "front" if one.front else "fits" if one.fits else "misfit"
        parts.append(html.dot(*place(one), css, ", ".join(map(str, report.row(one)[1:]))))
    return [*parts, "</svg>"]
