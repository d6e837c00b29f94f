"""Cutting a graph into stages: what is together, what crosses, and that the stages compute what the graph computes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import UnsupportedError
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.llm.run.stages import StageGraph, cut_stages, touched
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model as model_of
from tests.golden_messages.refusal import refusal

#: Relu stands for a program. b and d wait for no program; c reads the first, e both; w is a constant made of constants.
TEXT = """<ir_version: 10, opset_import: ["" : 18]>
main (float[4] x, float[4] z) => (float[4] y, float[4] u)
<float[4] k = {1, 2, 3, 4}>
{
    [a] a = Neg(x)
    [p0] p = Relu(a)
    [made] w = Neg(k)
    [b] b = Add(z, w)
    [c] c = Mul(p, w)
    [p1] q = Relu(b)
    [e] e = Add(c, q)
    [p2] y = Relu(e)
    [d] u = Sub(p, b)
}"""


def is_program(node: ir.Node) -> bool:
    return node.op_type == "Relu"


def cut(prefix: str = "") -> list[StageGraph]:
    work = model_of(TEXT)
    run_pipeline(work, "infer-shapes")
    return cut_stages(work, is_program, prefix)


def ends(stage: StageGraph) -> tuple[list[str | None], list[str | None]]:
    return [v.name for v in stage.model.graph.inputs], [v.name for v in stage.model.graph.outputs]


def test_stages_in_an_order_in_which_they_run() -> None:
    found = cut()
    assert [(stage.name, sorted(stage.nodes)) for stage in found] == [
        ("cpu_0", ["a", "b"]),
        ("p0", ["p0"]),
        ("cpu_1", ["c", "d"]),
        ("p1", ["p1"]),
        ("cpu_2", ["e"]),
        ("p2", ["p2"]),
    ]
    assert ends(found[0]) == (["x", "z"], ["a", "b"])
    assert ends(found[2]) == (["p", "b"], ["c", "u"])
    assert ends(found[4]) == (["c", "q"], ["e"])
    assert [stage.node is None for stage in found] == [True, False] * 3


def test_constants_made_of_constants_are_in_each_stage_that_reads_them() -> None:
    found = {stage.name: {node.name for node in stage.model.graph} for stage in cut()}
    assert "made" in found["cpu_0"]
    assert "made" in found["cpu_1"]


@pytest.mark.parametrize("prefix", ["", "part_2/"])
def test_the_stages_compute_what_the_graph_computes(prefix: str) -> None:
    random = np.random.default_rng(3)
    feed = {name: random.standard_normal(4).astype(np.float32) for name in ("x", "z")}
    wanted = open_session(model_of(TEXT)).run(feed)
    values: dict[str, np.ndarray] = dict(feed)
    for stage in cut(prefix):
        session = open_session(stage.model)
        values |= session.run({name: values[name] for name in session.input_names})
    for name, array in wanted.items():
        np.testing.assert_array_equal(values[name], array)
    assert all(name.startswith(prefix) for name in values.keys() - wanted.keys() - feed.keys())


def test_without_programs_there_is_one_stage() -> None:
    work = model_of(TEXT)
    run_pipeline(work, "infer-shapes")
    (found,) = cut_stages(work, lambda node: False)
    assert found.name == "cpu_0"
    assert len(found.nodes) == 8


def test_a_value_between_stages_needs_a_static_shape() -> None:
    work = model_of(
        TEXT.replace("float[4] x", "float[n] x").replace("float[4] y, float[4] u", "float[n] y, float[n] u")
    )
    run_pipeline(work, "infer-shapes")
    with refusal(UnsupportedError):
        cut_stages(work, is_program)


def test_tensors_of_the_cache_by_name() -> None:
    from tests.cases.tiny_decoder import Form, _Static

    decoder = _Static(Form(), 1, 4, 16).decoder()
    first = decoder.cache[0]
    assert touched(decoder, ["nothing"]) == frozenset()
    assert touched(decoder, [first.past, "x"]) == touched(decoder, [first.present]) == {(first.layer, first.part)}
