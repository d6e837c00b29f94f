"""The help of every command, as a person reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.cli.help import COMMON, OWN, PAGES
from tests.golden_help.help_texts import FOLDER, help_texts

TEXTS = help_texts()


def test_every_command_has_a_golden() -> None:
    assert sorted(TEXTS) == sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_help(name: str) -> None:
    assert TEXTS[name] == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_every_command_ends_with_a_page_that_there_is() -> None:
    docs = Path(__file__).parents[2] / "docs"
    for name, text in TEXTS.items():
        last = text.rstrip().splitlines()[-1]
        assert name == "qdqtool" or (docs / last.removeprefix("More: docs/")).is_file(), (name, last)
    assert {name.partition("-")[0] for name in TEXTS} >= {name.partition("-")[0] for name in PAGES}, (
        "no page is left over"
    )


def test_many_options_stand_under_headings() -> None:
    """Those of quantize each under one of its subject; short lists stay whole."""
    headings = [line[:-1] for line in TEXTS["quantize"].splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert OWN not in headings
    assert headings.index(COMMON) == len(headings) - 2
    assert headings[-1] == "Examples"
    assert len(headings) == len(set(headings)) >= 7
    assert f"{OWN}:" in TEXTS["diff"]
    assert COMMON not in TEXTS["diff"]
