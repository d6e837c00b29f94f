"""Writes the table of docs/reference/exports.md, what targets take of exports: `python docs/make_export_table.py [NAME …]`.

It quantizes each export for each target, some 20 minutes for all; with names, their rows alone."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from qdq_passes.errors import QdqError

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.exports.exports import names
from tests.exports.placing import TARGETS, placed

PAGE = Path(__file__).parent / "reference" / "exports.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"


def stored() -> dict[tuple[str, str], str]:
    """(export, target) → its cell on the page as it stands."""
    text = PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    rows = [[cell.strip(" `") for cell in line.strip("|\n ").split("|")] for line in text.splitlines()]
    targets = rows[0][1:] if rows else []
    return {(row[0], target): cell for row in rows[2:] for target, cell in zip(targets, row[1:], strict=True)}


def cell(name: str, target: str) -> str:
    """What the target takes of the export, or that it is refused."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return placed(name, target, Path(folder)).cell
    except QdqError as error:
        print(f"{name} on {target}: {error.message}", file=sys.stderr)
        return "refused"


def table(cells: dict[tuple[str, str], str]) -> str:
    """Exports by rows, targets by columns, in Markdown."""
    head = ["export", *(f"`{target}`" for target in TARGETS)]
    rows = [[f"`{name}`", *(cells[name, target] for target in TARGETS)] for name in names()]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def main(wanted: list[str]) -> None:
    """Write the page anew."""
    cells = stored()
    for name in wanted or names():
        for target in TARGETS:
            cells[name, target] = cell(name, target)
            print(f"{name:28} {target:14} {cells[name, target]}", flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(f"{before}{START}{table(cells)}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
