"""README and the paths of four users, on a fresh installation: ``python -m tests.journeys [NAME …]``.

The repository is cloned as it is committed. The wheel that pip builds of the clone, as README says, is all that an environment of its own
gets, with the extras. Then the pages that a user reads are run to the letter, each in a folder of its own beside the clone's
`sample_models`. Exit 1 where one shows something else, or where what the wheel shows is not there: modules outside of the clone, pages
named by ``--help``, extras named by messages, schemas, targets."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.extra.part import ROOT, Failed, call

#: The extras that README installs.
EXTRAS = "[images,llm]"
#: User → pages, from the first to read.
PATHS = {
    "readme": ("README.md",),
    "torch": ("docs/from_torch.md", "docs/deploying.md", "docs/on_the_device.md"),
    "foreign": ("docs/editing_qdq.md", "docs/explaining.md", "docs/zero_on_the_npu.md"),
    "author": ("docs/writing_a_pass.md", "docs/describe_your_npu.md"),
    "ci": ("docs/ci.md", "docs/comparing.md"),
}


def installation(folder: Path) -> tuple[Path, Path]:
    """A clone of the repository in ``folder``, and the interpreter that it is installed for."""
    clone = folder / "clone"
    call(["git", "clone", "--quiet", str(ROOT), str(clone)])
    call([sys.executable, "-m", "venv", str(folder / "venv")])
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    call([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder / "wheel"), str(clone)])
    (wheel,) = (folder / "wheel").glob("qdqtool-*.whl")
    call([*pip, "install", f"{wheel}{EXTRAS}"])
    return clone, python


#: Refuses modules of a clone, and messages that name an extra which the wheel does not have.
_OUTSIDE = """
import importlib.metadata, pathlib, re, sys, qdq_passes, qdqtool
known = set(importlib.metadata.metadata("qdqtool").get_all("Provides-Extra"))
for package in (qdqtool, qdq_passes):
    folder = pathlib.Path(package.__file__).parent
    assert folder.is_relative_to(sys.prefix), folder
    for file in folder.rglob("*.py"):
        for names in re.findall(r"qdqtool\\[([a-z, ]+)\\]", file.read_text(encoding="utf-8")):
            assert known >= set(names.replace(" ", "").split(",")), (file, names, known)
"""


def walk(user: str, clone: Path, python: Path, folder: Path) -> str:
    """Run the pages of ``user``; how many blocks they have.

    Raises:
        Failed: one shows something else.
    """
    from tests.cases.page import BLOCK

    count = 0
    for page in PATHS[user]:
        where = folder / user / Path(page).stem
        where.mkdir(parents=True)
        (where / "sample_models").symlink_to(clone / "sample_models")
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        call(
            [str(python), str(clone / "tests" / "cases" / "page.py"), str(clone / page)], cwd=where, env={"PATH": path}
        )
        count += len(BLOCK.findall((clone / page).read_text(encoding="utf-8")))
    return f"{len(PATHS[user])} pages, {count} blocks"


def check_installation(clone: Path, python: Path) -> str:
    """What the installation shows without the clone: pages of ``--help``, schemas, targets with their devices."""
    tool = str(python.parent / "qdqtool")
    pages = set()
    for command in ("", "quantize", "deploy", "qdq", "analyze"):
        shown = call([tool, *command.split(), "--help"], cwd=python.parent)
        found = re.search(r"^More: https://qdqtool.github.io/qdqtool/([\w/]*)$", shown, re.M)
        if found is None:
            raise Failed(f"qdqtool {command} --help names no page of the site")
        pages.add(found[1] or "index")
    missing = [
        page for page in pages if (name := page.rsplit("/", 1)[-1]) and not list((clone / "docs").rglob(f"{name}.md"))
    ]
    if missing:
        raise Failed(f"--help names pages that there are not: {', '.join(missing)}")
    call([str(python), "-c", _OUTSIDE], cwd=python.parent)
    code = "import qdqtool.schemas as s; print(len([s.schema(name) for name in s.names()]))"
    schemas = call([str(python), "-c", code], cwd=python.parent).strip()
    return f"{len(pages)} pages named by --help, {schemas} schemas"


def run(names: list[str]) -> str:
    """Walk the paths of ``names``, all by default; what was done."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        clone, python = installation(folder)
        said = [f"installation: {check_installation(clone, python)}"]
        for user in names or PATHS:
            said.append(f"{user}: {walk(user, clone, python, folder)}")
            print(said[-1], flush=True)
    return "; ".join(said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.journeys")
    parser.add_argument("names", nargs="*", choices=[[], *PATHS], help="users; all by default")
    try:
        print(run(parser.parse_args().names))
    except (Failed, subprocess.SubprocessError) as error:
        print(f"FAILED {error}")
        sys.exit(1)
