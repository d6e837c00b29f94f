"""Other builds of the NPU's library: under sanitizers, and for Windows. What is missing is skipped and named."""

from __future__ import annotations

import shutil
import sys

from tests.extra.part import Missing, pytest_summary


def run(whole: bool) -> str:
    """Build them, and run the tests of the provider with the one under sanitizers."""
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        raise Missing("cmake and g++")
    absent = "" if shutil.which("x86_64-w64-mingw32-g++") else "; x86_64-w64-mingw32-g++ is not installed"
    return pytest_summary(sys.executable, "tests/npu", "-m", "extra", whole=whole) + absent
