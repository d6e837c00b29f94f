"""The help of every command, as a person reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.cli.help import COMMON, OWN, PAGES
from tests.architecture.places import ROOT
from tests.cases.cli_helpers import environment
from tests.golden_help.help_texts import FOLDER

GOLDENS = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The texts of a fresh process: click keeps the help option of the first context that asks a command for its parameters."""
    code = "import json; from tests.golden_help.help_texts import help_texts; print(json.dumps(help_texts()))"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_command_has_a_golden(texts: dict[str, str]) -> None:
    assert sorted(texts) == GOLDENS


@pytest.mark.parametrize("name", GOLDENS)
def test_help(name: str, texts: dict[str, str]) -> None:
    assert texts[name] == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_every_command_ends_with_a_page_that_there_is(texts: dict[str, str]) -> None:
    docs = Path(__file__).parents[2] / "docs"
    for name, text in texts.items():
        last = text.rstrip().splitlines()[-1]
        assert name == "qdqtool" or (docs / last.removeprefix("More: docs/")).is_file(), (name, last)
    assert {name.partition("-")[0] for name in texts} >= {name.partition("-")[0] for name in PAGES}, (
        "no page is left over"
    )


def test_many_options_stand_under_headings(texts: dict[str, str]) -> None:
    """Those of quantize each under one of its subject; short lists stay whole."""
    headings = [line[:-1] for line in texts["quantize"].splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert OWN not in headings
    assert headings.index(COMMON) == len(headings) - 2
    assert headings[-1] == "Examples"
    assert len(headings) == len(set(headings)) >= 7
    assert f"{OWN}:" in texts["diff"]
    assert COMMON not in texts["diff"]
