"""Models that are not compiled: what the library shows its compiler, what it does with the answers, and what it never does silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from qdq_passes.errors import UnsupportedError

import qdqtool.npu
from qdqtool.npu.payload import write_payload
from qdqtool.runtime import provider
from qdqtool.runtime.plugin import CPU_PROVIDER, assignment
from tests.npu.small_programs import (
    HEADER,
    devices,
    equal,
    library,
    python,
    refusal,
    session,
    succeeds,
)

#: Softplus and Add go to the CPU, the two between them are ours. Constants of both kinds: 8 and 8000 bytes.
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[3, N] x) => (float[12, 2000] y)
<int64[2] shape = {12, 1}>
{
  s = Softplus (x)
  t = Transpose <perm = [1, 0]> (s)
  r = Reshape (t, shape)
  y = Add (r, big)
}
"""
OURS = {"Transpose", "Reshape"}
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def model(text: str = MODEL) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(2000, dtype=np.float32), "big"))
    return made


def on_cpu(made: onnx.ModelProto) -> np.ndarray:
    return ort.InferenceSession(made.SerializeToString(), providers=[CPU_PROVIDER]).run(None, {"x": X})[0]


class Recorder:
    """A compiler that takes nodes by their operator, makes a group of them the program itself, and keeps what it was shown."""

    def __init__(self, takes: Callable[[ir.Node], bool] = lambda node: node.op_type in OURS) -> None:
        self.takes = takes
        self.graphs: list[ir.Model] = []
        self.options: list[dict[str, str]] = []
        self.checked: list[tuple[dict[str, str], str]] = []

    def partition(self, model: bytes, options: Mapping[str, str]) -> list[list[int]]:
        graph = provider.read_graph(model)
        for value in graph.graph.initializers.values():  # the memory is onnxruntime's
            assert value.const_value is not None
            value.const_value = ir.tensor(np.array(value.const_value.numpy()))
        self.graphs.append(graph)
        self.options.append(dict(options))
        return [[i for i, node in enumerate(graph.graph) if self.takes(node)]]

    def lower(self, model: bytes, options: Mapping[str, str]) -> bytes:
        return write_payload(HEADER, model)

    def check(self, header: Mapping[str, str], options: Mapping[str, str]) -> None:
        self.checked.append((dict(header), options.get("target", "")))


@contextmanager
def attached(compiler: provider.Compiler) -> Iterator[None]:
    """``compiler`` in place of the process's own."""
    devices()
    provider.attach(library(), compiler)
    try:
        yield
    finally:
        qdqtool.npu.register()


def test_partitions_run_where_they_were_put() -> None:
    with attached(Recorder()):
        opened = provider.open_session(ir.serde.deserialize_model(model()), {"target": "acme"})
    assert equal([opened.run({"x": X})["y"]], [on_cpu(model())])
    placed = assignment(opened)
    if placed is not None:
        assert {a.op for a in placed if a.provider == provider.PROVIDER} == OURS
        assert {a.op for a in placed if a.provider == CPU_PROVIDER} == {"Softplus", "Add"}


def test_what_the_compiler_sees() -> None:
    compiler = Recorder()
    with attached(compiler):
        session(model(), {"session.disable_quant_qdq": "1"}, target="acme", boundary="npu")
    assert (
        compiler.options[0].items() >= {"target": "acme", "boundary": "npu", "session.disable_quant_qdq": "1"}.items()
    )
    (graph,) = (m.graph for m in compiler.graphs)
    assert [node.op_type for node in graph] == ["Softplus", "Transpose", "Reshape", "Add"]
    assert [value.name for value in graph.inputs] == ["x"]
    assert str(graph.inputs[0].shape) == "[3,N]"
    assert list(graph.node(1).attributes["perm"].as_ints()) == [1, 0]
    constants = {name: value.const_value.numpy() for name, value in graph.initializers.items() if value.const_value}
    assert constants["shape"].tolist() == [12, 1]
    assert np.array_equal(constants["big"], np.arange(2000, dtype=np.float32))


def test_initializers_that_a_feed_may_replace_are_inputs() -> None:
    made = model()
    made.graph.input.append(onnx.helper.make_tensor_value_info("big", onnx.TensorProto.FLOAT, [2000]))
    compiler = Recorder()
    with attached(compiler):
        opened = session(made)
    graph = compiler.graphs[0].graph
    assert "big" not in graph.initializers
    assert {"x", "big"} == {value.name for value in graph.inputs}
    same, other = np.arange(2000, dtype=np.float32), np.ones(2000, np.float32)
    assert equal(opened.run(None, {"x": X, "big": same}), [on_cpu(made)])
    assert not equal(opened.run(None, {"x": X, "big": other}), [on_cpu(made)])


def test_every_kind_of_attribute_and_type_arrives() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    main (float[1, 2, 4, 4] x, seq(float[3]) q, float16[M] h) => (float[1, 2, 8, 8] y, float[3] e, float16[M] g)
    <float[4] scales = {1.0, 1.0, 2.0, 2.0}, int64 zero = {0}>
    {
      y = Resize <mode = "nearest", cubic_coeff_a = -0.5> (x, , scales)
      e = SequenceAt (q, zero)
      w = DequantizeLinear (packed, s)
      d = Cast <to = 10> (w)
      m = ReduceMax <keepdims = 1> (d)
      g = Add (h, m)
    }"""
    made = onnx.parser.parse_model(text)
    packed = onnx.helper.make_tensor("packed", onnx.TensorProto.INT4, [5], [1, -2, 3, -4, 5])
    made.graph.initializer.extend([packed, onnx.numpy_helper.from_array(np.float32(0.5), "s")])
    compiler = Recorder(lambda node: False)
    with attached(compiler):
        session(made, {"session.disable_quant_qdq": "0"})
    graph = compiler.graphs[0].graph
    by_op = {node.op_type: node for node in graph}
    resize = by_op["Resize"]
    assert resize.inputs[1] is None
    assert (resize.attributes["mode"].as_string(), resize.attributes["cubic_coeff_a"].as_float()) == ("nearest", -0.5)
    assert by_op["DequantizeLinear"].inputs[0].const_value.numpy().tolist() == [1, -2, 3, -4, 5]
    types = {value.name: value.dtype for value in graph.inputs}
    assert (types["x"], types["h"]) == (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def test_bodies_stay_and_what_they_read_is_shown() -> None:
    """t is read by the If alone, inside its branches: a partition must not swallow it."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[3, 4] x, bool c) => (float[4, 3] y)
    {
      t = Transpose <perm = [1, 0]> (x)
      y = If (c) <then_branch = yes () => (float[4, 3] a) { a = Transpose <perm = [0, 1]> (t) },
                  else_branch = no () => (float[4, 3] b) { b = Neg (t) }>
    }"""
    compiler = Recorder()
    with attached(compiler):
        opened = session(onnx.parser.parse_model(text))
    (shown,) = compiler.graphs  # of the main graph alone
    read = {value.name for node in shown.graph.all_nodes() for value in node.inputs if value is not None}
    assert [node.op_type for node in shown.graph] == ["Transpose", "If"]
    assert "t" in read
    for flag, wanted in ((True, X.T), (False, -X.T)):
        assert equal(opened.run(None, {"x": X, "c": np.array(flag)}), [wanted])


class Failing(Recorder):
    """Fails at one of its two questions, with one error or another."""

    def __init__(self, question: str, error: BaseException) -> None:
        super().__init__()
        self.question, self.error = question, error

    def partition(self, model: bytes, options: Mapping[str, str]) -> list[list[int]]:
        if self.question == "partition":
            raise self.error
        return super().partition(model, options)

    def lower(self, model: bytes, options: Mapping[str, str]) -> bytes:
        if self.question == "lower":
            raise self.error
        return super().lower(model, options)


@pytest.mark.parametrize("question", ["partition", "lower"])
def test_a_failing_compiler_is_never_a_session_on_the_cpu(question: str) -> None:
    error = UnsupportedError("the weather is bad", where="node 'umbrella'", hint="wait")
    with attached(Failing(question, error)):
        assert "node 'umbrella': the weather is bad; wait" in refusal(model())
        with pytest.raises(UnsupportedError) as caught:
            provider.open_session(ir.serde.deserialize_model(model()))
    assert caught.value is error
    with attached(Failing(question, ZeroDivisionError("a bug"))):
        assert "ZeroDivisionError: a bug" in refusal(model())
        with pytest.raises(ZeroDivisionError):
            provider.open_session(ir.serde.deserialize_model(model()))
    with attached(Recorder()):  # and nothing of it stays
        assert equal([provider.open_session(ir.serde.deserialize_model(model())).run({"x": X})["y"]], [on_cpu(model())])


def test_a_model_of_bodies_alone_fails_too() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[3] x, bool c) => (float[3] y)
    { y = If (c) <then_branch = yes () => (float[3] a) { a = Neg (x) }, else_branch = no () => (float[3] b) { b = Abs (x) }> }"""
    with attached(Failing("partition", UnsupportedError("no"))), pytest.raises(UnsupportedError) as caught:
        provider.open_session(ir.serde.deserialize_model(onnx.parser.parse_model(text)))
    assert caught.value.message == "no"


@pytest.mark.parametrize("groups", [[[99]], [[1, 1]], [[-1]], [[1], [1]]])
def test_partitions_that_are_none(groups: list[list[int]]) -> None:
    compiler = Recorder()
    compiler.partition = lambda model, options: groups  # type: ignore[method-assign]
    with attached(compiler):
        assert "the compiler's partitions are not lists of nodes" in refusal(model())


def test_answers_that_are_no_payload() -> None:
    compiler = Recorder()
    compiler.lower = lambda model, options: b"?"  # type: ignore[method-assign]
    with attached(compiler):
        assert "it does not begin with QDQNPU1" in refusal(model())


def test_nothing_on_the_cpu_means_nothing() -> None:
    with attached(Recorder()):
        text = refusal(model(), {"session.disable_cpu_ep_fallback": "1"})
        assert "fallback to CPU EP has been explicitly disabled" in text
        ours = MODEL.replace("s = Softplus (x)", "s = Identity (x)").replace("y = Add (r, big)", "")
        whole = onnx.parser.parse_model(ours.replace("(float[12, 2000] y)", "(float[12, 1] r)"))
    with attached(Recorder(lambda node: True)):
        opened = session(whole, {"session.disable_cpu_ep_fallback": "1"})
    assert equal(opened.run(None, {"x": X}), [X.T.reshape(12, 1)])


def test_without_a_compiler() -> None:
    code = """
from tests.npu.test_compiling import *
from qdqtool.npu.library import library_path
provider.register(library_path())
opened = ort.SessionOptions()
opened.log_severity_level = 4
opened.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == provider.PROVIDER], {})
try:
    ort.InferenceSession(model().SerializeToString(), opened)
except Exception as error:
    print(error)
"""
    assert "this model is not compiled for the NPU and no compiler is attached" in succeeds(python(code))


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=1000, location="m.data")
    compiler = Recorder()
    with attached(compiler):
        opened = session(str(tmp_path / "m.onnx"))
    assert equal(opened.run(None, {"x": X}), [on_cpu(model())])
    big = compiler.graphs[0].graph.initializers["big"].const_value
    assert big is not None
    assert np.array_equal(big.numpy(), np.arange(2000, dtype=np.float32))


def test_threads_ask_at_the_same_time() -> None:
    wanted = on_cpu(model())
    with attached(Recorder()), ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: session(model()).run(None, {"x": X})[0], range(24)))
    assert all(np.array_equal(y, wanted) for y in found)
