"""The site of docs/, built in an environment of its own: a link that leads nowhere, or a page that the way leaves out, fails."""

from __future__ import annotations

import tempfile
import time
import tomllib
from pathlib import Path

from tests.extra.part import ROOT, Failed, call, environment


def run() -> str:
    """Build it and count its pages."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        packages: list[str] = tomllib.load(file)["project"]["optional-dependencies"]["docs"]
    python, start = environment("docs", packages), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        call(
            [python, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
            env={"NO_MKDOCS_2_WARNING": "1"},
        )
        pages = list(Path(folder).rglob("index.html"))
        if not (Path(folder) / "search" / "search_index.json").is_file() or len(pages) < 40:
            raise Failed(f"{len(pages)} pages, or no index to search")
    return f"{len(pages)} pages in {time.perf_counter() - start:.1f} s"
