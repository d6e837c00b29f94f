"""A plan as a document: JSON, the rows of its table, one HTML file without network: plot of the trade-off, table, commands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from qdqtool.cost.planning import Candidate, Question, tokens_per_second
from qdqtool.cost.predicting import Span
from qdqtool.record.record import NOTHING, Record

#: Pixels of the plot: width, height, margins.
WIDTH, HEIGHT, LEFT, BELOW = 720, 360, 70, 50

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 1100px; color: #24292f; background: #ffffff }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: 3px 10px; text-align: left; border-bottom: 1px solid #d0d7de }
pre { padding: 1em; background: #f6f8fa; overflow-x: auto } text { font: 12px system-ui, sans-serif; fill: #57606a }
.front { fill: #0969da } .best { fill: #cf222e } .fits { fill: #afb8c1 } .misfit { fill: none; stroke: #afb8c1 }
path { fill: none; stroke: #0969da } line { stroke: #8c959f }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117 } pre { background: #161b22 }
  td, th { border-color: #30363d } text { fill: #9198a1 } .front { fill: #58a6ff } .best { fill: #ff7b72 } }
"""


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
    head = "".join(f"<th>{escape(name)}</th>" for name in report.columns)
    rows = ["".join(f"<td>{escape(str(cell))}</td>" for cell in report.row(one)) for one in report.rows]
    lines = [
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *_plot(report),
        f"<table><tr>{head}</tr>",
        *(f"<tr>{row}</tr>" for row in rows),
        "</table>",
        *(["<pre>", *map(escape, report.commands), "</pre>"] if report.commands else []),
        *(f"<p>{escape(note)}</p>" for note in report.notes),
        "</body></html>\n",
    ]
    return "\n".join(lines)


def _plot(report: PlanReport) -> list[str]:
    """Tokens a second at the end of the context over the expected time to the first token, both logarithmic."""
    shown = report.candidates
    if not shown:
        return []
    across = _Axis.of([math.log10(one.expected.ms / 1000) for one in shown], LEFT, WIDTH - 20)
    up = _Axis.of([math.log10(1000 / one.end.ms) for one in shown], HEIGHT - BELOW, 20)

    def place(one: Candidate) -> tuple[float, float]:
        return across(math.log10(one.expected.ms / 1000)), up(math.log10(1000 / one.end.ms))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f'<line x1="{LEFT}" y1="{HEIGHT - BELOW}" x2="{WIDTH - 20}" y2="{HEIGHT - BELOW}"/>',
        f'<line x1="{LEFT}" y1="20" x2="{LEFT}" y2="{HEIGHT - BELOW}"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}">seconds to the first token, mean of the prompts</text>',
        f'<text x="{LEFT}" y="12">tokens a second at the end of the context</text>',
    ]
    for at in (across.low, across.high):
        parts.append(f'<text x="{across(at):.1f}" y="{HEIGHT - BELOW + 16}" text-anchor="middle">{10**at:.3g}</text>')
    for at in (up.low, up.high):
        parts.append(f'<text x="{LEFT - 6}" y="{up(at) + 4:.1f}" text-anchor="end">{10**at:.3g}</text>')
    for precision in dict.fromkeys(one.precision for one in shown if one.front):
        places = sorted(place(one) for one in shown if one.front and one.precision == precision)
        parts.append(f'<path d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>')
    for one in sorted(shown, key=lambda one: (one == report.best, one.front)):
        css = "best" if one == report.best else "front" if one.front else "fits" if one.fits else "misfit"
        (x, y), told = place(one), ", ".join(map(str, report.row(one)[1:]))
        parts.append(f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(told)}</title></circle>')
    return [*parts, "</svg>"]


@dataclass(frozen=True)
class _Axis:
    """From numbers to pixels."""

    low: float
    high: float
    first: float
    last: float

    @classmethod
    def of(cls, values: Sequence[float], first: float, last: float) -> _Axis:
        """That holds all values, with some room."""
        return cls(min(values) - 0.05, max(values) + 0.05, first, last)

    def __call__(self, value: float) -> float:
        return self.first + (self.last - self.first) * (value - self.low) / (self.high - self.low)
