"""What graphsurgeon drops is back by name after an edit; what it would corrupt is refused with the loss named."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
from onnx import helper
from qdq_passes import from_gs, to_gs
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.annotate import ENCODING, FUSED, Fused
from qdq_passes.numerics.encoding import Encoding

from qdqtool.io.models.load import model_of
from qdqtool.io.models.save import serialize
from tests.golden_messages.refusal import refusal

TEXT = """
<ir_version: 11, opset_import: ["" : 21, "local" : 1]>
main (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {1, 2, 3, 4}, float[2] c = {1, 2}, float[2] unused = {5, 6}>
{
  [mm] h = MatMul(x, w)
  [act] r = Relu(h)
  [choose] cond = ReduceMax<keepdims = 0>(r)
  [is] flag = Cast<to = 9>(cond)
  [if] z = If (flag) <
    then_branch = then () => (float[N,2] t) { [tc] t = Add(r, c) },
    else_branch = else () => (float[N,2] e) <float[2] own = {7, 8}> { [ec] e0 = Mul(r, c) [eo] e = Sub(e0, own) }
  >
  [call] y = local.Twice(z)
}
<domain: "local", opset_import: ["" : 21]>
Twice (a) => (b) { [two] b = Add(a, a) }
"""


Noted = onnx.ModelProto | onnx.GraphProto | onnx.NodeProto | onnx.FunctionProto | onnx.TensorProto | onnx.ValueInfoProto


def text(source: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(source)


def to_bytes(of: ir.Model) -> bytes:
    return bytes(serialize(of).SerializeToString(deterministic=True))


def edit_and_undo(before: ir.Model) -> ir.Model:
    """Through graphsurgeon with a node added, which onnx_ir then takes out again: everything else must be as it was."""
    graph = to_gs(before)
    graph.nodes.append(gs.Node("Exp", "extra", inputs=[graph.inputs[0]], outputs=[gs.Variable("extra")]))
    after = from_gs(graph)
    after.graph.remove(after.graph.node("extra"), safe=True)
    return after


def note(holder: Noted) -> None:
    """Metadata whose keys are out of order."""
    for name in ("b", "a"):
        holder.metadata_props.add(key=name, value=f"value of {name}")


def of_model(proto: onnx.ModelProto) -> None:
    note(proto)
    proto.doc_string, proto.domain, proto.model_version = "model doc", "com.acme", 7
    proto.producer_name, proto.producer_version = "acme", "1.2"


def of_graph(proto: onnx.ModelProto) -> None:
    note(proto.graph)
    proto.graph.doc_string = "graph doc"


def of_nodes(proto: onnx.ModelProto) -> None:
    body = proto.graph.node[4].attribute[0].g
    note(body)
    for node in (*proto.graph.node, *body.node, *proto.functions[0].node):
        note(node)
        node.doc_string = f"doc of {node.name}"
    proto.graph.node[3].attribute[0].doc_string = "doc of an attribute"


def of_values(proto: onnx.ModelProto) -> None:
    proto.graph.value_info.append(helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, ["N", 2]))
    for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        note(info)
        info.doc_string = f"doc of {info.name}"
        info.type.denotation = "IMAGE"
        info.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"


def of_initializers(proto: onnx.ModelProto) -> None:
    note(proto.graph.initializer[0])
    proto.graph.initializer[0].doc_string = "doc of w"
    proto.graph.value_info.append(helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [2]))


def quantization_annotation(proto: onnx.ModelProto) -> None:
    entry = proto.graph.quantization_annotation.add(tensor_name="h")
    entry.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="unused")


def of_functions(proto: onnx.ModelProto) -> None:
    note(proto.functions[0])
    proto.functions[0].doc_string = "doc of Twice"
    proto.functions[0].value_info.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, ["N", 2]))


def device_configurations(proto: onnx.ModelProto) -> None:
    proto.configuration.add(name="two", num_devices=2, device=["CPU", "NPU"])
    used = proto.graph.node[0].device_configurations.add(configuration_id="two", pipeline_stage=1)
    used.sharding_spec.add(tensor_name="w", device=[0, 1])


def initializer_that_is_an_input(proto: onnx.ModelProto) -> None:
    proto.graph.input.insert(0, helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2, 2]))
    proto.graph.input.append(helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, [2]))


def ir_version_3(proto: onnx.ModelProto) -> None:
    del proto.graph.node[2:], proto.functions[:], proto.opset_import[1:]
    proto.ir_version, proto.graph.node[1].output[0] = 3, "y"
    for name, shape in {"c": [2], "w": [2, 2], "unused": [2]}.items():
        proto.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))


def sequences(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("SequenceConstruct", ["x"], ["s"], name="seq"))
    proto.graph.output.append(helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, ["N", 2]))


def names_missing_or_twice(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].name = proto.graph.node[0].name
    proto.graph.node[2].name = ""
    of_nodes(proto)


def empty_and_odd_attributes(proto: onnx.ModelProto) -> None:
    node = proto.graph.node.add(op_type="Op", name="odd", domain="local", input=["x"], output=["odd"])
    for name, kind in {"i": "INTS", "f": "FLOATS", "s": "STRINGS"}.items():
        node.attribute.add(name=name, type=onnx.AttributeProto.AttributeType.Value(kind))
    node.attribute.append(helper.make_attribute("nan", float("nan")))
    node.attribute.append(helper.make_attribute("thirds", [1 / 3, -0.0]))


def sub_byte(proto: onnx.ModelProto) -> None:
    for dtype in (ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fnuz):
        name = f"k_{np.dtype(dtype).name}"
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 0, 1], dtype), name))
        proto.graph.node.add(op_type="Identity", name=f"i_{name}", input=[name], output=[f"o_{name}"])


LOSSES: list[Callable[[onnx.ModelProto], None]] = [
    of_model, of_graph, of_nodes, of_values, of_initializers, quantization_annotation, of_functions, device_configurations,
    initializer_that_is_an_input, ir_version_3, sequences, names_missing_or_twice, empty_and_odd_attributes, sub_byte,
]  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES, ids=[loss.__name__ for loss in LOSSES])
def test_is_put_back(loss: Callable[[onnx.ModelProto], None]) -> None:
    proto = text(TEXT)
    plain = proto.SerializeToString()
    loss(proto)
    assert proto.SerializeToString() != plain
    before = model_of(proto)
    expected = to_bytes(before)
    assert to_bytes(edit_and_undo(before)) == expected
    assert to_bytes(before) == expected


def test_annotations_are_put_back() -> None:
    before = model_of(text(TEXT))
    encoding = Encoding(dtype=ir.DataType.INT8, scale=(0.5,), zero_point=(0,))
    body = before.graph.node("if").attributes["then_branch"].as_graph()
    ENCODING.set(before.graph.node("mm").outputs[0], encoding)
    FUSED.set(body.outputs[0], Fused("mm"))
    after = edit_and_undo(before)
    assert ENCODING.get(after.graph.node("mm").outputs[0]) == encoding
    assert FUSED.get(after.graph.node("if").attributes["then_branch"].as_graph().outputs[0]) == Fused("mm")


def test_weights_captured_by_branches_stay_one_copy_where_they_were() -> None:
    before = model_of(text(TEXT))
    graph = to_gs(before)
    branches = graph.nodes[4].attrs
    captured = branches["then_branch"].nodes[0].inputs[1]
    assert captured is branches["else_branch"].nodes[0].inputs[1]
    captured.values = captured.values * 2
    after = from_gs(graph)
    inner = after.graph.node("if").attributes
    assert [list(inner[name].as_graph().initializers) for name in ("then_branch", "else_branch")] == [[], ["own"]]
    assert after.graph.initializers["c"].const_value is not None
    assert after.graph.initializers["c"].const_value.numpy().tolist() == [2, 4]
    copied = from_gs(to_gs(before).copy(), like=before)  # graph.copy() makes a constant of each branch
    assert to_bytes(copied) == to_bytes(before)


def test_new_constants_of_branches() -> None:
    graph = to_gs(model_of(text(TEXT)))
    branches = [graph.nodes[4].attrs[name] for name in ("then_branch", "else_branch")]
    shared, alone = (gs.Constant(name, np.ones(2, np.float32)) for name in ("shared", "alone"))
    for branch in branches:
        branch.nodes[0].inputs[0] = shared
    branches[0].nodes[0].inputs[1] = alone
    after = from_gs(graph)
    bodies = [after.graph.node("if").attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    assert list(after.graph.initializers) == ["w", "c", "unused", "shared"]
    assert [list(body.initializers) for body in bodies] == [["alone"], ["own"]]


def test_constants_of_functions_become_nodes() -> None:
    graph = to_gs(model_of(text(TEXT)))
    function = graph.functions[0]
    function.nodes[0].inputs[1] = gs.Constant("k", np.ones(1, np.float32))
    (body,) = from_gs(graph).functions.values()
    assert [(node.op_type, node.name) for node in body] == [("Constant", "k_Constant"), ("Add", "two")]


def test_a_new_weight_of_ir_version_3_is_an_input() -> None:
    proto = text(TEXT)
    ir_version_3(proto)
    graph = to_gs(model_of(proto))
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    graph.nodes[0].inputs[1] = gs.Constant("v", np.ones((2, 2), np.float32))
    after = from_gs(graph)
    assert after.ir_version == 3
    assert [value.name for value in after.graph.inputs] == ["x", "c", "unused", "v"]
    assert "w" not in after.graph.initializers


def test_a_default_may_be_overridden_hence_is_no_constant() -> None:
    proto = text(TEXT)
    initializer_that_is_an_input(proto)
    graph = to_gs(model_of(proto))
    assert isinstance(graph.tensors()["w"], gs.Variable)
    graph.inputs[0].to_constant(np.zeros((2, 2), np.float32))  # frozen on purpose
    del graph.inputs[0]
    after = from_gs(graph)
    assert [value.name for value in after.graph.inputs] == ["x", "unused"]
    assert not after.graph.initializers["w"].is_graph_input()


def optional_input(proto: onnx.ModelProto) -> None:
    element = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    proto.graph.input.append(helper.make_value_info("maybe", helper.make_optional_type_proto(element)))


def sequence_of_optionals(proto: onnx.ModelProto) -> None:
    element = helper.make_optional_type_proto(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2]))
    proto.graph.value_info.append(helper.make_value_info("r", helper.make_sequence_type_proto(element)))


def sparse_input(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_sparse_tensor_value_info("thin", onnx.TensorProto.FLOAT, [2]))


def type_attribute(proto: onnx.ModelProto) -> None:
    attribute = helper.make_attribute("type", helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2]))
    proto.graph.node.add(op_type="Optional", name="opt", output=["none"]).attribute.append(attribute)


def bytes_attribute(proto: onnx.ModelProto) -> None:
    node = proto.graph.node.add(op_type="Op", name="raw", domain="local", output=["none"])
    node.attribute.add(name="blob", type=onnx.AttributeProto.STRING, s=b"\xff\xfe")


def tensors_attribute(proto: onnx.ModelProto) -> None:
    node = proto.graph.node.add(op_type="Op", name="many", domain="local", output=["none"])
    node.attribute.add(name="all", type=onnx.AttributeProto.TENSORS)


def overload(proto: onnx.ModelProto) -> None:
    proto.functions[0].overload = proto.graph.node[5].overload = "fast"


REFUSED: list[Callable[[onnx.ModelProto], None]] = [
    optional_input,
    sequence_of_optionals,
    sparse_input,
    type_attribute,
    bytes_attribute,
    tensors_attribute,
    overload,
]


@pytest.mark.parametrize("loss", REFUSED, ids=[loss.__name__ for loss in REFUSED])
def test_is_refused(loss: Callable[[onnx.ModelProto], None]) -> None:
    proto = text(TEXT)
    loss(proto)
    before = model_of(proto)
    with refusal(UnsupportedError) as caught:
        to_gs(before)
    assert caught.value.exit_code == 3


WRONGLY_WRITTEN = [
    ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2fnuz, np.object_,
]  # fmt: skip
WELL_WRITTEN = [
    np.float32, np.float16, np.float64, np.int8, np.uint16, np.int64, np.bool_, np.complex64, ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu,
]  # fmt: skip


def holding(dtype: type) -> ir.Model:
    """``w`` holds three elements of ``dtype``."""
    values = np.array([b"a", b"b", b"c"], object) if dtype is np.object_ else np.array([1, 0, 1]).astype(dtype)
    proto = text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1] x) => (float[1] y) { y = Identity(x) z = Shape(w) }'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    return model_of(proto)


@pytest.mark.parametrize("dtype", WRONGLY_WRITTEN, ids=lambda dtype: np.dtype(dtype).name)
def test_edited_values_that_graphsurgeon_writes_wrongly_are_refused(dtype: type) -> None:
    before = holding(dtype)
    graph = to_gs(before)
    weight = graph.tensors()["w"]
    assert weight.values.shape == (3,)
    assert to_bytes(from_gs(graph)) == to_bytes(before)  # read, not edited
    weight.values = weight.values[::-1].copy()
    if dtype is not np.object_:
        assert to_bytes(from_gs(graph)) == to_bytes(before)  # 1, 0, 1 backwards: the same values
    weight.values = weight.values[:2]
    with refusal(UnsupportedError):
        from_gs(graph)


@pytest.mark.parametrize("dtype", WELL_WRITTEN, ids=lambda dtype: np.dtype(dtype).name)
def test_edited_values_of_other_types_are_exact(dtype: type) -> None:
    graph = to_gs(holding(dtype))
    weight = graph.tensors()["w"]
    weight.values = np.array([1, 1, 1, 0], weight.values.dtype)
    after = model_of(onnx.ModelProto.FromString(to_bytes(from_gs(graph))))
    tensor = after.graph.initializers["w"].const_value
    assert tensor is not None
    assert tensor.numpy().dtype == np.dtype(dtype)
    assert tensor.numpy()[:3].tolist() == [1, 1, 1]
    assert str(after.graph.initializers["w"].shape) == "[4]"


def test_a_new_int4_constant_is_refused() -> None:
    graph = to_gs(model_of(text(TEXT)))
    graph.nodes[0].inputs[1] = gs.Constant("w4", np.ones((2, 2), ml_dtypes.int4))
    with refusal(UnsupportedError):
        from_gs(graph)


def test_sparse_values_and_unknown_types_of_other_graphs_are_refused() -> None:
    proto = text('<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Add(x, thin) }')
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "thin")
    indices = onnx.numpy_helper.from_array(np.zeros(1, np.int64))
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    with refusal(UnsupportedError):
        from_gs(gs.import_onnx(proto))
    graph = to_gs(model_of(text(TEXT)))
    graph.outputs[0].type = "map_type"
    graph.outputs[0].dtype = np.int64
    with refusal(UnsupportedError):
        from_gs(graph)
    graph.outputs[0].dtype = "nonsense"
    with refusal(ModelError):
        from_gs(graph)
