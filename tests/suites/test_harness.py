"""The suite sees what it is there to see: passes that lie, break, overstep their bound, or give up half-way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.pipeline.pipeline import Pipeline

from tests.suites import harness, steps
from tests.suites.agree import difference
from tests.suites.cases import Case
from tests.suites.exclusions import Exclusion, complaints, idle, unexcused
from tests.suites.harness import ROUND_TRIP, Examination, Result, examine

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
small (float[3] x) => (float[3] y)
<float[1] two = {2.0}>
{ z = Mul(x, two)
  y = Relu(z) }
"""
X = np.array([1.0, -2.0, 3.0], np.float32)
CASE = Case("small", "node", onnx.parser.parse_model(TEXT).SerializeToString(), ({"x": X},))


@pytest.fixture(autouse=True)
def _bytes_of_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "BYTES_OF", 1)


@dataclass(frozen=True)
class Made(Pass):
    """A pass of the test: what it does to the model, and what it says it did."""

    edit: Callable[[ir.Model], object] = lambda model: None
    says: tuple[Change, ...] = (Change("edit", "z"),)

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Do it, then say it."""
        self.edit(model)
        yield from self.says


def _result(tmp_path: Path, *made: Made, keeps: Keeps = EXACT, case: Case = CASE) -> Result:
    found = examine(case, [steps.Step("made", Pipeline(made), keeps)], tmp_path)
    assert found.results[ROUND_TRIP] == Result("agrees")
    return found.results["made"]


def _scale(factor: float) -> Callable[[ir.Model], object]:
    def edit(model: ir.Model) -> None:
        model.graph.initializers["two"].const_value = ir.tensor(np.array([2.0 * factor], np.float32), name="two")

    return edit


def _refuse_late(model: ir.Model) -> None:
    _scale(2.0)(model)
    raise UnsupportedError("no")


def _refuse(model: ir.Model) -> None:
    raise UnsupportedError("no")


def _break_type(model: ir.Model) -> None:
    model.graph.outputs[0].dtype = ir.DataType.INT64


def _name_twice(model: ir.Model) -> None:
    for node in model.graph:
        node.name = "same"


def _crash(model: ir.Model) -> None:
    raise KeyError("z")


def _float32(*items: float) -> npt.NDArray[np.float32]:
    return np.array(items, np.float32)


def test_what_is_right_passes(tmp_path: Path) -> None:
    assert _result(tmp_path, Made(says=(skip("z", "no"),))).status == "same"
    assert _result(tmp_path, Made()).status == "agrees"
    assert _result(tmp_path, Made(edit=_refuse)) == Result("refused", "no")
    assert _result(tmp_path, Made(edit=_scale(2.0)), keeps=Keeps("changes")).status == "accepted"
    assert _result(tmp_path, Made(edit=_scale(1 + 2.0**-20)), keeps=Keeps("bounded", 2.0**-19)).status == "agrees"


@pytest.mark.parametrize(
    ("made", "keeps", "detail"),
    [
        (Made(edit=_scale(2.0), says=()), EXACT, "reports no change, but the bytes differ"),
        (Made(edit=_scale(2.0), says=(skip("z", "no"),)), EXACT, "reports no change, but the bytes differ"),
        (Made(edit=_scale(1 + 2.0**-20)), EXACT, "2 of 3 elements differ"),
        (
            Made(edit=_scale(1 + 2.0**-18)),
            Keeps("bounded", 2.0**-19),
            "max error 3.81e-06 of max|y| = 6, allowed 1.91e-06",
        ),
        (Made(edit=_refuse_late), EXACT, "refused, but changed the model first"),
        (Made(edit=_crash), EXACT, "crashed"),
        (Made(edit=_break_type), Keeps("changes"), "onnx.checker no longer accepts it"),
        (Made(edit=_name_twice), Keeps("changes"), "unique-node-names"),
    ],
)
def test_what_is_wrong_fails(tmp_path: Path, made: Made, keeps: Keeps, detail: str) -> None:
    result = _result(tmp_path, made, keeps=keeps)
    assert result.status == "failed"
    assert detail in result.detail


def test_who_refuses_behind_others_leaves_what_they_made(tmp_path: Path) -> None:
    assert _result(tmp_path, Made(edit=_scale(4.0)), Made(edit=_refuse)) == Result("refused", "no")
    assert "changed the model first" in _result(tmp_path, Made(edit=_scale(4.0)), Made(edit=_refuse_late)).detail


def _to_swish(factor: float) -> Callable[[ir.Model], object]:
    def edit(model: ir.Model) -> None:
        graph, (x,) = model.graph, model.graph.inputs
        y = ir.node("Swish", [x], {"alpha": factor}, num_outputs=1, name="swish")
        graph.append(y)
        graph.outputs[0].replace_all_uses_with(y.outputs[0], replace_graph_outputs=True)
        graph.remove([node for node in graph if node.op_type != "Swish"], safe=True)
        y.outputs[0].name, y.outputs[0].type, y.outputs[0].shape = "y", x.type, x.shape

    return edit


def test_what_onnxruntime_has_no_kernel_for_is_compared_all_the_same(tmp_path: Path) -> None:
    text = '<ir_version: 12, opset_import: ["" : 25]> g (float[3] x) => (float[3] y) { s = Sigmoid(x) y = Mul(x, s) }'
    case = Case("gate", "node", onnx.parser.parse_model(text).SerializeToString(), ({"x": X},))
    keeps = Keeps("bounded", 2.0**-20)
    assert _result(tmp_path, Made(edit=_to_swish(1.0)), keeps=keeps, case=case).status == "agrees"
    wrong = _result(tmp_path, Made(edit=_to_swish(1.001)), keeps=keeps, case=case)
    assert wrong.status == "failed"
    assert wrong.detail.startswith("onnx.reference: output 'y': max error ")


def test_a_model_that_nothing_runs_is_still_checked(tmp_path: Path) -> None:
    text = TEXT.replace('["" : 21]', '["" : 21, "local" : 1]').replace("Relu", "local.Relu")
    case = Case("foreign", "node", onnx.parser.parse_model(text).SerializeToString(), ({"x": X},))
    found = examine(case, [steps.Step("made", Pipeline((Made(),)), EXACT)], tmp_path)
    assert (found.engine, found.results["made"].status) == (None, "accepted")


def test_a_model_that_cannot_be_loaded_is_one_failure(tmp_path: Path) -> None:
    text = TEXT.replace("Relu(z)", "Relu(nowhere)")
    found = examine(
        Case("broken", "node", onnx.parser.parse_model(text).SerializeToString(), ({"x": X},)), [], tmp_path
    )
    assert found.results[ROUND_TRIP].status == "failed"


@pytest.mark.parametrize(
    ("old", "new", "bound", "fault"),
    [
        (_float32(np.nan, 1), _float32(np.nan, 1), None, None),
        (_float32(0.0), _float32(-0.0), None, "1 of 1 elements differ"),
        (_float32(np.nan, 1), _float32(0, 1), 1.0, "NaN or Inf at other places"),
        (np.array([1000000]), np.array([1000001]), 1.0, "1 of 1 elements differ"),
        (_float32(1), np.array([1.0]), None, "float64[1], was float32[1]"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), None, "1 of 2 elements differ"),
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 2.015625], ml_dtypes.bfloat16), 2.0**-9, "allowed 0.00195"),
        ([_float32(1)], [_float32(1), _float32(2)], None, "was a sequence of 1"),
        (None, _float32(1), None, "was nothing"),
    ],
)
def test_difference(old: Any, new: Any, bound: float | None, fault: str | None) -> None:
    found = difference({"y": old}, {"y": new}, bound)
    assert found is None if fault is None else found is not None and fault in found


def test_exclusions_are_strict() -> None:
    def examined(case: str, status: Any, detail: str = "") -> Examination:
        return Examination(case, None, {"fold{what=all}": Result(status, detail)}, 0)

    found = [
        examined("test_a", "failed", "off by 1"),
        examined("test_b", "failed", "crashed"),
        examined("test_c", "same"),
    ]
    known = Exclusion(("test_*", "test_z"), ("fold{what=*}",), "off by", "why")
    assert unexcused(found, "fold{what=all}", [known]) == []
    assert unexcused(found, "fold{what=all}", [Exclusion(("test_a",), ("*",), "", "")]) == ["test_b: crashed"]
    assert list(complaints(known, found)) == [
        "test_b in fold{what=all} fails otherwise: crashed",
        "test_c in fold{what=all} is no longer a failure (same): take it out",
    ]
    named = [examination.case for examination in found]
    assert list(idle(known, named, ["fold{what=all}"])) == ["'test_z' matches nothing: take it out"]


def test_a_pass_with_required_options_needs_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROWS", {})
    with pytest.raises(UsageError, match="adjust-ranges needs ranges; give it a row in ROWS"):
        steps.steps_of("adjust-ranges")
