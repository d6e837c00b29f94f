"""Every pass on a model whose tensors all lie in a file, called where another file has that name, and on one of IR version 3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from qdq_passes.errors import QdqError
from qdq_passes.graph.foreign import to_proto

from qdqtool.cli.main import run
from tests.suites.cases import Case
from tests.suites.files import loaded
from tests.suites.harness import examine
from tests.suites.steps import Step, all_steps

CHUNKS = 4
SIZE = 20  # a weight of more bytes than shape inference looks at
N = oh.make_node


def _array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _weight(name: str, seed: int) -> onnx.TensorProto:
    return onh.from_array(_array(seed, SIZE, SIZE), name)


def _model(ir_version: int) -> onnx.ModelProto:
    """Layers with weights in initializers, Constants, a body and, where ``ir_version`` has them, a function."""
    info = oh.make_tensor_value_info
    result = info("then", T.FLOAT, [2, SIZE])
    then = oh.make_graph(
        [N("Constant", [], ["k1"], value=_weight("", 1)), N("MatMul", ["h", "k1"], ["h1"]), N("MatMul", ["h1", "k2"], ["then"])],
        "then", [], [result], [_weight("k2", 2)] if ir_version > 3 else [],
    )  # fmt: skip
    if ir_version == 3:  # a body has no inputs that its weights could be
        then.node.insert(0, N("Constant", [], ["k2"], value=_weight("", 2)))
    other = oh.make_graph([N("Neg", ["h"], ["else"])], "else", [], [info("else", T.FLOAT, [2, SIZE])])
    nodes = [
        N("Constant", [], ["k0"], value=_weight("", 3), name="k0"),
        N("MatMul", ["x", "k0"], ["m"], name="m"),
        N("Constant", [], ["two"], value=onh.from_array(np.float32(2)), name="two"),
        N("Pow", ["m", "two"], ["p"], name="p"),
        N("Gemm", ["p", "w", "b"], ["g"], name="g"),
        N("Reshape", ["g", "shape"], ["r"], name="r"),
        N("Conv", ["r", "kernel"], ["c"], name="c"),
        N("Relu", ["c"], ["u"], name="u"),
        N("Flatten", ["u"], ["h"], name="h"),
        N("If", ["flag"], ["i"], then_branch=then, else_branch=other, name="i"),
        N("Own", ["i"], ["y"], domain="own", name="own")
        if ir_version > 3
        else N("MatMul", ["i", "k3"], ["y"], name="own"),
    ]
    weights = [
        _weight("w", 4), onh.from_array(_array(5, SIZE), "b"), onh.from_array(np.array([2, 5, 4, 1]), "shape"),
        onh.from_array(_array(6, 5, 5, 1, 1), "kernel"), *([] if ir_version > 3 else [_weight("k3", 7)]),
    ]  # fmt: skip
    inputs = [info("x", T.FLOAT, [2, SIZE]), info("flag", T.BOOL, [])]
    if ir_version == 3:
        inputs += [info(t.name, t.data_type, list(t.dims)) for t in weights]
    graph = oh.make_graph(nodes, "g", inputs, [info("y", T.FLOAT, [2, SIZE])], weights)
    opset = oh.make_opsetid("", 17 if ir_version > 3 else 13)
    body = [N("Constant", [], ["k"], value=_weight("", 8)), N("MatMul", ["a", "k"], ["z"])]
    functions = [oh.make_function("own", "Own", ["a"], ["z"], body, [opset])] if ir_version > 3 else []
    domains = [opset, oh.make_opsetid("own", 1)][: 2 if functions else 1]
    return oh.make_model(graph, opset_imports=domains, ir_version=ir_version, functions=functions)


def _outside(model: onnx.ModelProto) -> bytes:
    """Move every tensor of floats of ``model`` into the file ``data``; returns its bytes."""
    data = b""
    graphs: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    for graph in graphs:
        tensors = list(getattr(graph, "initializer", ()))
        for node in graph.node:
            tensors += [a.t for a in node.attribute if a.HasField("t")]
            graphs += [a.g for a in node.attribute if a.HasField("g")]
        for tensor in tensors:
            array = onh.to_array(tensor)
            if array.dtype == np.float32 and array.size > 1:
                tensor.ClearField("raw_data")
                tensor.data_location = T.EXTERNAL
                for key, value in (("location", "data"), ("offset", len(data)), ("length", array.nbytes)):
                    tensor.external_data.add(key=key, value=str(value))
                data += array.tobytes()
    return data


def _after(step: Step, model: ir.Model) -> object:
    """What ``step`` makes of ``model``, the data of all tensors included."""
    try:
        step.pipeline.run(model)
    except QdqError as error:
        return type(error), error.message
    return to_proto(model).SerializeToString(deterministic=True)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_data_are_read_beside_the_model_alone(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("model", "elsewhere"):
        (tmp_path / folder).mkdir()
    plain, outside = tmp_path / "plain.onnx", tmp_path / "model" / "m.onnx"
    model = _model(8)
    plain.write_bytes(model.SerializeToString())
    data = _outside(model)
    outside.write_bytes(model.SerializeToString())
    (tmp_path / "model" / "data").write_bytes(data)
    (tmp_path / "elsewhere" / "data").write_bytes(_array(9, len(data) // 4).tobytes())
    monkeypatch.chdir(tmp_path / "elsewhere")
    steps = all_steps()[chunk::CHUNKS]
    wrong = [step.text for step in steps if _after(step, loaded(outside)) != _after(step, loaded(plain))]
    assert wrong == []


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_weights_that_are_inputs_too(chunk: int, tmp_path: Path) -> None:
    feed = {"x": _array(0, 2, SIZE), "flag": np.array(True)}
    case = Case("ir-3", "node", _model(3).SerializeToString(), (feed,))
    found = examine(case, all_steps()[chunk::CHUNKS], tmp_path)
    assert found.engine is not None
    assert {text: result.detail for text, result in found.results.items() if result.status == "failed"} == {}


@pytest.mark.parametrize(
    "command",
    [
        "extract --inputs x --outputs g", "extract --inputs h --inputs flag", "extract --outputs g", "simplify", "externalize",
        "convert-opset --opset 17", "rename --value w=w2", "quantize --data random:2", "opt -p convert-precision{dtype=float16}",
    ],
)  # fmt: skip
def test_commands_take_weights_that_are_inputs_too(command: str, tmp_path: Path) -> None:
    model, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    model.write_bytes(_model(3).SerializeToString())
    name, *options = command.split()
    assert run([name, str(model), *options, "-o", str(made)]) == 0
    assert run(["check", str(made)]) == 0
