"""What is new is one file: a pass, a verb, a preset, a target; a verb with a result of its own has two, an option is a line and its use.

Each test lays its file into a checkout that is ours but for it, and uses it there as whoever wrote it would: nothing else knows its name.
An operator of NPU programs: `tests/npu/test_adding_an_operator.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.architecture.places import ROOT

DIGITS = "qdqtool/_demo/digits.onnx"

#: What each interpreter begins with: the checkout it stands in, and `ran`, what a command prints.
HEAD = """
import contextlib, io, runpy, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "_editable" not in type(finder).__module__]
sys.path[:0] = ["passes", "."]
from qdqtool.cli.main import run

def ran(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run(list(arguments)) == 0, arguments
    return out.getvalue()
"""


class Checkout:
    """Ours with other files: links to everything that is not on the way to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open(folder, ROOT)

    def __setitem__(self, path: str, text: str) -> None:
        """Lay a file there."""
        *parents, name = Path(path).parts
        here, there = self.folder, ROOT
        for part in parents:
            here, there = here / part, there / part
            if here.is_symlink():
                here.unlink()
                here.mkdir()
                self._open(here, there)
        (here / name).unlink(missing_ok=True)
        (here / name).write_text(text, encoding="utf-8")

    def says(self, code: str) -> str:
        """What ``code`` prints there."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
        command = [sys.executable, "-c", HEAD + code]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @staticmethod
    def _open(here: Path, there: Path) -> None:
        for each in there.iterdir():
            (here / each.name).symlink_to(each)


def test_a_pass(tmp_path: Path) -> None:
    """The one of docs/writing_a_pass.md, in a subject of the library."""
    page = (ROOT / "docs" / "writing_a_pass.md").read_text(encoding="utf-8")
    written = re.search(r"```python file=mine/passes/replace_square\.py\n(.*?)```", page, re.DOTALL)
    assert written is not None
    ours = Checkout(tmp_path)
    ours["passes/qdq_passes/legalize/replace_square.py"] = written[1]
    said = ours.says("""
import onnx_ir as ir
from qdqtool.passes import dump, run_pipeline
model = ir.from_onnx_text('<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (float[4] y) <float n = {2.0}> { y = Pow(x, n) }')
run_pipeline(model, "give-names,replace-square")
print(ran("list", "passes", "replace-square"), dump(model))
""")
    assert "Replace Pow(x, 2) by Mul(x, x)" in said
    assert "Mul(%x, %x)" in said


VERB = '''"""Give every node of MODEL a name."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.options import option
from qdqtool.verbs.editing import Edit, PipelineEditing
from qdqtool.verbs.verb import function_of


@dataclass(frozen=True, kw_only=True)
class Baptize(PipelineEditing, Edit):
    """Give every node of MODEL a name."""

    in_order: bool = option(False, "Sort the nodes first.")

    def pipeline(self) -> str:
        """The passes."""
        return "sort,give-names" if self.in_order else "give-names"


baptize = function_of(Baptize)
'''


def test_a_verb_that_writes_a_model(tmp_path: Path) -> None:
    ours = Checkout(tmp_path)
    ours["qdqtool/verbs/edits/baptize.py"] = VERB
    said = ours.says(f"""
import inspect, qdqtool.api
print(ran("--help").count("baptize"), ran("baptize", "--help"))
print(ran("baptize", {DIGITS!r}, "--in-order", "-o", "o.onnx"))
qdqtool.api.baptize({DIGITS!r}, "p.onnx", in_order=True)
print("in_order" in inspect.signature(qdqtool.api.baptize).parameters)
print(runpy.run_path("docs/make_options.py")["page"]())
""")
    assert said.startswith("1 Usage: qdqtool baptize")
    assert "--in-order" in said
    assert "sort: " in said
    assert (tmp_path / "p.onnx").exists()
    assert "\nTrue\n" in said
    assert "## `baptize`" in said


RESULT = '''"""Count the nodes of MODEL."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdqtool.verbs.groups import MODEL, Path
from qdqtool.verbs.verb import Verb, function_of


@dataclass(frozen=True, kw_only=True)
class Count(Verb[int]):
    """Count the nodes of MODEL."""

    model: Path = field(kw_only=False, metadata=MODEL)

    def run(self) -> int:
        """How many there are."""
        from qdqtool.io.models.load import load

        return len(load(self.model).graph)


count = function_of(Count)
'''
SHOWN = '''"""Count the nodes of MODEL."""

from __future__ import annotations

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out, plural, say
from qdqtool.verbs.count import Count


@command_of(Count)
def count(out: Out, asked: Count) -> None:
    found = asked.run()
    out.result({"nodes": found}, lambda: say(plural(found, "node")))


command = count
'''


def test_a_verb_with_a_result_of_its_own(tmp_path: Path) -> None:
    ours = Checkout(tmp_path)
    ours["qdqtool/verbs/count.py"] = RESULT
    ours["qdqtool/cli/cmd_count.py"] = SHOWN
    said = ours.says(f"""
import qdqtool.api
print(ran("list", "commands").count("Count the nodes of MODEL."), qdqtool.api.count({DIGITS!r}))
print(ran("count", {DIGITS!r}))
""")
    first, second = said.split("\n", 1)
    assert second.strip() == f"{first.split()[1]} nodes"
    assert first.split()[0] == "1"


def test_a_preset(tmp_path: Path) -> None:
    ours = Checkout(tmp_path)
    ours["qdqtool/presets/8a8w-wide.toml"] = """
description = "8a8w with activations of 16 bits"
extends = "8a8w"
[encodings]
activations = "uint16"                      # as a16w8
"""
    said = ours.says(f"""
print(ran("list", "presets", "8a8w-wide"))
print(ran("quantize", {DIGITS!r}, "--preset", "8a8w-wide", "--print-pipeline"))
""")
    assert "8a8w with activations of 16 bits" in said
    assert "activations=uint16" in said


def test_a_target(tmp_path: Path) -> None:
    ours = Checkout(tmp_path)
    ours["qdqtool/targets/generic_int8_v2.toml"] = """
description = "a generic NPU that refuses whole models"
version = "2"
extends = "generic_int8"
policy = "whole-model"                      # what one unsupported node costs
"""
    said = ours.says(f"""
print(ran("list", "targets"))
print(ran("analyze", {DIGITS!r}, "--target", "generic_int8_v2", "--allow-findings"))
print(runpy.run_path("docs/make_target_table.py")["table"]())
""")
    assert "a generic NPU that refuses whole models" in said
    assert "generic_int8_v2: 0 of 24 operators" in said
    assert "`generic_int8_v2`" in said


def test_an_option_of_quantize(tmp_path: Path) -> None:
    """The diff of the ADR."""
    page = (ROOT / "docs" / "adr" / "0024-an-option-is-said-once.md").read_text(encoding="utf-8")
    diff = re.search(r"```diff\n(.*?)```", page, re.DOTALL)
    assert diff is not None
    ours = Checkout(tmp_path)
    files = re.findall(r"^\+\+\+ (.*)\n((?:[ +](?!\+\+).*\n)+)", diff[1], re.MULTILINE)
    assert [sum(line.startswith("+") for line in lines.splitlines()) for _, lines in files] == [1, 2]
    for file, lines in files:
        before = "".join(line[1:] for line in lines.splitlines(keepends=True) if line.startswith(" "))
        whole = (ROOT / file).read_text(encoding="utf-8")
        assert whole.count(before) == 1, f"{file} has other lines than the ADR"
        ours[file] = whole.replace(before, "".join(line[1:] for line in lines.splitlines(keepends=True)))
    said = ours.says(f"""
import inspect, qdqtool
from qdqtool.options import changed
from qdqtool.verbs.quantize import Quantize
command = ("quantize", {DIGITS!r}, "--print-pipeline")
print("merge-concats" in ran(*command), "merge-concats" in ran(*command, "--keep-concats"))
print("Leave a Concat of Concats as it is." in " ".join(ran("quantize", "--help").split()))
print("keep_concats" in inspect.signature(qdqtool.quantize).parameters, changed(Quantize("m", keep_concats=True)))
print(runpy.run_path("docs/make_options.py")["page"]().count("`--keep-concats` | `keep_concats`"))
""")
    assert said.splitlines() == ["True False", "True", "True {'keep_concats': True}", "5"]
