"""Every command, Python block and TOML file of the README and the docs pages is executed, each page in a folder and an interpreter
of its own."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.cli.tables import summaries
from tests.cases import page as runner

ROOT = Path(__file__).parents[3]
PRESETS = ROOT / "qdqtool" / "presets"
REFERENCE = ROOT / "docs" / "reference"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXECUTED = [page for page in PAGES if runner.BLOCK.search(page.read_text(encoding="utf-8"))]


def test_pages_with_examples_exist() -> None:
    assert {page.name for page in EXECUTED} >= {"README.md", "editing_qdq.md", "writing_a_pass.md"}


@pytest.mark.product(days=18)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.always if page.name == "README.md" else ()) for page in EXECUTED],
    ids=lambda page: page.name,
)
def test_examples(page: Path, tmp_path: Path) -> None:
    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    done = subprocess.run(
        [sys.executable, runner.__file__, str(page)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_catalogue_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "import runpy; print(runpy.run_path('docs/make_catalogue.py')['catalogue'](), end='')"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    stored = (REFERENCE / "catalogue.md").read_text(encoding="utf-8")
    assert made.stdout == stored, "run python docs/make_catalogue.py"


def test_the_summaries_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_summaries.py"))["table"]()
    assert made == Path(summaries.FILE).read_text(encoding="utf-8"), "run python docs/make_summaries.py"


def test_the_options_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_options.py"))["page"]()
    assert made == (REFERENCE / "options.md").read_text(encoding="utf-8"), "run python docs/make_options.py"


def test_the_table_of_targets_is_up_to_date() -> None:
    code = "import runpy; print(runpy.run_path('docs/make_target_table.py')['table'](), end='')"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    stored = (REFERENCE / "targets.md").read_text(encoding="utf-8")
    assert f"<!-- table -->\n{made.stdout}<!-- end of table -->\n" in stored, "run python docs/make_target_table.py"


def test_every_preset_is_measured() -> None:
    """The table of presets takes too long to be made here (`docs/make_preset_table.py`); none may be missing."""
    rows = set(re.findall(r"^\| `([^`]+)` \|", (REFERENCE / "presets.md").read_text(encoding="utf-8"), re.M))
    assert rows == {path.stem for path in PRESETS.glob("*.toml") if not path.stem.endswith("-qat")}
