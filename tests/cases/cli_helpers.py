"""What the tests of the command line share: commands run in process, models in ONNX text, and the sample models."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.cli.main import COMMANDS, run
from qdqtool.runtime.session import open_session
from tests.cases.json_schemas import check_document
from tests.cases.small_models import parsed
from tests.cases.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "qdqtool" / "_demo"
DIGITS, CALIB = str(DEMO / "digits.onnx"), str(DEMO / "calib.npz")
SAMPLES = ROOT / "sample_models"
#: The samples of our own making; the others are laid out as another tool does it, with that tool's faults.
OURS = [path for path in sorted(SAMPLES.glob("*.onnx")) if path.stem != "quark_layout"]

Feed = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout, which holds no NaN and no Infinity."""
        return strict_json(self.out)

    @property
    def error(self) -> str:
        """The one line of the error message."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def cli(*arguments: str | Path, code: int | None = 0) -> Result:
    """Run ``qdqtool`` in this process; ``code`` is the exit code expected, None for any. A document fits the schema of its command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        returned = run([str(a) for a in arguments])
    result = Result(returned, out.getvalue(), err.getvalue())
    assert code is None or returned == code, f"exit {returned}: {result.err}{result.out}"
    if "--json" in arguments and returned in (0, 1) and result.out.startswith("{"):
        check_document([str(each) for each in arguments[:2]], result.json)
    return result


def run_script(folder: Path, again: Path) -> dict[str, int]:
    """Command → exit status of the script that `deploy` wrote into ``folder``, in process, into ``again``, where a shell would have it."""
    lines = [line for line in (folder / "commands.sh").read_text().splitlines() if line.startswith("qdqtool ")]
    words = [shlex.split(line.removesuffix(" || failed=1").replace('"$out"', str(again))) for line in lines]
    return {name: cli(name, *rest, "-q", code=None).code for _, name, *rest in words}


def process(*arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run ``qdqtool`` as a process of its own; ``more`` are variables of its environment."""
    return subprocess.run(
        command_line(*arguments),
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=PATIENCE,
        env=environment(**more),
    )


def command_line(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "qdqtool.cli.main", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """This one, with the packages found as they are found here, in UTF-8, and no proxies, colors or widths."""
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith(("_proxy", "_color", "columns"))}
    return {**kept, "PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by the words that call it."""
    waiting = [(name, entry.load()) for name, entry in COMMANDS.entries().items()]
    while waiting:
        name, each = waiting.pop()
        if isinstance(each, click.Group):
            context = click.Context(each)
            waiting += [(f"{name} {inner}", each.get_command(context, inner)) for inner in each.list_commands(context)]
        else:
            yield name, each


def write(path: Path, text: str) -> str:
    """Write the model of a graph in ONNX text to ``path``."""
    onnx.save(parsed(text), path)
    return str(path)


def outputs(path: str | Path, feed: Feed) -> Feed:
    """What the model computes in onnxruntime without optimization."""
    return open_session(str(path)).run(feed)


def same_outputs(a: str | Path, b: str | Path, feed: Feed) -> None:
    """Both models give the same bits under the same names."""
    left, right = outputs(a, feed), outputs(b, feed)
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        np.testing.assert_array_equal(left[name], right[name])


def images(count: int = 4) -> Feed:
    """A few of the demo's held-out digits."""
    with np.load(DEMO / "test.npz") as data:
        return {"input": data["input"][:count]}


def accepted(path: str | Path) -> None:
    """The model passes onnx.checker in full and `qdqtool check` without a finding, and all its node names are unique."""
    onnx.checker.check_model(str(path), full_check=True)
    assert cli("check", path, "--json").json["findings"] == []
    graph = onnx.load(str(path), load_external_data=False).graph
    names = [node.name for node in graph.node]
    assert len(set(names)) == len(names)


def quantized_digits(folder: Path) -> Path:
    """The digits in power-of-two int8; the ranges are in ``r.json`` beside them."""
    made = folder / "q.onnx"
    cli("quantize", DIGITS, "--preset", "xint8", "--data", CALIB, "-o", made, "--save-ranges", folder / "r.json", "-q")
    return made
