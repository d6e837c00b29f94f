"""The benchmarks, all of them or the quick ones; a broken bound fails. They print as they go."""

from __future__ import annotations

import subprocess
import sys

from tests.extra.part import ROOT, Failed


def run() -> str:
    """Run all of them."""
    return _run()


def quick() -> str:
    """Run start-up and quantization alone, in fewer rounds."""
    return _run("--quick")


def _run(*options: str) -> str:
    command = [sys.executable, "-m", "tests.bench", *options]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        raise Failed(f"exit {code}: {' '.join(command)}; see above")
    return "all bounds hold"
