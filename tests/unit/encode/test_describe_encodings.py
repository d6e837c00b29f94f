"""What `describe-encodings` writes, as the file has it, and the copy that `view` serves."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.grids import Grid, grid_of, middle

from qdqtool.io.models.display import write_for_viewer
from qdqtool.io.models.load import load, model_of
from qdqtool.io.models.save import serialize
from tests.cases.cli_helpers import DIGITS, SAMPLES
from tests.cases.small_models import model

PAIR = """g (float[2] x) => (float[2] y) <float s = {0.0625}, int8 z = {3}>
    { [exp] t = Exp(x) [q] i = QuantizeLinear(t, s, z) [dq] d = DequantizeLinear(i, s, z) [relu] y = Relu(d) }"""
ROWS = {
    "qdq.tensor": "t", "qdq.kind": "activation", "qdq.dtype": "int8", "qdq.scale": "2^-4 (0.0625)", "qdq.zero_point": "3",
    "qdq.position": "4", "qdq.range": "-8.1875 to 7.75",
}  # fmt: skip
NAMES = {"SCALE_TENSOR": "s", "ZERO_POINT_TENSOR": "z"}


def described(graph: ir.Model) -> onnx.ModelProto:
    run_pipeline(graph, "describe-encodings")
    return serialize(graph)


def rows(holder: onnx.NodeProto | onnx.ValueInfoProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in holder.metadata_props}


def nodes(graph: onnx.GraphProto) -> dict[str, dict[str, str]]:
    return {node.name: rows(node) for node in graph.node}


def annotations(graph: onnx.GraphProto) -> dict[str, dict[str, str]]:
    return {
        a.tensor_name: {e.key: e.value for e in a.quant_parameter_tensor_names} for a in graph.quantization_annotation
    }


def documents(graph: onnx.GraphProto) -> dict[str, str]:
    return {info.name: info.doc_string for info in (*graph.input, *graph.output, *graph.value_info) if info.doc_string}


def test_nodes_and_tensors() -> None:
    graph = described(model(PAIR)).graph
    line = "int8, scale 2^-4, zero point 3, activation"
    assert nodes(graph) == {"exp": {"qdq.output[0]": line}, "q": ROWS, "dq": ROWS, "relu": {"qdq.input[0]": line}}
    assert documents(graph) == dict.fromkeys("tid", f"encoding: {line}")
    assert annotations(graph) == dict.fromkeys("tid", NAMES)
    inside = {info.name: info for info in graph.value_info}
    assert {name: rows(inside[name]) for name in "tid"} == dict.fromkeys("tid", ROWS)
    elements = {name: inside[name].type.tensor_type.elem_type for name in "tid"}
    assert elements == {"t": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT8, "d": onnx.TensorProto.FLOAT}


def test_graph_ends() -> None:
    graph = described(
        model(
            """g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {0}>
            { [q] i = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(i, s, z) }"""
        )
    ).graph
    wanted = {"qdq.dtype": "uint8", "qdq.scale": "0.1", "qdq.zero_point": "0", "qdq.range": "0 to 25.5"}
    for end in (graph.input[0], graph.output[0]):
        assert wanted.items() <= rows(end).items()
        assert end.doc_string == "encoding: uint8, scale 0.1, zero point 0, activation"
        assert "qdq.position" not in rows(end)
    assert set(annotations(graph)) == {"x", "i", "y"}


def test_per_axis_and_blocked_are_short() -> None:
    """4096 scales are told by their count and their extremes, and nothing grows with them."""
    scales = np.ldexp(np.float32(1), -(np.arange(4096, dtype=np.int32) % 5) - 3).reshape(64, 64)
    names = {"w": np.zeros((128, 64), np.uint8), "z": np.arange(4096, dtype=np.uint8).reshape(64, 64) % 16}
    constants = [
        helper.make_tensor(name, onnx.TensorProto.UINT4, array.shape, array.ravel()) for name, array in names.items()
    ]
    made = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], "d", axis=0, block_size=2),
            helper.make_node("MatMul", ["x", "f"], ["y"], "m"),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 128])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 64])],
        [*constants, numpy_helper.from_array(scales, "s")],
    )
    graph = model_of(helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    proto = described(graph)
    (found,) = (rows(node) for node in proto.graph.node if node.name == "d")
    assert found == {
        "qdq.tensor": "w", "qdq.kind": "weight", "qdq.dtype": "uint4", "qdq.scale": "4096 values, 2^-7 to 2^-3",
        "qdq.zero_point": "0 to 15", "qdq.position": "3 to 7", "qdq.axis": "0", "qdq.block_size": "2",
        "qdq.range": "-1.875 to 1.875",
    }  # fmt: skip
    assert max(len(text) for text in documents(proto.graph).values()) < 120


def test_what_the_file_says_stays() -> None:
    graph = model(PAIR)
    value = graph.graph[0].outputs[0]
    value.doc_string = "of the exporter"
    value.meta["quant_parameter_tensor_names"] = {"OTHER": "o", "SCALE_TENSOR": "stale"}
    graph.graph[1].metadata_props["scale"] = "mine"
    proto = described(graph).graph
    assert documents(proto)["t"] == "of the exporter\nencoding: int8, scale 2^-4, zero point 3, activation"
    assert annotations(proto)["t"] == {"OTHER": "o", **NAMES}
    assert nodes(proto)["q"] == {"scale": "mine", **ROWS}


def test_written_anew_and_taken_away() -> None:
    """After an edit the old words are replaced; after the pairs are gone nothing of them is left."""
    read = model_of(onnx.ModelProto.FromString(described(model(PAIR)).SerializeToString()))
    scale = read.graph.initializers["s"]
    scale.const_value = ir.tensor(np.array(0.3, np.float32), name="s")
    again = described(read).graph
    assert nodes(again)["q"]["qdq.scale"] == "0.3"
    assert "qdq.position" not in nodes(again)["q"]
    assert documents(again)["t"] == "encoding: int8, scale 0.3, zero point 3, activation"
    run_pipeline(read, "remove-qdq,describe-encodings")
    left = serialize(read).graph
    assert (nodes(left), documents(left), annotations(left)) == ({"exp": {}, "relu": {}}, {}, {})


def test_several_encodings_of_one_tensor() -> None:
    """Both are told; no one tensor can be named as the scale, unless the pairs agree in it."""
    text = """g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}, float r = {0.25}>
      { [a] i = QuantizeLinear(x, s, z) [b] d = DequantizeLinear(i, s, z) [c] j = QuantizeLinear(x, r, z)
        [e] f = DequantizeLinear(j, r, z) [add] y = Add(d, f) }"""
    graph = described(model(text)).graph
    assert rows(graph.input[0])["qdq.scale"] == "2^-1 (0.5); 2^-2 (0.25)"
    assert rows(graph.input[0])["qdq.dtype"] == "int8"
    assert graph.input[0].doc_string.count("encoding: ") == 2
    assert set(annotations(graph)) == {"i", "d", "j", "f"}
    same = described(model(text.replace("x, r, z", "x, s, z").replace("j, r, z", "j, s, z"))).graph
    assert annotations(same)["x"] == NAMES


def test_bodies_have_annotations_of_their_own() -> None:
    graph = described(
        model(
            """g (bool c, float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}> { [if] y = If(c) <
            then_branch = p () => (float[2] a) { [exp] t = Exp(x) [q] i = QuantizeLinear(t, s, z) [d] a = DequantizeLinear(i, s, z) },
            else_branch = r () => (float[2] b) { [q2] j = QuantizeLinear(x, s, z) [d2] b = DequantizeLinear(j, s, z) }> }"""
        )
    ).graph
    then, other = (attribute.g for attribute in graph.node[0].attribute)
    assert annotations(then) == {"t": NAMES, "i": NAMES, "a": NAMES}
    assert nodes(then)["q"]["qdq.tensor"] == "t"
    assert annotations(other) == {"j": NAMES, "b": NAMES}
    assert annotations(graph) == {}  # x belongs to the graph outside, its Q to the body
    assert graph.input[1].doc_string == "encoding: int8, scale 2^-1, zero point 0, activation"


@pytest.mark.parametrize("version", [9, 10])
def test_functions(version: int) -> None:
    """Nodes of a local function in any version; its values where the file has a place for them, and nothing else elsewhere."""
    proto = described(
        model(
            f"""<ir_version: {version}, opset_import: ["" : 19, "local" : 1]>
            g (float[2] x) => (float[2] y) {{ [call] y = local.Block(x) }}
            <domain: "local", opset_import: ["" : 19]> Block (p) => (o) {{
            s = Constant<value: tensor = float {{0.5}}>() z = Constant<value: tensor = int8 {{0}}>()
            [q] i = QuantizeLinear(p, s, z) [d] v = DequantizeLinear(i, s, z) [r] o = Relu(v) }}"""
        )
    )
    (function,) = proto.functions
    found = {node.name: rows(node) for node in function.node}
    assert found["q"]["qdq.scale"] == "2^-1 (0.5)"
    assert found["r"] == {"qdq.input[0]": "int8, scale 2^-1, zero point 0, activation"}
    assert {info.name for info in function.value_info} == ({"p", "i", "v"} if version >= 10 else set())
    assert not proto.graph.value_info


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point", "wanted"),
    [
        (onnx.TensorProto.INT4, 0.25, 0, "-2 to 1.75"),
        (onnx.TensorProto.UINT4, 0.25, 8, "-2 to 1.75"),
        (onnx.TensorProto.INT16, 0.1, 0, "-3276.8 to 3276.7"),
        (onnx.TensorProto.UINT16, 0.5, 65535, "-32767.5 to 0"),
        (onnx.TensorProto.INT32, 0.5, 0, "-1.07374e+09 to 1.07374e+09"),
    ],
)
def test_ranges(dtype: int, scale: float, zero_point: int, wanted: str) -> None:
    """(qmin − z)·s to (qmax − z)·s, with the whole range of the type, which Q saturates at."""
    zero = ir.tensor(np.array(zero_point).astype(ir.DataType(dtype).numpy()), dtype=ir.DataType(dtype))
    grid = grid_of(q_node(ir.tensor(np.array(scale, np.float32)), zero))
    assert grid is not None
    assert grid.fields()["range"] == wanted


def q_node(scale: ir.TensorProtocol, zero: ir.TensorProtocol | None, **attributes: int) -> ir.Node:
    values = [
        ir.Value(name=name, const_value=tensor) for name, tensor in (("s", scale), ("z", zero)) if tensor is not None
    ]
    for value in values:
        value.dtype = value.const_value.dtype  # type: ignore[union-attr]
    return ir.node("QuantizeLinear", [ir.Value(name="x"), *values], attributes)


def test_grids_compare_what_they_mean() -> None:
    half = np.float32(0.5)
    one = Grid(dtype=ir.DataType.INT8, scale=np.full(1, half), zero_point=np.zeros(1, np.float32))
    many = Grid(dtype=ir.DataType.INT8, scale=np.full(3, half), zero_point=np.zeros(3, np.float32), axis=0)
    assert one.matches(Grid(dtype=ir.DataType.INT8, scale=half.reshape(()), zero_point=np.zeros((), np.float32)))
    assert not one.matches(Grid(dtype=ir.DataType.UINT8, scale=one.scale, zero_point=one.zero_point))
    assert not one.matches(Grid(dtype=ir.DataType.INT8, scale=one.scale, zero_point=one.zero_point + 1))
    assert not one.matches(many)
    assert many.matches(Grid(dtype=ir.DataType.INT8, scale=many.scale, zero_point=one.zero_point, axis=0))
    assert not many.matches(Grid(dtype=ir.DataType.INT8, scale=many.scale, zero_point=one.zero_point, axis=1))
    assert [middle(t) for t in (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.UINT4, ir.DataType.FLOAT8E4M3FN)] == [
        0,
        128,
        8,
        0,
    ]


def test_float16_scales_and_half_types() -> None:
    """A float16 scale is told with the digits that tell it apart; float8 has no integer range."""
    grid = grid_of(q_node(ir.tensor(np.array(0.1, np.float16)), ir.tensor(np.array(0, np.uint8))))
    assert grid is not None
    assert grid.fields()["scale"] == str(np.float32(np.float16(0.1)))
    float8 = ir.tensor(np.zeros((), ir.DataType.FLOAT8E4M3FN.numpy()), dtype=ir.DataType.FLOAT8E4M3FN)
    grid = grid_of(q_node(ir.tensor(np.array(0.5, np.float32)), float8))
    assert grid is not None
    assert (grid.dtype, grid.bits, "range" in grid.fields()) == (ir.DataType.FLOAT8E4M3FN, 8, False)


@pytest.mark.parametrize("path", [Path(DIGITS), *sorted(SAMPLES.glob("*.onnx"))], ids=lambda path: path.stem)
def test_the_copy_for_viewers(path: Path, tmp_path: Path) -> None:
    """The file is not touched, the copy is a sound model of the same function, and its data files lie beside it."""
    before = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.glob(f"{path.stem}.onnx*")}
    copy = tmp_path / "copy.onnx"
    assert write_for_viewer(load(path), copy) == []
    assert before == {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in before}
    if path.stem != "quark_layout":  # whose nodes stand out of order in the file
        onnx.checker.check_model(str(copy))
    assert all(os.stat(file).st_nlink == 1 for file in before), "a second name would have it refused as external data"
    dequantizers = [n for n in onnx.load(copy, load_external_data=False).graph.node if n.op_type == "DequantizeLinear"]
    assert all("qdq.scale" in rows(node) for node in dequantizers)


def test_operators_on_integers(tmp_path: Path) -> None:
    """A QOperator file has no pairs: the operands of its operators are described, and the halves at the ends of the graph."""
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2]) for name in "xy")
    names = {"s": np.float32(0.5), "z": np.int8(0), "w": np.ones((2, 2), np.int8)}
    made = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["i"], "q"),
            helper.make_node("QLinearMatMul", ["i", "s", "z", "w", "s", "z", "s", "z"], ["j"], "m"),
            helper.make_node("DequantizeLinear", ["j", "s", "z"], ["y"], "d"),
        ],
        "g", [x], [y], [numpy_helper.from_array(np.asarray(value), name) for name, value in names.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    write_for_viewer(load(tmp_path / "m.onnx"), tmp_path / "copy.onnx")
    found = nodes(onnx.load(tmp_path / "copy.onnx").graph)
    assert found["q"]["qdq.tensor"] == "x"
    assert found["d"]["qdq.tensor"] == "y"
    line = "int8, scale 2^-1, zero point 0"
    assert found["m"] == {
        "qdq.input[0]": f"{line}, activation", "qdq.input[3]": f"{line}, weight", "qdq.output[0]": f"{line}, activation",
    }  # fmt: skip


def test_large_data_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.io.models.display.COPIED", 10)
    source = SAMPLES / "external_data.onnx"
    assert write_for_viewer(load(source), tmp_path / "copy.onnx") == [str(source) + ".data"]
    assert [file.name for file in tmp_path.iterdir()] == ["copy.onnx"]
