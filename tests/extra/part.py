"""What the parts share: running commands, and virtual environments of their own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Missing(Exception):
    """A thing that this part needs is not on the machine; the message names it."""


class Failed(Exception):
    """A command of the part failed; the message is the tail of its output."""


def call(command: Sequence[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run ``command`` and return what it printed.

    Raises:
        Failed: it exited with something else than 0.
    """
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise Failed(f"exit {done.returncode}: {' '.join(command)}\n{tail}")
    return done.stdout


def environment(name: str, packages: Sequence[str], python: str = sys.executable) -> str:
    """The interpreter of a virtual environment ``.venv-<name>`` that holds ``packages``, made when it is not there, or when the C++
    sources or the requirements of what it holds have changed.

    Raises:
        Missing: a package cannot be installed for this interpreter.
    """
    folder = ROOT / f".venv-{name}"
    stamp, wanted = folder / "packages.txt", "\n".join([*packages, *([_sources()] if "-e" in packages else [])])
    interpreter = str(folder / "bin" / "python")
    if stamp.is_file() and stamp.read_text() == wanted:
        return interpreter
    call([python, "-m", "venv", "--clear", str(folder)])
    if not packages:
        return interpreter
    try:
        call([interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    except Failed as error:
        last = str(error).splitlines()[-1]
        raise Missing(f"{' '.join(packages)} for {python} ({last})") from error
    stamp.write_text(wanted)
    return interpreter


def _sources() -> str:
    """A digest of what is installed: the sources of the NPU's library, and what the tests need."""
    files = sorted(file for file in (ROOT / "qdqtool" / "npu" / "ep").rglob("*") if file.is_file())
    return hashlib.sha256(b"".join(file.read_bytes() for file in [*files, ROOT / "pyproject.toml"])).hexdigest()


#: Tests that another onnxruntime tells nothing new of: verdicts, the library's kernels by themselves, how much accuracy quantizing
#: costs, and pages, whose commands have tests of their own.
ONCE = (
    "tests/npu/test_kernels_others.py", "tests/npu/test_kernels_products.py", "tests/npu/equality/test_operator_names.py",
    "tests/unit/docs/test_docs.py", "tests/unit/search/test_mixed_precision.py", "tests/unit/search/test_precision_goals.py",
    "tests/unit/search/test_sensitivity.py", "tests/unit/targets/test_suggestions.py", "tests/unit/quantization/test_xint8_quality.py",
)  # fmt: skip


#: Where tests of models lie.
FOLDERS = ("tests/unit", "tests/golden", "tests/npu")


#: Options of pytest for all cores.
ALL_CORES = ("-n", "auto", "--dist", "worksteal")


def summary_with(interpreter: str, marks: str, *, whole: bool) -> str:
    """Run the tests of models with the onnxruntime of ``interpreter`` and return pytest's last line."""
    ignored = [f"--ignore={file}" for file in ONCE]
    return pytest_summary(interpreter, *FOLDERS, *ignored, "-m", marks, *ALL_CORES, whole=whole)


def pytest_summary(interpreter: str, *arguments: str, whole: bool = False) -> str:
    """Run pytest with ``interpreter`` on the tree, all of tests that are products where ``whole``, and return its last line."""
    output = call([interpreter, "-m", "pytest", "-q", *arguments, *(["--whole"] if whole else [])])
    return output.strip().splitlines()[-1]
