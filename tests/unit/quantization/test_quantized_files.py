"""Files of integer operators: commands that need pairs name the one that makes them, and take what it wrote."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cases.cli_helpers import cli
from tests.cases.quantized_files import quantized_static
from tests.golden_messages.refusal import told


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of QLinearConv and others without any pair."""
    file = tmp_path_factory.mktemp("qoperators") / "q.onnx"
    quantized_static(file)
    return file


COMMANDS = {
    "explain": (["explain"], ["--data", "random:1"]),
    "report": (["report"], ["--data", "random:1", "-o", "OUT.html"]),
    "view": (["view"], ["--overlay", "sqnr", "--data", "random:1", "--once"]),
    "export": (["encodings", "export"], ["--format", "qnn", "-o", "OUT.json"]),
}


@pytest.mark.newest
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_that_makes_pairs_is_named(name: str, operators: Path, tmp_path: Path) -> None:
    verb, rest = COMMANDS[name]
    options = [str(tmp_path / word) if word.startswith("OUT.") else word for word in rest]
    done = cli(*verb, operators, *options, code=None)
    assert done.code in (2, 3)
    (command,) = re.findall("`qdqtool ([^`]*)`", done.error)
    words = [str(tmp_path / word) if word == "pairs.onnx" else word for word in shlex.split(command)]
    cli(*words)
    cli(*verb, tmp_path / "pairs.onnx", *options)
    told(done.error)
