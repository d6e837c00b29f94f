"""Loading: every text form gives the same model, names are given in memory, nothing heavy is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from qdq_passes.core.names import UNNAMED
from qdq_passes.graph import annotate
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.verification.rules import verify

from qdqtool.io.models.load import ANNOTATED, DECLARED, LARGE, SOURCE, load, model_of
from qdqtool.io.models.save import save

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
  a = Add (x, w)
  [Relu_4] b = Relu (a)
  y = If (c) <then_branch = t () => (float[2] u) { u = Neg (b) }, else_branch = e () => (float[2] v) { v = Abs (b) }>
}"""


def proto() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def names(model: ir.Model) -> list[str | None]:
    return [node.name for node in model.graph.all_nodes()]


@pytest.mark.parametrize("extension", [".onnx", ".onnxtxt", ".json", ".textproto", ".pb", ""])
def test_formats(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"m{extension}"
    form = onnx.serialization.registry.get_format_from_file_extension(extension) or "protobuf"
    path.write_bytes(onnx.serialization.registry.get(form).serialize_proto(proto()))
    model = load(path)
    assert [node.op_type for node in model.graph.all_nodes()] == ["Add", "Relu", "If", "Neg", "Abs"]
    assert model.meta[SOURCE] == str(path)
    assert verify(model) == []


def test_nameless_nodes_get_unique_names_and_a_mark() -> None:
    model = model_of(proto())
    assert names(model) == ["Add_0", "Relu_4", "If_2", "Neg_3", "Abs_4"]
    assert [n.meta.get(UNNAMED) for n in model.graph.all_nodes()] == ["Add_0", None, "If_2", "Neg_3", "Abs_4"]
    assert names(model_of(proto())) == names(model)


def test_an_invented_name_that_is_taken() -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { [Relu_1] a = Neg (x)  y = Relu (a) }'
    assert names(model_of(onnx.parser.parse_model(text))) == ["Relu_1", "Relu_1_"]


def test_nodes_of_functions_and_of_their_bodies_are_named() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "f" : 1]> g (bool c, float[2] x) => (float[2] y) { y = f.F (c, x) }
        <domain: "f", opset_import: ["" : 21]> F (c, a) => (b) {
          b = If (c) <then_branch = t () => (float[2] u) { u = Neg (a) }, else_branch = e () => (float[2] v) { v = Abs (a) }> }"""
    model = model_of(onnx.parser.parse_model(text))
    assert names(model) == ["F_0"]
    assert [node.name for node in model.functions["f", "F", ""].all_nodes()] == ["If_1", "Neg_2", "Abs_3"]


def test_the_long_name_of_the_default_domain() -> None:
    text = '<ir_version: 10, opset_import: ["ai.onnx" : 21]> g (float[2] x) => (float[2] y) { y = ai.onnx.Relu (x) }'
    model = model_of(onnx.parser.parse_model(text))
    assert dict(model.opset_imports) == {"": 21}
    assert verify(model) == []


def test_value_info_of_initializers_is_remembered() -> None:
    source = proto()
    source.graph.initializer.add().CopyFrom(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "declared"))
    source.graph.value_info.append(onnx.helper.make_tensor_value_info("declared", 1, [2]))
    model = model_of(source)
    assert [DECLARED in v.meta for v in model.graph.initializers.values()] == [False, True]


def test_external_data_is_mapped_when_it_is_read(tmp_path: Path) -> None:
    weights = np.arange(6, dtype=np.float32)
    (tmp_path / "w.data").write_bytes(b"\0" * 64 + weights.tobytes())
    (tmp_path / "m.onnxtxt").write_text(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[6] x) => (float[6] y)
           <float[6] w = ["location": "./w.data", "offset": "64", "length": "24"]> { y = Add (x, w) }"""
    )
    tensor = load(tmp_path / "m.onnxtxt").graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.raw is None
    assert tensor.numpy().tolist() == weights.tolist()


def test_external_data_of_constants_and_of_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.data").write_bytes(np.array([3, 4], np.float32).tobytes())
    source = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "f" : 1]> g (float[2] x) => (float[2] y) { y = f.F (x) }
           <domain: "f", opset_import: ["" : 21]> F (a) => (b) { w = Constant <value = float[2] {0, 0}> ()  b = Add (a, w) }"""
    )
    value = source.functions[0].node[0].attribute[0].t
    onnx.external_data_helper.set_external_data(_raw(value), "w.data")
    value.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    monkeypatch.chdir(tmp_path)
    model = load("m.onnx")
    constant = model.functions["f", "F", ""][0].attributes["value"].as_tensor()
    monkeypatch.chdir("/")
    assert constant.numpy().tolist() == [3, 4]
    assert model.meta[SOURCE] == str(tmp_path / "m.onnx")


def _raw(tensor: onnx.TensorProto) -> onnx.TensorProto:
    tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
    tensor.ClearField("float_data")
    return tensor


def test_an_operator_only_onnxruntime_knows_loads() -> None:
    """As every file of onnxruntime-genai has it: in the default domain."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) <float[2] w = {1, 1}> {
        y = SimplifiedLayerNormalization (x, w) }"""
    source = onnx.parser.parse_model(text)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(source)
    assert [f.level for f in verify(model_of(source))] == ["note"]


def test_what_a_verifier_reports_still_loads() -> None:
    """Findings of level error do not keep a model from being loaded: duplicate names, wrong order."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { [n] y = Relu (a)  [n] a = Neg (x) }"""
    model = model_of(onnx.parser.parse_model(text))
    assert {f.rule for f in verify(model)} == {"unique-node-names", "topological-order"}


def test_annotations_come_back_as_annotations(tmp_path: Path) -> None:
    model = model_of(proto())
    encoding = Encoding.per_tensor(ir.DataType.INT8, 0.5)
    annotate.ENCODING.set(model.graph[0].outputs[0], encoding)
    save(model, tmp_path / "m.onnx", annotations=True)
    loaded = load(tmp_path / "m.onnx")
    value = loaded.graph[0].outputs[0]
    assert annotate.ENCODING.get(value) == encoding
    assert not value.metadata_props
    assert loaded.meta[ANNOTATED]


def test_damaged_metadata_is_deduplicated_by_key() -> None:
    source = proto()
    for value in ("1", "1", "2"):
        source.graph.initializer[0].metadata_props.add(key="k", value=value)
    tensor = model_of(source).graph.initializers["w"].const_value
    assert tensor is not None
    assert dict(tensor.metadata_props) == {"k": "2"}


def test_loading_imports_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(proto().SerializeToString())
    program = f"""
import sys
from qdqtool.io.models.load import load
load({str(path)!r})
heavy = {{"onnxruntime", "onnxscript", "rich", "click", "onnx_graphsurgeon", "onnx.reference"}} & set(sys.modules)
import sympy
assert not heavy, heavy
assert type(sys.modules["sympy"]).__name__ != "module", "sympy was executed"
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_large_weights_leave_the_protobuf_and_come_back_as_they_were(tmp_path: Path) -> None:
    size = LARGE // 4
    values = np.random.default_rng(0).normal(size=size).astype(np.float32)
    plain = onnx.numpy_helper.from_array(values, "plain")
    described, placed, noted, typed = (onnx.TensorProto() for _ in range(4))
    for tensor, name in ((described, "described"), (placed, "placed"), (noted, "noted")):
        tensor.CopyFrom(plain)
        tensor.name = name
    described.doc_string = "why"
    placed.data_location = onnx.TensorProto.DEFAULT
    noted.metadata_props.add(key="b", value="1")
    noted.metadata_props.add(key="a", value="2")
    typed.CopyFrom(onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, [size], values))
    tensors = [plain, described, placed, noted, typed]
    nodes = [onnx.helper.make_node("Add", ["x", t.name], [f"y_{t.name}"], name=f"n_{t.name}") for t in tensors]
    x, *ys = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size])
        for name in ("x", *(node.output[0] for node in nodes))
    )
    given = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", [x], ys, tensors),
        ir_version=10,
        opset_imports=[onnx.helper.make_opsetid("", 21)],
    )
    onnx.save(given, tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    held = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert [name for name, tensor in held.items() if isinstance(tensor, ir.Tensor)] == ["plain"]
    assert all(tensor is not None and np.array_equal(tensor.numpy(), values) for tensor in held.values())
    save(model, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == given.SerializeToString(deterministic=True)
    before = given.SerializeToString(deterministic=True)
    model_of(given)  # the caller's: it stays whole
    assert given.SerializeToString(deterministic=True) == before
