"""The graphsurgeon bridge: the well-known uses on plain, external-data and QDQ models, and round trips without a difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
from qdq_passes import from_gs, to_gs
from qdq_passes.errors import ModelError
from qdq_passes.graph.annotate import ORIGIN, Origin
from qdq_passes.graph.nesting import NAME_SCOPES, scope_of
from qdq_passes.verification.rules import verify

from qdqtool.io.models.load import load
from qdqtool.io.models.save import serialize
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

ROOT = Path(__file__).parents[3]
SAMPLES = sorted([*(ROOT / "sample_models").glob("*.onnx"), ROOT / "qdqtool" / "_demo" / "digits.onnx"])

PLAIN = """
plain (float[N,4] x) => (float[N,2] y)
<float[4,3] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12}, float[3] b = {0.5, -0.5, 0.25}, float[3,2] v = {1, 2, 3, 4, 5, 6}>
{
  [mm] h = MatMul(x, w)
  [add] s = Add(h, b)
  [act] r = Relu(s)
  [last] y = MatMul(r, v)
}
"""
QDQ = """
qdq (float[N,4] x) => (float[N,2] y)
<int8[4,3] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12}, float[3,2] v = {1, 2, 3, 4, 5, 6},
 float one = {0.0625}, int8 zero = {0}>
{
  [x_q] xq = QuantizeLinear(x, one, zero)
  [x_dq] xd = DequantizeLinear(xq, one, zero)
  [w_dq] wd = DequantizeLinear(w, one, zero)
  [mm] h = MatMul(xd, wd)
  [act] r = Relu(h)
  [r_q] rq = QuantizeLinear(r, one, zero)
  [r_dq] rd = DequantizeLinear(rq, one, zero)
  [last] y = MatMul(rd, v)
}
"""
MODELS: dict[str, Callable[[], ir.Model]] = {
    "plain": lambda: model(PLAIN),
    "external data": lambda: load(ROOT / "sample_models" / "external_data.onnx"),
    "int8 QDQ": lambda: model(QDQ),
    "int4 QDQ": lambda: load(ROOT / "sample_models" / "int4_weights.onnx"),
}
each_model = pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
Arrays = dict[str, npt.NDArray[Any]]


def to_bytes(of: ir.Model) -> bytes:
    return bytes(serialize(of).SerializeToString(deterministic=True))


def feed_for(of: ir.Model) -> Arrays:
    value = of.graph.inputs[0]
    assert value.shape is not None
    shape = [2 if i == 0 else int(dim) for i, dim in enumerate(value.shape)]  # type: ignore[arg-type]
    return {str(value.name): np.random.default_rng(0).uniform(-2, 2, shape).astype(np.float32)}


def run(of: ir.Model, feed: Arrays, extra: tuple[str, ...] = ()) -> Arrays:
    assert not [finding for finding in verify(of) if finding.level in ("fatal", "error")]
    return open_session(of, extra_outputs=extra).run(feed)


def assert_same(a: Arrays, b: Arrays) -> None:
    assert {n: v.tobytes() for n, v in a.items()} == {n: v.tobytes() for n, v in b.items()}


def assert_weights_shared(before: ir.Model, after: ir.Model) -> None:
    """Every weight that was not touched is the same tensor: nothing was read, copied or moved into the model."""
    for name, value in before.graph.initializers.items():
        assert after.graph.initializers[name].const_value is value.const_value


def relu_of(graph: gs.Graph) -> gs.Node:
    return next(node for node in graph.nodes if node.op == "Relu")


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_round_trip_changes_nothing(path: Path) -> None:
    before = load(path)
    after = from_gs(to_gs(before))
    assert to_bytes(after) == to_bytes(before) == to_bytes(load(path))
    assert_weights_shared(before, after)


def test_there_are_samples() -> None:
    assert {"digits", "if_branch", "loop_body", "local_function", "int4_weights", "external_data"} <= {
        path.stem for path in SAMPLES
    }


@each_model
def test_add_a_node(make: Callable[[], ir.Model]) -> None:
    before = make()
    graph = to_gs(before)
    relu = relu_of(graph)
    result = relu.outputs[0]
    raw = gs.Variable(f"{result.name}_raw", dtype=np.float32)
    relu.outputs[0] = raw
    factor = gs.Constant("factor", np.array([2.0], np.float32))
    graph.nodes.append(gs.Node("Mul", inputs=[raw, factor], outputs=[result]))  # at the end: `run` checks the order
    after = from_gs(graph)
    (added,) = (node for node in after.graph if node.op_type == "Mul")
    assert added.name == f"{result.name}_Mul"
    assert_weights_shared(before, after)
    found = run(after, feed_for(before), (raw.name, result.name))
    assert np.array_equal(found[result.name], 2 * found[raw.name])


@each_model
def test_remove_a_node(make: Callable[[], ir.Model]) -> None:
    before = make()
    graph = to_gs(before)
    relu = relu_of(graph)
    source, result = relu.inputs[0], relu.outputs[0]
    for reader in list(result.outputs):
        reader.inputs[list(reader.inputs).index(result)] = source
    relu.outputs.clear()
    after = from_gs(graph.cleanup())
    expected = make()
    node = next(node for node in expected.graph if node.op_type == "Relu")
    assert node.inputs[0] is not None
    node.outputs[0].replace_all_uses_with(node.inputs[0])
    expected.graph.remove(node, safe=True)
    assert to_bytes(after) == to_bytes(expected)
    assert_same(run(after, feed_for(before)), run(expected, feed_for(before)))


@each_model
def test_isolate_a_subgraph(make: Callable[[], ir.Model]) -> None:
    before = make()
    graph = to_gs(before)
    relu = relu_of(graph)
    graph.inputs = [relu.inputs[0].to_variable(np.float32, ["N", None])]
    name, output = relu.inputs[0].name, graph.outputs[0].name
    graph.cleanup()
    after = from_gs(graph)
    assert [value.name for value in after.graph.inputs] == [name]
    assert len(after.graph) < len(before.graph)
    whole = run(before, feed_for(before), (name,))
    assert_same(run(after, {name: whole[name]}), {output: whole[output]})


@each_model
def test_replace_a_subgraph(make: Callable[[], ir.Model]) -> None:
    before = make()
    old = next(node for node in before.graph if node.op_type == "Relu")
    old.metadata_props[NAME_SCOPES] = "['', 'mlp', 'act']"
    graph = to_gs(before)
    relu = relu_of(graph)
    source, result = relu.inputs[0], relu.outputs[0]
    source.outputs.clear()
    result.inputs.clear()
    low = graph.layer(op="Neg", inputs=[source], outputs=["negated"])[0]
    low.dtype = np.float32
    high = graph.layer(op="Min", inputs=[low, gs.Constant("zero_", np.zeros(1, np.float32))], outputs=["clipped"])[0]
    graph.layer(op="Neg", inputs=[high], outputs=[result])
    graph.cleanup().toposort()
    after = from_gs(graph)
    made = [node for node in after.graph if node.op_type in ("Neg", "Min")]
    assert len(made) == 3
    assert {scope_of(node) for node in made} == {"mlp"}
    assert {ORIGIN.get(node) for node in made} == {Origin((str(old.name),))}
    whole, feed = run(before, feed_for(before)), feed_for(before)
    assert all(np.array_equal(value, whole[name]) for name, value in run(after, feed).items())  # -0.0 equals 0.0


@each_model
def test_fold_constants(make: Callable[[], ir.Model]) -> None:
    before = make()
    graph = to_gs(before)
    relu = relu_of(graph)
    result = relu.outputs[0]
    relu.outputs[0] = gs.Variable("raw", dtype=np.float32)
    two = gs.Constant("two", np.array([2.0], np.float32))
    half = graph.layer(op="Reciprocal", inputs=[two], outputs=["half"])[0]
    one = graph.layer(op="Mul", inputs=[two, half], outputs=["one_"])[0]
    graph.nodes.append(gs.Node("Mul", "scale", inputs=[relu.outputs[0], one], outputs=[result]))
    graph.toposort().fold_constants().cleanup()
    after = from_gs(graph)
    operators = [node.op_type for node in after.graph]
    assert "Reciprocal" not in operators
    assert operators.count("DequantizeLinear") == [n.op_type for n in before.graph].count("DequantizeLinear")
    assert after.graph.initializers[one.name].const_value is not None
    assert_weights_shared(before, after)
    assert_same(run(after, feed_for(before)), run(before, feed_for(before)))


def test_constant_node_becomes_initializer_without_renaming_its_tensor() -> None:
    before = model(
        "g (float[2] x) => (float[2] y) { [c] k = Constant<value = float[2] inner {1, 2}>() [a] y = Add(x, k) }"
    )
    bytes_before = to_bytes(before)
    after = from_gs(to_gs(before).fold_constants().cleanup())
    assert list(after.graph.initializers) == ["k"]
    assert [node.name for node in after.graph] == ["a"]
    assert b"inner" not in to_bytes(after)
    assert to_bytes(before) == bytes_before


def test_float_constants_fold_to_float32() -> None:
    text = "g (float[2] x) => (float[2] y) { k = Constant<value_float = 0.1>() j = Neg(k) y = Add(x, j) }"
    before = model(text)
    after = from_gs(to_gs(before).fold_constants().cleanup())
    assert [node.op_type for node in after.graph] == ["Add"]
    feed: Arrays = {"x": np.ones(2, np.float32)}
    assert_same(run(after, feed), run(before, feed))


def test_folding_is_right_about_a_part_of_a_shape() -> None:
    text = """g (float[2,3,4] x) => (int64[1] y, int64[3] z) {
      s = Shape<start = 1, end = 2>(x) y = Abs(s) z = Shape(x) e = Expand(x, z) }"""
    before = model(text)
    after = from_gs(to_gs(before).fold_constants().cleanup())
    assert [node.op_type for node in after.graph] == ["Shape", "Abs"]
    feed: Arrays = {"x": np.ones((2, 3, 4), np.float32)}
    assert_same(run(after, feed), run(before, feed))


def test_a_flattened_branch_keeps_its_scopes() -> None:
    text = """g (float[2] x) => (float[2] y) <bool c = {1}> {
      [if] y = If (c) <then_branch = t () => (float[2] u) { [deep] u = Relu(x) },
                       else_branch = e () => (float[2] v) { [other] v = Abs(x) }> }"""
    before = model(text)
    before.graph.node(0).attributes["then_branch"].as_graph().node(0).metadata_props[NAME_SCOPES] = "['', 'mlp', 'act']"
    after = from_gs(to_gs(before).fold_constants().cleanup())
    assert [(node.name, scope_of(node)) for node in after.graph] == [("deep", "mlp")]


def test_edited_weights_are_new_and_read_ones_are_not() -> None:
    before = model(PLAIN)
    graph = to_gs(before)
    tensors = graph.tensors()
    assert tensors["w"].values.shape == (4, 3)  # reading replaces the lazy values
    tensors["b"].values = tensors["b"].values.astype(np.float64)
    tensors["v"].values[0, 0] = 100
    after = from_gs(graph).graph.initializers
    assert after["w"].const_value is before.graph.initializers["w"].const_value
    assert (after["b"].dtype, after["b"].type) == (ir.DataType.DOUBLE, ir.TensorType(ir.DataType.DOUBLE))
    assert after["v"].const_value is not None
    assert after["v"].const_value.numpy()[0, 0] == 100
    assert before.graph.initializers["v"].const_value is not None
    assert before.graph.initializers["v"].const_value.numpy()[0, 0] == 1


def test_external_data_stays_external_under_a_new_name() -> None:
    before = MODELS["external data"]()
    graph = to_gs(before)
    name, constant = next((n, t) for n, t in graph.tensors().items() if isinstance(t, gs.Constant))
    constant.name = "renamed"
    tensor = from_gs(graph).graph.initializers["renamed"].const_value
    original = before.graph.initializers[name].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert isinstance(original, ir.ExternalTensor)
    assert (tensor.path, tensor.offset, original.name) == (original.path, original.offset, name)


def test_the_model_is_a_snapshot() -> None:
    before = model(PLAIN)
    bytes_before = to_bytes(before)
    graph = to_gs(before)
    for node in list(before.graph):
        node.metadata_props["later"] = "yes"
    assert to_bytes(from_gs(graph)) == bytes_before


def test_a_copied_graph_and_one_of_graphsurgeons_own_need_like() -> None:
    before = model(PLAIN)
    before.metadata_props["key"] = "value"
    assert to_bytes(from_gs(to_gs(before).copy(), like=before)) == to_bytes(before)
    assert to_bytes(from_gs(gs.import_onnx(serialize(before)), like=before)) == to_bytes(before)
    assert not from_gs(to_gs(before).copy()).metadata_props


def test_a_graph_made_from_nothing() -> None:
    graph = gs.Graph(opset=21)
    x, y = gs.Variable("x", np.float32, ["N", 2]), gs.Variable("y", np.float32, ["N", -1])
    graph.inputs, graph.outputs = [x], [y]
    graph.nodes = [gs.Node("Concat", inputs=[x, x], outputs=[y], attrs={"axis": 1})]
    made = from_gs(graph)
    assert (made.ir_version, made.opset_imports, made.graph.node(0).name) == (10, {"": 21}, "y_Concat")
    assert str(made.graph.outputs[0].shape) == "[N,None]"
    ones = np.ones((1, 2), np.float32)
    assert run(made, {"x": ones})["y"].shape == (1, 4)


def test_graphsurgeons_own_export_still_works() -> None:
    exported = gs.export_onnx(to_gs(MODELS["external data"]()))
    expected = MODELS["external data"]()
    assert_same(run(ir.from_proto(exported), feed_for(expected)), run(expected, feed_for(expected)))


def test_an_edited_opset_and_a_new_domain_are_imported() -> None:
    graph = to_gs(model(PLAIN))
    graph.opset = 20
    relu_of(graph).domain = "com.other"
    assert from_gs(graph).opset_imports == {"": 20, "com.acme": 1, "com.other": 1}


def test_attributes_keep_their_kind() -> None:
    text = "g (float[2] x) => (float[2] y) { y = com.acme.Op<a = 1.0, b = [1.0, 2.0], c = 3, d = [1, 2]>(x) }"
    graph = to_gs(model(text))
    attributes = graph.nodes[0].attrs
    attributes.update(a=2, b=[3], d=[], e=np.float16, f=np.array([1, 2]))
    found = from_gs(graph).graph.node(0).attributes
    assert [str(found[name].type) for name in "abcde"] == ["FLOAT", "FLOATS", "INT", "INTS", "INT"]
    assert (found["a"].value, found["b"].value, found["d"].value, found["f"].value) == (2.0, (3.0,), (), (1, 2))
    attributes["g"] = []
    with refusal(ModelError):
        from_gs(graph)


def broken(edit: Callable[[gs.Graph], object]) -> None:
    graph = to_gs(model(PLAIN))
    edit(graph)
    with refusal(ModelError):
        from_gs(graph)


def test_broken_graphs_are_named() -> None:
    def twice(graph: gs.Graph) -> None:
        graph.nodes.append(gs.Node("Exp", inputs=[graph.inputs[0]], outputs=[graph.outputs[0]]))

    def cycle(graph: gs.Graph) -> None:
        graph.nodes[0].inputs[0] = graph.nodes[-1].outputs[0]

    def same_name(graph: gs.Graph) -> None:
        graph.nodes[1].inputs[1] = gs.Constant("w", np.zeros(3, np.float32))

    def no_type(graph: gs.Graph) -> None:
        graph.outputs.append(graph.layer(op="Exp", inputs=[graph.inputs[0]], outputs=["e"])[0])

    def nameless(graph: gs.Graph) -> None:
        graph.nodes[0].inputs[1] = gs.Constant("", np.zeros((4, 3), np.float32))

    for edit in (nameless, twice, cycle, lambda graph: graph.nodes.pop(0), same_name, no_type):
        broken(edit)


def test_its_log_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    gs.logger.G_LOGGER.warning("beware")
    captured = capsys.readouterr()
    assert (captured.out, "beware" in captured.err) == ("", True)
