"""The operators of programs are the same ones everywhere: in the library, in the passes, in the reference and in the documentation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.npu.program import DOMAIN
from qdq_passes.npu.program.operator import Row
from qdq_passes.npu.program.operators import FAMILIES, FLOAT_ROWS, ROWS, STANDARD
from qdq_passes.npu.reference.movement import is_movement
from qdq_passes.npu.reference.run import OPERATORS as REFERENCE
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.npu.compile import lower
from qdqtool.targets.loading import load_target
from tests.architecture.places import ROOT
from tests.npu.equality import units_float_operators, units_widths
from tests.npu.equality.equality import ARITHMETICS
from tests.npu.equality.units_floats import FloatBuilder
from tests.npu.small_programs import SOURCES, context_model, payload, session

ALL_ROWS: dict[str, Row] = {**ROWS, **FLOAT_ROWS}
OURS = set(ALL_ROWS)
DOCS = (ROOT / "docs" / "npu_program.md").read_text(encoding="utf-8")


def _section(title: str) -> str:
    """What stands under a heading of the second level."""
    return DOCS.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


#: A row of the library's table: name, inputs, attributes, rule of its output's shape, what makes its kernel.
ROW = re.compile(
    r'^const Operator \w+\{"(\w+)", \{\d+, \d+\}, .*?shapes::(\w+),\s+(?:make_|\[\])', re.MULTILINE | re.DOTALL
)


def _rows() -> list[tuple[str, str]]:
    """The operators of ai.qdqtool that have a row, each with its rule of shapes."""
    sources = sorted((SOURCES / "kernels").rglob("*.cc"))
    return [row for source in sources for row in ROW.findall(source.read_text(encoding="utf-8"))]


def test_the_library_declares_them() -> None:
    assert sorted(name for name, _ in _rows()) == sorted(OURS)


def test_the_library_infers_their_shapes() -> None:
    text = (SOURCES / "program" / "operators.hpp").read_text(encoding="utf-8")
    rules = set(re.findall(r"^std::optional<Shape> (\w+)\(", text, re.MULTILINE))
    assert {rule for _, rule in _rows()} == rules


@pytest.mark.parametrize("name", sorted(OURS | {f"::{op}" for op in STANDARD}))
def test_the_library_has_a_kernel(name: str) -> None:
    """Whatever else is wrong with a node that has neither attributes nor its other inputs."""
    operator = name.removeprefix("::") if name.startswith("::") else f"{DOMAIN}.{name}"
    head = '<ir_version: 11, opset_import: ["" : 24, "ai.qdqtool" : 1]>\nprogram (uint8[4] x) => (uint8[4] y) '
    whole, program = head + "{ y = Identity (x) }", head + f"{{ y = {operator} (x) }}"
    assert "there is no kernel" not in _said(context_model(whole, payload(program)))


#: How an attribute of each type is written.
_WRITTEN = {int: "int = 1", float: "float = 1.0", str: 'string = "x"', list: "ints = [1]"}


def _row_as_program(row: Row, inputs: int, **more: type) -> str:
    """What the library says of an operator with all attributes of ``row``, and ``more``."""
    types = {**row.shared, **row.attributes, **more}
    attributes = ", ".join(f"{name}: {_WRITTEN[kind]}" for name, kind in types.items())
    call = f"{DOMAIN}.{row.name} {f'<{attributes}>' if attributes else ''} ({', '.join(['x'] * inputs)})"
    head = '<ir_version: 11, opset_import: ["" : 24, "ai.qdqtool" : 1]>\nprogram (uint8[4] x) => (uint8[4] y) '
    return _said(context_model(head + "{ y = Identity (x) }", payload(f"{head}{{ y = {call} }}")))


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_library_agrees_with_the_row(name: str) -> None:
    """So many inputs, and attributes of these names and types; whatever else is wrong with their numbers."""
    row = ALL_ROWS[name]
    least, most = row.inputs
    for inputs in (least, most):
        said = _row_as_program(row, inputs)
        assert "inputs, not" not in said
        assert "is unknown, or has another type" not in said
    assert "inputs, not" in _row_as_program(row, most + 1)
    assert least == 1 or "inputs, not" in _row_as_program(row, least - 1)
    assert "'nothing' is unknown" in _row_as_program(row, least, nothing=int)


def _said(model: onnx.ModelProto) -> str:
    """What a session refuses ``model`` with, nothing where it does not."""
    try:
        session(model)
    except Exception as error:  # noqa: BLE001  # whatever the library says
        return str(error)
    return ""


def test_the_documentation_has_a_section_for_each() -> None:
    ours, floats = _section("Operators of ai.qdqtool"), _section("Operators in floating point")
    headings = [name for line in re.findall(r"^### (.+)$", ours, re.MULTILINE) for name in line.split(", ")]
    assert sorted(set(headings) - {"Attributes of arithmetic"}) == sorted(ROWS)
    rows = re.findall(r"^\| (Float\w+|Quantize) ", floats, re.MULTILINE)
    assert sorted(rows) == sorted(FLOAT_ROWS)
    standard = re.findall(r"`(\w+)`", _section("Standard operators in programs"))
    assert sorted(standard) == sorted(STANDARD)


_WORDS = {int: "int", float: "float", str: "text", list: "ints"}


def _documented(row: Row) -> str:
    """The line of the documentation's table of inputs and attributes."""
    kind = "floating point" if row.name in FLOAT_ROWS else "arithmetic" if row.shared else ""
    inputs = "–".join(str(count) for count in dict.fromkeys(row.inputs))
    attributes = ", ".join(f"`{name}` {_WORDS[kind]}" for name, kind in row.attributes.items())
    return f"| {row.name} | {inputs} | {kind} | {attributes} |"


def test_the_documentation_tells_of_inputs_and_attributes() -> None:
    lines = [line for line in _section("Inputs and attributes").splitlines() if line.startswith("| ")][1:]
    assert lines == [_documented(row) for rows in (ROWS, FLOAT_ROWS) for _, row in sorted(rows.items())]


def test_the_documentation_tells_of_shared_attributes() -> None:
    arithmetic = (
        _section("Operators of ai.qdqtool").split("\n### Attributes of arithmetic\n", 1)[1].split("\n### ", 1)[0]
    )
    for text, row in (
        (arithmetic, ROWS["Softmax"]),
        (_section("Operators in floating point"), FLOAT_ROWS["FloatCast"]),
    ):
        assert set(row.shared) <= set(re.findall(r"`(\w+)`", text))


def test_a_lowering_writes_each() -> None:
    missing = set(OURS)
    for nodes in _lowered():
        for node in nodes:
            row = ALL_ROWS[node.op_type]
            assert set(node.attributes) <= {*row.shared, *row.attributes}, node
            missing.discard(node.op_type)
        if not missing:
            return
    assert not missing


def _lowered() -> Iterator[list[ir.Node]]:
    """The operators of ai.qdqtool in one lowered model after the other."""
    any_float, any_width, any_norm = (
        load_target(Path(__file__).with_name("targets") / f"any_{what}.toml") for what in ("float", "width", "norm")
    )
    for case in units_float_operators.CASES.values():
        builder = FloatBuilder(np.random.default_rng(1), pow2=True)
        model = case(builder)
        model.graph.opset_imports[""] = 23
        run_pipeline(model, "infer-shapes")
        yield _ours(lower(model, any_float).model.graph)
    arithmetic = ARITHMETICS["half_even"][0]
    for name, width_case in units_widths.CASES.items():
        model, _ = units_widths.model(width_case, 1, pow2=True, quarters=[0])
        target = any_norm if name in FAMILIES["norms"] else any_width
        yield _ours(lower(model, dataclasses.replace(target, arithmetic=arithmetic)).model.graph)


def _ours(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.domain == DOMAIN]


def test_the_reference_computes_what_has_a_plan() -> None:
    known, handled = {op for types in FAMILIES.values() for op in types}, {op for _, op in REFERENCE}
    assert handled <= known
    assert known - handled == {op for op in known if is_movement(ir.node(op, []))} - {"Resize"}
