"""What the README, docs/from_torch.md and its notebook show of torch, executed in an environment that has it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.cases import page as runner
from tests.extra.part import ROOT, call, environment

#: The version that the page names; without libraries for GPUs.
TORCH = "torch==2.13.0+cpu"
WHEELS = "https://download.pytorch.org/whl/cpu"
MARK = "python needs=torch"


def run() -> str:
    """Execute the blocks of each page that need torch, and the cells of the notebook, each in an empty folder."""
    python = environment("torch", ["--extra-index-url", WHEELS, TORCH, "-e", "."])
    pages = {
        "README.md": _blocks(ROOT / "README.md"),
        "from_torch.md": _blocks(ROOT / "docs" / "from_torch.md"),
        "from_torch.ipynb": _cells(ROOT / "docs" / "from_torch.ipynb"),
    }
    for code in pages.values():
        with tempfile.TemporaryDirectory() as folder:
            call([python, "-c", code], cwd=Path(folder))
    return f"{', '.join(pages)} with {TORCH}"


def _blocks(page: Path) -> str:
    found = runner.BLOCK.findall(page.read_text(encoding="utf-8"))
    return "\n".join(body for kind, options, body in found if f"{kind}{options}" == MARK)


def _cells(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
