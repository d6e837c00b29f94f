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
from qdq_passes.analysis.computable import FAMILIES
from qdq_passes.analysis.program_operators import DOMAIN, FLOAT_OPERATORS, OPERATORS, STANDARD
from qdq_passes.npu.reference.movement import is_movement
from qdq_passes.npu.reference.run import OPERATORS as REFERENCE
from qdq_passes.pipeline.pipeline import run_pipeline
from tests.npu.equality.equality.equality import ARITHMETICS
from tests.npu.equality.equality.units_floats import FloatBuilder

from qdqtool.npu.compile import lower
from qdqtool.targets.loading import load_target
from tests.architecture.places import ROOT
from tests.npu.equality.equality import units_float_operators, units_widths
from tests.npu.small_programs import SOURCES, context_model, payload, session

OURS = {*OPERATORS, *FLOAT_OPERATORS}
DOCS = (ROOT / "docs" / "npu_program.md").read_text(encoding="utf-8")


def _section(title: str) -> str:
    """What stands under a heading of the second level."""
    return DOCS.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_library_declares_them() -> None:
    text = (SOURCES / "operators.cc").read_text(encoding="utf-8")
    assert set(re.findall(r'^ +\{"(\w+)", \d+, \d+,', text, re.MULTILINE)) == OURS


def test_the_library_infers_their_shapes() -> None:
    text = (SOURCES / "shapes.cc").read_text(encoding="utf-8")
    named = set(re.findall(r'op\.name == "(\w+)"', text))
    assert {name for name in OURS if not name.startswith("Reduce")} == named


@pytest.mark.parametrize("name", sorted(OURS | {f"::{op}" for op in STANDARD}))
def test_the_library_has_a_kernel(name: str) -> None:
    """Whatever else is wrong with a node that has neither attributes nor its other inputs."""
    operator = name.removeprefix("::") if name.startswith("::") else f"{DOMAIN}.{name}"
    head = '<ir_version: 11, opset_import: ["" : 24, "ai.qdqtool" : 1]>\nprogram (uint8[4] x) => (uint8[4] y) '
    whole, program = head + "{ y = Identity (x) }", head + f"{{ y = {operator} (x) }}"
    assert "there is no kernel" not in _said(context_model(whole, payload(program)))


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
    assert sorted(set(headings) - {"Attributes of arithmetic"}) == sorted(OPERATORS)
    rows = re.findall(r"^\| (Float\w+|Quantize) ", floats, re.MULTILINE)
    assert sorted(rows) == sorted(FLOAT_OPERATORS)
    standard = re.findall(r"`(\w+)`", _section("Standard operators in programs"))
    assert sorted(standard) == sorted(STANDARD)


def test_a_lowering_writes_each() -> None:
    missing = set(OURS)
    for written in _lowered():
        missing -= written
        if not missing:
            return
    assert not missing


def _lowered() -> Iterator[set[str]]:
    """The operators of ai.qdqtool in one lowered model after the other."""
    any_float, any_width, any_norm = (
        load_target(Path(__file__).with_name(f"any_{what}.toml")) for what in ("float", "width", "norm")
    )
    for case in units_float_operators.CASES.values():
        builder = FloatBuilder(np.random.default_rng(1), pow2=True)
        model = case(builder)
        model.graph.opset_imports[""] = 23
        run_pipeline(model, "infer-shapes")
        yield _ours(lower(model, any_float).model.graph)
    arithmetic = ARITHMETICS["half_even"][0]
    for name, width_case in units_widths.CASES.items():
        model, _ = units_widths.model(width_case, 1, pow2=True)
        target = any_norm if name in FAMILIES["norms"] else any_width
        yield _ours(lower(model, dataclasses.replace(target, arithmetic=arithmetic)).model.graph)


def _ours(graph: ir.Graph) -> set[str]:
    return {node.op_type for node in graph if node.domain == DOMAIN}


def test_the_reference_computes_what_has_a_plan() -> None:
    known, handled = {op for types in FAMILIES.values() for op in types}, {op for _, op in REFERENCE}
    assert handled <= known
    assert known - handled == {op for op in known if is_movement(ir.node(op, []))} - {"Resize"}
