"""Writes qdqtool/record/schema.json and the tables of docs/reference/record.md: `python docs/make_record.py`."""

from __future__ import annotations

import json
from pathlib import Path

from qdqtool.record import schema
from qdqtool.record.schema import PARTS, described, record_schema

PAGE = Path(__file__).parent / "reference" / "record.md"
SCHEMA = Path(schema.__file__).with_name("schema.json")
START, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def tables() -> str:
    """A table of fields for each part, in Markdown."""
    found = []
    for part in PARTS:
        rows = "".join(f"| `{name}` | {text} |\n" for name, text in described(part).items())
        found.append(
            f"## `{part.__name__}`\n\n{(part.__doc__ or '').splitlines()[0]}\n\n| field | what |\n|---|---|\n{rows}"
        )
    return "\n".join(found)


def text() -> str:
    """The schema as it is stored."""
    return json.dumps(record_schema(), indent=1, ensure_ascii=False) + "\n"


def page(before: str) -> str:
    """The page with its tables written anew."""
    head, _, rest = before.partition(START)
    return f"{head}{START}{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    SCHEMA.write_text(text(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
