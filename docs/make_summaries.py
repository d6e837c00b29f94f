"""Writes qdqtool/cli/tables/summaries.json from the docstrings and files themselves: `python docs/make_summaries.py`."""

from __future__ import annotations

import json
from pathlib import Path

from qdqtool.cli.cmd_list import LISTINGS
from qdqtool.cli.main import COMMANDS, in_one_line
from qdqtool.cli.tables import summaries


def table() -> str:
    """The whole file."""
    found = {
        kind: {name: listing.summary(entry) for name, entry in listing.entries().items() if summaries.is_own(entry)}
        for kind, listing in LISTINGS.items()
    }
    found["commands"] = {
        name: in_one_line(entry.load())
        for name, entry in COMMANDS.entries().items()
        if summaries.is_own(entry) and not entry.first_doc_line()
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(summaries.FILE).write_text(table(), encoding="utf-8")
