"""What is said when something is refused: each wording stands once, in the texts beside this file; tests say the kind of error.

``with refusal(UsageError): …`` takes an error of that kind whose type and whole text are among the lines below the name of the running
test in the text of its folder. ``MESSAGES=write python -m pytest …`` writes the lines of the tests that run anew: read the difference."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from qdq_passes.errors import QdqError

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
IS_WRITING = os.environ.get("MESSAGES") == "write"
#: What differs from run to run: folders of tests and of the repository, addresses, versions, digests.
_TEMPORARY = re.escape(tempfile.gettempdir())
_PLACES = (
    (re.compile(re.escape(str(ROOT))), "ROOT"),
    (re.compile(_TEMPORARY + r"/pytest-of-[^/]+/pytest-\d+/(?:popen-\w+/)?[^/\s:,;')\]]+"), "TMP"),
    (re.compile(_TEMPORARY + r"/[^/\s:,;')\]]+"), "TMP"),
    (re.compile(r"(\.py, line )\d+"), r"\1N"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "ADDRESS"),
    (re.compile(r"(?<=onnxruntime )\d[\w.]*"), "VERSION"),
    (re.compile(r"(?<=sha256 )[0-9a-f]{12}"), "DIGEST"),
)
_written: set[str] = set()


@contextmanager
def refusal(kind: type[QdqError]) -> Iterator[pytest.ExceptionInfo[QdqError]]:
    """What runs inside must raise ``kind``, with a text that the golden has for the running test."""
    with pytest.raises(kind) as caught:
        yield caught
    told(f"{type(caught.value).__name__}: {caught.value}")


def told(said: str) -> None:
    """``said``, the one line of a command's error, must be what the golden has for the running test."""
    said, (file, test) = _everywhere(said), running()
    if IS_WRITING:
        _write(file, test, said)
    known = golden(file).get(test, [])
    assert said in known, f"{said}\nis none of what {file.name} has for {test}: {known}"


def running() -> tuple[Path, str]:
    """The golden of the running test, and its name there."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    path, _, name = test.partition("::")
    return FOLDER / f"{'-'.join(Path(path).parent.parts[1:])}.txt", f"{Path(path).name}::{_everywhere(name)}"


def _everywhere(text: str) -> str:
    """``text`` in one line, as it is on every machine."""
    text = text.replace("\n", "\\n")
    for pattern, name in _PLACES:
        text = pattern.sub(name, text)
    return text


@cache
def golden(file: Path) -> dict[str, list[str]]:
    """Test → what it provokes."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else ():
        if line.startswith("    "):
            found[name].append(line[4:])
        else:
            name = line
            found[name] = []
    return found


def _write(file: Path, test: str, said: str) -> None:
    known = golden(file)
    if test not in _written:
        _written.add(test)
        known[test] = []
    if said not in known[test]:
        known[test].append(said)
    lines = [line for name in sorted(known) for line in (name, *(f"    {text}" for text in known[name]))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
