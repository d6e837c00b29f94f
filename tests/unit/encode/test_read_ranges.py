"""What readers tell apart of a value, and ranges without the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from qdq_passes.encode.look.read_ranges import cut, read_range
from qdq_passes.graph.shapes.inference import infer_shapes

import qdqtool
from qdqtool.io.models.load import load
from qdqtool.runtime.session import open_session
from tests.cases.cli_helpers import CALIB, DIGITS
from tests.cases.small_models import model

HEAD = '<ir_version: 9, opset_import: ["" : 17]> g (float[2,64] x) => (float[2,64] y) <float l = {-2}, float h = {5}> { v = Neg(x) '


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ("y = HardSwish(v) }", (-3, math.inf)),
        ("y = Relu(v) }", (0, math.inf)),
        ("y = Clip(v, l, h) }", (-2, 5)),
        ("y = Clip(v, l) }", (-2, math.inf)),
        ("y = HardSigmoid<alpha: float = 0.25, beta: float = 0.5>(v) }", (-2, 2)),
        ("s = HardSigmoid<alpha: float = 0.25, beta: float = 0.5>(v) y = Mul(s, v) }", (-2, math.inf)),
        ("a = HardSwish(v) b = Clip(v, l, h) y = Add(a, b) }", (-3, math.inf)),
        ("a = HardSwish(v) y = Add(a, v) }", (-math.inf, math.inf)),
        ("s = HardSigmoid(x) y = Mul(s, v) }", (-math.inf, math.inf)),
    ],
)
def test_what_readers_tell_apart(nodes: str, wanted: tuple[float, float]) -> None:
    """And the cut model computes the same: of what a node gives beyond, and of what it gives at the end, in float32."""
    made = model(HEAD + nodes)
    infer_shapes(made)
    value = next(value for node in made.graph for value in node.outputs if value.name == "v")
    assert read_range(value) == pytest.approx(wanted)
    x = np.linspace(-9, 9, 128, dtype=np.float32).reshape(2, 64)
    clipped = cut(made, ["v"])
    assert any(node.outputs[0].name == "v" and node.op_type == "Clip" for node in clipped.graph) == (
        math.inf != wanted[1] or -math.inf != wanted[0]
    )
    before, after = (open_session(each).run({"x": x})["y"] for each in (made, clipped))
    np.testing.assert_array_equal(after, before)


def test_an_output_of_the_graph_and_old_opsets_stay() -> None:
    text = HEAD.replace("=> (float[2,64] y)", "=> (float[2,64] y, float[2,64] v)") + "y = HardSwish(v) }"
    made = model(text)
    infer_shapes(made)
    assert all(node.op_type != "Clip" for node in cut(made, None).graph)
    old = model('<ir_version: 3, opset_import: ["" : 9]> g (float[2] x) => (float[2] y) { v = Neg(x) y = Relu(v) }')
    infer_shapes(old)
    assert [node.op_type for node in cut(old, None).graph] == ["Neg", "Relu"]


def test_calibration_sees_no_more() -> None:
    """In front of a HardSwish the grid ends at −3; all others are what they are without the option."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[1,4,8,8] x) => (float[1,4,8,8] y)
      <float[4,4,1,1] w = {3, -2, 1, 0.5, 1, 4, -3, 1, 2, 1, 1, -4, -1, 2, 2, 2}> { c = Conv(x, w) y = HardSwish(c) }"""
    options = {"preset": "a8w8", "data": "random:8", "weights": "dq"}
    made = {
        is_cut: qdqtool.quantize(model(text), None, cut_ranges=is_cut, **options).quantization.ranges.tensors
        for is_cut in (False, True)
    }
    assert made[False]["c"].low < -3
    assert (made[True]["c"].low, made[True]["c"].high) == (-3, made[False]["c"].high)
    assert {name: made[True][name] for name in ("x", "y")} == {name: made[False][name] for name in ("x", "y")}


def test_nothing_to_cut_is_what_it_was() -> None:
    made = [
        qdqtool.quantize(
            load(DIGITS), None, preset="a8w8", data=CALIB, samples=2, cut_ranges=is_cut
        ).quantization.ranges.tensors
        for is_cut in (False, True)
    ]
    assert made[0] == made[1]
