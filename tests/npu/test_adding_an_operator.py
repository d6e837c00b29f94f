"""A new operator of programs is one file of Python: the one that docs/npu_program.md shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.architecture.places import ROOT

#: What is asked of an interpreter in which the file lies among the operators.
ASKED = """
import sys
from qdq_passes.npu import program

program.__path__.append(sys.argv[1])
from qdq_passes.npu.program.operators import ROWS, operator_of
from qdq_passes.npu.units.units import units_of
from qdq_passes.graph.shapes.inference import infer_shapes
from qdqtool.npu.work import work_of
from tests.cases.lowering import lowered
from tests.cases.small_models import model

made = model(
    '<ir_version: 10, opset_import: ["" : 21]> g (float[2,3] x) => (uint8[2,3] y)'
    ' <float s = {0.5}, float t = {2.0}, uint8 z = {7}, int64 axis = {1}> {'
    ' xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)'
    ' sum = CumSum(xd, axis) y = QuantizeLinear(sum, t, z) }'
)
infer_shapes(made)
unit = next(unit for unit in units_of(made) if unit.core.op_type == "CumSum")
print(operator_of(unit).family, work_of(unit).element_ops)
node = next(node for node in lowered(made).graph if node.domain == "ai.qdqtool")
print(node.op_type, node.attributes["axis"].value, set(node.attributes) <= {*ROWS["CumSum"].attributes, *ROWS["CumSum"].shared})
"""


def test_a_file_is_an_operator(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "npu_program.md").read_text(encoding="utf-8")
    file = re.search(r"^\+\+\+ passes/qdq_passes/npu/program/(\w+\.py)\n((?:\+(?!\+\+).*\n)+)", text, re.MULTILINE)
    assert file is not None
    (tmp_path / file[1]).write_text(re.sub(r"^\+", "", file[2], flags=re.MULTILINE), encoding="utf-8")
    command = [sys.executable, "-c", ASKED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.split() == ["pools", "12", "CumSum", "1", "True"], done.stderr
