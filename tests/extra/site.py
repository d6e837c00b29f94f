"""The site of docs/, built in an environment of its own: a link that leads nowhere, or a page that the way leaves out, fails."""

from __future__ import annotations

import time
import tomllib

from tests.extra.part import ROOT, Failed, call, environment

#: Where `mkdocs.yml` has it built.
SITE = ROOT / "build" / "site"


def run() -> str:
    """Build it and count its pages."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        packages: list[str] = tomllib.load(file)["project"]["optional-dependencies"]["docs"]
    python, start = environment("docs", packages), time.perf_counter()
    call([python, "-m", "mkdocs", "build", "--strict", "--quiet"], env={"NO_MKDOCS_2_WARNING": "1"})
    pages = list(SITE.rglob("index.html"))
    if not (SITE / "search" / "search_index.json").is_file() or len(pages) < len(list((ROOT / "docs").rglob("*.md"))):
        raise Failed(f"{len(pages)} pages, or no index to search")
    return f"{len(pages)} pages in {time.perf_counter() - start:.1f} s, in {SITE.relative_to(ROOT)}"
