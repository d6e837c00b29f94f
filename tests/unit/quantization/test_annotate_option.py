"""``--annotate module:function``: what it says is part of the pipeline's text; whatever goes wrong is one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantType
from qdq_passes.errors import UsageError
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool import api
from qdqtool.io.files.python_objects import import_object
from qdqtool.io.models.load import load
from qdqtool.verbs.planned import Planned
from qdqtool.verbs.work.quantizing import planned_for
from tests.cases.cli_helpers import CALIB, DIGITS, accepted, cli, write
from tests.golden_messages.refusal import refusal, told

HOOKS = """
import onnx_ir

def wide(model):
    assert isinstance(model, onnx_ir.Model)
    found = {node.outputs[0].name: {"dtype": "uint16"} for node in model.graph if node.op_type == "Concat"}
    model.graph.name = "changes are not kept"
    return found

def symmetric(model):
    return {"/concat_output_0": {"symmetric": True}}

def fails(model):
    raise ValueError("no")

def returns_a_list(model):
    return ["/concat_output_0"]

def returns_no_tables(model):
    return {"/concat_output_0": "uint16"}

def names_nothing(model):
    return {"/concat_output": {"dtype": "uint16"}}

def misspells(model):
    return {"input": {"dtyp": "uint16"}}

def fails_at_length(model):
    raise ValueError("one\\n  two")

def leaves(model):
    raise SystemExit(3)

def reaches_infinity(model):
    return {"input": {"low": -float("inf")}}

def is_beyond_float32(model):
    return {"input": {"scale": 10**400, "zero_point": 0}}

def names_no_type(model):
    return {"input": {"dtype": 2.5}}

def crosses(model):
    return {"input": {"low": 1000}}

NUMBER = 1

class Outer:
    inner = staticmethod(wide)
"""


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    path = tmp_path / "hooks.py"
    path.write_text(HOOKS, "utf-8")
    return path


def pipeline(*annotators: str) -> str:
    return cli(
        "quantize", DIGITS, "--preset", "8a8w", *[w for a in annotators for w in ("--annotate", a)], "--print-pipeline"
    ).out


def test_the_pipeline_holds_what_the_function_says(hooks: Path, tmp_path: Path) -> None:
    """It replays without the function, to the same bytes."""
    assert pipeline(f"{hooks}:wide").count('overrides="{\\"/concat_output_0\\":{\\"dtype\\":\\"uint16\\"}}"') == 1
    assert "overrides" not in pipeline()
    made, ranges, text = tmp_path / "a.onnx", tmp_path / "r.json", tmp_path / "p.txt"
    shown = cli(
        "quantize", DIGITS, "--preset", "16a8w", "--annotate", f"{hooks}:wide", "--data", CALIB, "--samples", "4",
        "-o", made, "--save-ranges", ranges, "--json",
    ).json  # fmt: skip
    text.write_text(shown["pipeline"])
    assert "/concat_output_0" in shown["pipeline"]
    cli("opt", DIGITS, "-p", f"@{text}", "--ranges", ranges, "-o", tmp_path / "b.onnx")
    assert made.read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_several_functions_add_up_key_by_key(hooks: Path) -> None:
    text = pipeline(f"{hooks}:wide", f"{hooks}:symmetric", f"{hooks}:Outer.inner")
    assert '{\\"/concat_output_0\\":{\\"dtype\\":\\"uint16\\",\\"symmetric\\":true}}' in text


def test_a_function_of_python() -> None:
    """Given itself; numbers of numpy, tuples and data types are understood, and the model it gets is a copy."""
    seen: list[ir.Model] = []

    def annotate(model: ir.Model) -> Mapping[str, Mapping[str, Any]]:
        seen.append(model)
        return {"input": {"low": np.float32(-2), "high": (np.int64(6),), "dtype": ir.DataType.UINT16}}

    done = api.quantize(DIGITS, preset="coreml-8a-c8w", data=CALIB, samples=2, annotate=[annotate])
    assert len(seen) == 1
    assert seen[0] is not done.model
    (encoding,) = [pair.encoding for pair in qdq_pairs(done.model) if pair.tensor == "input"]
    assert encoding is not None
    assert encoding.dtype == ir.DataType.UINT16
    assert encoding.scale == (float(np.float32(8 / 65535)),)


@pytest.mark.parametrize(
    "function",
    [
        "fails",
        "returns_a_list",
        "returns_no_tables",
        "names_nothing",
        "misspells",
        "fails_at_length",
        "leaves",
        "reaches_infinity",
        "is_beyond_float32",
        "names_no_type",
        "NUMBER",
        "missing",
    ],
)
def test_what_goes_wrong_is_one_line(hooks: Path, function: str) -> None:
    given = ("quantize", DIGITS, "--preset", "8a8w", "--annotate", f"{hooks}:{function}", "--print-pipeline")
    told(cli(*given, code=2).error)


def test_a_range_that_crosses_the_observed_one(hooks: Path, tmp_path: Path) -> None:
    said = cli(
        "quantize", DIGITS, "--preset", "8a8w", "--annotate", f"{hooks}:crosses", "--data", CALIB, "--samples", "1",
        "-o", tmp_path / "q.onnx", code=2,
    ).error  # fmt: skip
    assert said.startswith("input: low 1000 is above high ")
    assert "override both ends" in said


def test_types_that_need_a_newer_opset_bring_it(hooks: Path, tmp_path: Path) -> None:
    """8a8w stops at opset 13 or what the model has; uint16 needs 21. The text has the conversion, and replays."""
    source, made, ranges, text = (tmp_path / name for name in ("f.onnx", "a.onnx", "r.json", "p.txt"))
    write(source, """<ir_version: 8, opset_import: ["" : 13]> g (float[1,2] x) => (float[1,4] y) {
        a = Neg(x)  b = Abs(x)  y = Concat<axis = 1>(a, b) }""")  # fmt: skip
    cli(
        "quantize", source, "--preset", "8a8w", "--annotate", f"{hooks}:wide", "--data", "random:2", "-q",
        "-o", made, "--save-ranges", ranges,
    )  # fmt: skip
    model = load(made)
    assert model.opset_imports[""] == 21
    types = {pair.tensor: pair.encoding.dtype.name for pair in qdq_pairs(model) if pair.encoding is not None}
    assert types["y"] == "UINT16"
    assert types["x"] == "UINT8"
    text.write_text(cli("quantize", source, "--preset", "8a8w", "--annotate", f"{hooks}:wide", "--print-pipeline").out)
    assert "convert-opset{at-least=true}" in text.read_text(), "to 21, where that is not said"
    cli("opt", source, "-p", f"@{text}", "--ranges", ranges, "-o", tmp_path / "b.onnx")
    assert made.read_bytes() == (tmp_path / "b.onnx").read_bytes()
    accepted(made)


@pytest.mark.parametrize(
    "dtype",
    [np.uint16, np.dtype("uint16"), ir.DataType.UINT16, onnx.TensorProto.UINT16, QuantType.QUInt16, "UINT16"],
    ids=str,
)
def test_types_are_understood_however_python_spells_them(dtype: object) -> None:
    job = Planned(preset="16a8w", annotate=[lambda model: {"input": {"dtype": dtype}}]).plan()
    plan = planned_for(DIGITS, job)
    assert '{\\"input\\":{\\"dtype\\":\\"uint16\\"}}' in str(plan.pipeline)


def test_imported_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_hooks_module.py").write_text("1 / 0\n")
    for text in (
        "no_such_module_here:f",
        "broken_hooks_module:f",
        "f",
        ":f",
        "math:",
        "math:no_such",
    ):
        with refusal(UsageError):
            import_object(text, where="--annotate it")
    assert import_object("math:pi", where="") > 3
