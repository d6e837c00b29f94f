"""A bar chart of sensitivities as SVG, drawn by itself: no library, no script, light and dark."""

from __future__ import annotations

from html import escape

from qdqtool.search.measuring import figure_json
from qdqtool.search.sensitivity import Row, Sensitivity

#: Rows that are drawn, and pixels: height of a row, left edge of the bars, their length, right margin.
MOST, ROW, LEFT, LENGTH, RIGHT = 60, 22, 300, 420, 90
#: Letters of a name that fit left of the bars.
LETTERS = 40

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .small { fill: #57606a }
.only { fill: #cf222e } .without { fill: #0969da }
line { stroke: #8c959f; stroke-dasharray: 3 3 } rect.page { fill: #ffffff }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } rect.page { fill: #0d1117 }
  .only { fill: #ff7b72 } .without { fill: #58a6ff } }
"""


def sensitivity_svg(found: Sensitivity) -> str:
    """The worst rows of ``found``: one bar when only the node is quantized, one when only it is left float."""
    rows = found.rows[:MOST]
    figures = [f for row in rows for f in _figures(row) if f is not None]
    figures += [f for f in (found.floating, found.quantized) if f is not None]
    low, high = min([0.0, *figures]), max([*figures, 1e-9])
    height = 64 + ROW * len(rows) + 24
    width = LEFT + LENGTH + RIGHT
    unit = f" ({found.metric.unit})" if found.metric.unit else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text x="12" y="22">{escape(found.metric.name)}{unit} by {found.by}, preset {escape(found.preset)}</text>',
        '<text x="12" y="42" class="small"><tspan class="only">■</tspan> only it is quantized  '
        '<tspan class="without">■</tspan> only it is left float</text>',
    ]
    for number, row in enumerate(rows):
        parts += _row(row, 64 + ROW * number, low, high)
    if found.quantized is not None:
        at = LEFT + _length(found.quantized, low, high)
        bottom = 64 + ROW * len(rows)
        parts.append(f'<line x1="{at:.1f}" y1="56" x2="{at:.1f}" y2="{bottom}"/>')
        shown = figure_json(found.quantized)
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" class="small" text-anchor="middle">all: {shown:.4g}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _row(row: Row, top: int, low: float, high: float) -> list[str]:
    name = row.group.name if len(row.group.name) <= LETTERS else f"…{row.group.name[1 - LETTERS :]}"
    parts = [f'<text x="{LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(name)}</text>']
    asked = [("only", row.only), ("without", row.without)]
    bars = [(css, found) for css, found in asked if found is not None]
    thick = (ROW - 6) // max(len(bars), 1)
    words = []
    for number, (css, found) in enumerate(bars):
        if found.reason:
            words.append("–")
            continue
        length = LENGTH if found.figure is None else _length(found.figure, low, high)
        words.append("exact" if found.figure is None else f"{found.figure:.4g}")
        y = top + 1 + thick * number
        parts.append(f'<rect class="{css}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{thick}"/>')
    parts.append(f'<text x="{LEFT + LENGTH + 6}" y="{top + 13}" class="small">{" / ".join(words)}</text>')
    return parts


def _figures(row: Row) -> list[float | None]:
    return [found.figure for found in (row.only, row.without) if found is not None and not found.reason]


def _length(figure: float, low: float, high: float) -> float:
    return LENGTH * (figure - low) / (high - low)
