"""Programs behind EPContext nodes: shapes, memory, and what is wrong with a program."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqError

from qdqtool.runtime.provider import open_session
from tests.golden_messages.refusal import refusal as refused
from tests.npu.small_programs import (
    HEADER,
    MIXED,
    context_model,
    devices,
    equal,
    feed,
    mixed,
    payload,
    refusal,
    run,
    session,
)
from tests.npu.test_compiling import Recorder, attached

HEAD = '<ir_version: 8, opset_import: ["" : 17, "ai.qdqtool" : 1]>\n'
ADD = (
    'ai.qdqtool.Add <mode = "integer", rounding = "half_up", overflow = "saturate", a_zero_point = 0, b_zero_point = 0, '
    "a_multiplier = 1, b_multiplier = 1, shift = 0, y_zero_point = 0, y_type = 2>"
)


def test_it_computes() -> None:
    assert equal(run(context_model(), feed()), mixed(feed()))


def test_every_batch_has_its_plan() -> None:
    """More shapes than plans are remembered, and back again."""
    made = session(context_model())
    for batch in [*range(1, 14), 0, 3, 1, 7]:
        assert equal(made.run(None, {"x": feed(batch, batch)}), mixed(feed(batch, batch)))


def test_static_shapes_too() -> None:
    text = MIXED.replace("N", "2")
    assert equal(run(context_model(text), feed()), mixed(feed()))


def test_outputs_that_nothing_computes() -> None:
    """An input, a constant, and one value under two names: copied."""
    text = (
        HEAD
        + """program (uint8[4] x) => (uint8[4] a, uint8[4] b, uint8[2, 2] c, uint8[2] d)
    <int64[2] shape = {2, 2}, uint8[2] k = {7, 9}>
    {
      a = Identity (x)
      b = Identity (a)
      c = Reshape (b, shape)
      d = Identity (k)
    }"""
    )
    x = np.array([1, 2, 3, 4], np.uint8)
    assert equal(run(context_model(text), x), [x, x, x.reshape(2, 2), np.array([7, 9], np.uint8)])


def test_an_output_that_others_read() -> None:
    """a is written where it goes and read there; memory of what died is used again."""
    lines = [f"v{i + 1} = {ADD} (v{i}, one)" for i in range(1, 20)]
    text = (
        HEAD
        + f"""program (uint8[1, 64] x) => (uint8[1, 64] a, uint8[64] y)
    <uint8[1] one = {{1}}, int64[1] shape = {{64}}>
    {{
      a = {ADD} (x, one)
      v1 = {ADD} (a, one)
      {chr(10).join(lines)}
      sum = {ADD} (v20, a)
      y = Reshape (sum, shape)
    }}"""
    )
    x = np.arange(64, dtype=np.uint8).reshape(1, 64)
    assert equal(run(context_model(text), x), [x + 1, (2 * x + 22)[0]])


def test_names_may_change_outside() -> None:
    """Inlining a function or a body renames values; places stay."""
    assert equal(run(context_model(rename="body/"), feed()), mixed(feed()))


def test_a_constant_before_it() -> None:
    """onnxruntime folds what stands before the node into an initializer: still an input."""
    model = context_model(MIXED.replace("N", "2"))
    node = onnx.helper.make_node("Identity", ["k"], ["x"], name="before")
    model.graph.node.insert(0, node)
    model.graph.initializer.append(onnx.numpy_helper.from_array(feed(), "k"))
    model.graph.value_info.append(model.graph.input.pop())
    assert equal(run(model), mixed(feed()))


def test_a_node_that_reads_more_than_its_program() -> None:
    """What it reads of constants alone is inside; onnxruntime 1.23 wants an input nevertheless."""
    text = HEAD + "program () => (uint8[2] y) <uint8[2] k = {7, 9}> { y = Identity (k) }"
    model = context_model(text)
    model.graph.node[0].input.append("k")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7, 9], np.uint8), "k"))
    assert equal(session(model).run(None, {}), [np.array([7, 9], np.uint8)])


def test_the_input_must_fit() -> None:
    model = context_model(MIXED.replace("N", "2"), payload(MIXED.replace("N", "5")))
    with pytest.raises(Exception, match=r"input 'x' of the program is type 2 \[5, 3, 4\].*gives type 2 \[2, 3, 4\]"):
        run(model, feed())


def test_another_type_outside() -> None:
    model = context_model()
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    assert "output 'y' is of type 2 in the program, 6 in the model" in refusal(model)


def test_a_shape_that_no_kernel_takes_names_the_node() -> None:
    text = MIXED.replace("uint8[N, 3, 4] x", "uint8[N, M] x")
    model = context_model(text)
    with pytest.raises(Exception, match=r"node 't' \(Transpose\)"):
        run(model, feed().reshape(2, 12))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("y = Softplus (x)", "node 'y' (Softplus): there is no kernel for it"),
        ("y = ai.qdqtool.Nothing (x)", "(Nothing): there is no kernel for it in ai.qdqtool"),
        ("y = Identity (z)\nz = Identity (x)", "nothing before it computes its input 'z'"),
        ("a = Identity (x)\na = Identity (x)\ny = Identity (a)", "the program defines 'a' twice"),
        ("z = Identity (x)", "nothing computes the program's output 'y'"),
        ("y = ai.qdqtool.Add (x)", "has 1 inputs, not 2"),
        ("y = ai.qdqtool.Add <shift = 0.5> (x, x)", "attribute 'shift' is unknown, or has another type"),
        ("y = ai.qdqtool.Add <colour = 3> (x, x)", "attribute 'colour' is unknown"),
        ("y = Transpose <perm = [0, 0]> (x)", "(Transpose)"),
    ],
)
def test_programs_that_are_wrong(program: str, reason: str) -> None:
    text = HEAD + "program (uint8[4] x) => (uint8[4] y) { " + program + " }"
    whole = HEAD + "program (uint8[4] x) => (uint8[4] y) { y = Identity (x) }"
    assert reason in refusal(context_model(whole, payload(text)))


def test_operators_of_another_version() -> None:
    data = payload(MIXED.replace('"ai.qdqtool" : 1', '"ai.qdqtool" : 2'))
    assert "expected operators ai.qdqtool of version 1, found 2" in refusal(context_model(MIXED, data))


def test_it_says_what_it_was_compiled_for() -> None:
    assert "expected target other, found acme_npu (sha256 abababababab" in refusal(context_model(), target="other")
    assert "expected target acme_npu (sha256 0000" in refusal(context_model(), target_sha256="0" * 64)
    with attached(Recorder()):  # the library itself reads no files of targets
        for target in ("acme_npu", "some/where/acme_npu.toml"):
            made = session(context_model(), target=target, target_sha256=HEADER.target_sha256)
            assert made.get_providers()[0] == "NpuSimExecutionProvider"
    assert "some/where/acme_npu.toml: no such file" in refusal(context_model(), target="some/where/acme_npu.toml")


def test_options_that_mean_nothing() -> None:
    """Told by the session's refusal, never by a session on the CPU."""
    assert "no option 'colour'" in refusal(context_model(), colour="red")
    assert "no instruction set 'mmx'" in refusal(context_model(), isa="mmx")
    assert equal(session(context_model(), isa="portable").run(None, {"x": feed()}), mixed(feed()))


def test_our_own_sessions_do_not_turn_to_the_cpu() -> None:
    devices()
    text = '<ir_version: 8, opset_import: ["" : 17]> m (float[4] x) => (float[4] y) { y = Relu (x) }'
    with refused(QdqError):
        open_session(ir.serde.deserialize_model(onnx.parser.parse_model(text)), {"colour": "red"})
