"""Every command, Python block and TOML file of the README and the docs pages is executed, each page in a folder of its own."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRESETS = ROOT / "qdqtool" / "presets"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(console|python|toml)([^\n]*)\n(.*?)^```$", re.M | re.S)
EXECUTED = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]


def test_pages_with_examples_exist() -> None:
    assert {page.name for page in EXECUTED} >= {"README.md", "editing_qdq.md", "writing_a_pass.md"}


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.name)
def test_examples(page: Path, tmp_path: Path) -> None:
    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    for kind, options, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        target = re.search(r"file=(\S+)", options)
        if target:
            (tmp_path / target[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / target[1]).write_text(body, encoding="utf-8")
        elif kind == "python":
            done = subprocess.run(
                [sys.executable, "-c", body], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{page.name}:\n{body}\n{done.stderr}"
        else:
            _console(page, body, tmp_path)


def _console(page: Path, body: str, folder: Path) -> None:
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, wanted = part.partition("\n")
        words = shlex.split(command)
        finds = words[:2] == ["qdqtool", "diff"] and "no differences" not in wanted
        if words[0] == "qdqtool":
            words[:1] = [sys.executable, "-m", "qdqtool.cli.main"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        shown = done.stdout + "".join(line for line in done.stderr.splitlines(True) if line.startswith("error:"))
        same = doctest.OutputChecker().check_output(wanted, shown, doctest.ELLIPSIS)
        assert same, f"{page.name}: $ {command}\nwanted:\n{wanted}\ngot:\n{shown}{done.stderr}"
        assert done.returncode == (2 if wanted.startswith("error:") else 1 if finds else 0), done.stderr


def test_catalogue_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "import runpy; print(runpy.run_path('docs/make_catalogue.py')['catalogue'](), end='')"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    stored = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    assert made.stdout == stored, "run python docs/make_catalogue.py"


def test_the_table_of_targets_is_up_to_date() -> None:
    code = "import runpy; print(runpy.run_path('docs/make_target_table.py')['table'](), end='')"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    stored = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
    assert f"<!-- table -->\n{made.stdout}<!-- end of table -->\n" in stored, "run python docs/make_target_table.py"


def test_every_preset_is_measured() -> None:
    """The table of presets takes too long to be made here (`docs/make_preset_table.py`); none may be missing."""
    rows = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "presets.md").read_text(encoding="utf-8"), re.M))
    assert rows == {path.stem for path in PRESETS.glob("*.toml") if not path.stem.endswith("-qat")}
