"""Documents of one HTML file without a script: title, plots, tables, commands; light and dark. Nothing is loaded or run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from qdq_passes._lazy_dataclass import dataclass

#: Pixels of a plot: width, height, margins.
WIDTH, HEIGHT, LEFT, BELOW = 720, 360, 70, 50

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 1100px; color: #24292f; background: #ffffff }
table { border-collapse: collapse; font-size: 13px } tr.best td { font-weight: 600 }
td, th { padding: 3px 10px; text-align: left; border-bottom: 1px solid #d0d7de }
pre { padding: 1em; background: #f6f8fa; overflow-x: auto } text { font: 12px system-ui, sans-serif; fill: #57606a }
.front { fill: #0969da } .best { fill: #cf222e } .fits { fill: #afb8c1 } .misfit { fill: none; stroke: #afb8c1 }
path { fill: none; stroke: #0969da } line { stroke: #8c959f } line.bound { stroke: #cf222e; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117 } pre { background: #161b22 }
  td, th { border-color: #30363d } text { fill: #9198a1 } .front { fill: #58a6ff } .best { fill: #ff7b72 }
  line.bound { stroke: #ff7b72 } }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """The file: ``parts`` are HTML."""
    head = f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    style = f"<style>{_STYLE}</style></head><body>"
    return "\n".join([head, style, f"<h1>{escape(title)}</h1>", *parts, "</body></html>\n"])


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, best: int = -1) -> list[str]:
    """A table of texts; the row at ``best`` stands out."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = [f"<table><tr>{head}</tr>"]
    for at, row in enumerate(rows):
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in row)
        lines.append(f'<tr class="best">{cells}</tr>' if at == best else f"<tr>{cells}</tr>")
    return [*lines, "</table>"]


def commands(lines: Sequence[str]) -> list[str]:
    """Commands to copy; nothing of none."""
    return ["<pre>", *map(escape, lines), "</pre>"] if lines else []


@dataclass(frozen=True)
class Axis:
    """From numbers to pixels."""

    low: float
    high: float
    first: float
    last: float

    @classmethod
    def across(cls, values: Sequence[float], room: float) -> Axis:
        """From left to right, with ``room`` beside all values."""
        return cls(min(values) - room, max(values) + room, LEFT, WIDTH - 20)

    @classmethod
    def up(cls, values: Sequence[float], room: float) -> Axis:
        """From below, with ``room`` beside all values."""
        return cls(min(values) - room, max(values) + room, HEIGHT - BELOW, 20)

    def __call__(self, value: float) -> float:
        return self.first + (self.last - self.first) * (value - self.low) / (self.high - self.low)


def frame(across: str, up: str, x: Iterable[tuple[float, str]], y: Iterable[tuple[float, str]]) -> list[str]:
    """The axes of a plot with their titles and (pixel, text) of their ticks; an SVG to be ended."""
    bottom = HEIGHT - BELOW
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - 20}" y2="{bottom}"/>',
        f'<line x1="{LEFT}" y1="20" x2="{LEFT}" y2="{bottom}"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}">{escape(across)}</text>',
        f'<text x="{LEFT}" y="12">{escape(up)}</text>',
        *(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(text)}</text>' for at, text in x),
        *(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>' for at, text in y),
    ]


def dot(x: float, y: float, css: str, told: str) -> str:
    """A point of a plot that says ``told`` where one points at it."""
    return f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(told)}</title></circle>'
