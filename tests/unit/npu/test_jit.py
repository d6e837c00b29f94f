"""The compiler that the provider's library asks: which nodes, then a program for each part; of the second question only the part
is known."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from qdq_passes.errors import ModelError, UnsupportedError, UsageError
from qdq_passes.graph.dump import dump
from qdq_passes.graph.shapes.inference import infer_shapes

from qdqtool.io.models.load import SOURCE, model_of
from qdqtool.io.models.save import serialize
from qdqtool.npu.compile import compile as compile_for
from qdqtool.npu.compile import header_of
from qdqtool.npu.compiled import contexts, payload_bytes
from qdqtool.npu.jit import JitCompiler
from qdqtool.npu.payload import read_payload
from qdqtool.targets.loading import load_target
from tests.cases.small_models import model, operators
from tests.cases.waiting import PATIENCE
from tests.golden_messages.refusal import refusal

OPTIONS = {"target": "generic_int8"}
#: The smallest file of a target.
CHIP = 'description = "chip"\nversion = "1"\nextends = "generic_int8"\n'
#: Two parts with an operator between them that no target takes; both read `ad`, and the weight's one DequantizeLinear.
TWO = """g (float[1,2,4,4] x) => (float[1,2,4,4] y)
  <float s = {0.5}, int8 z = {0}, float sw = {SCALE}, int8[2,2,1,1] w = {1, 2, 3, 4}, int64 axis = {1}>
{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear(w, sw, z)
  a = Conv(xd, wd) aq = QuantizeLinear(a, s, z) ad = DequantizeLinear(aq, s, z)
  b = CumSum(ad, axis) bq = QuantizeLinear(b, s, z) bd = DequantizeLinear(bq, s, z)
  c = Conv(bd, wd) cq = QuantizeLinear(c, s, z) cd = DequantizeLinear(cq, s, z)
  d = Add(cd, ad) dq = QuantizeLinear(d, s, z) y = DequantizeLinear(dq, s, z) }"""


def two(scale: float = 0.25) -> onnx.ModelProto:
    """The model as onnxruntime hands it over: typed values, nodes without names."""
    made = model(TWO.replace("SCALE", str(scale)))
    infer_shapes(made)
    return serialize(made)


def with_pair() -> onnx.ModelProto:
    """`two` with the weight as floats behind a pair, whose DequantizeLinear each reader has for itself."""
    made = model(
        TWO.replace("SCALE", "0.25")
        .replace("int8[2,2,1,1] w = {1, 2, 3, 4}", "float[2,2,1,1] w = {0.25, 0.5, 0.75, 1.0}")
        .replace(
            "wd = DequantizeLinear(w, sw, z)",
            "wq = QuantizeLinear(w, sw, z) wd = DequantizeLinear(wq, sw, z) ud = DequantizeLinear(wq, sw, z)",
        )
        .replace("Conv(bd, wd)", "Conv(bd, ud)")
    )
    infer_shapes(made)
    return serialize(made)


def part(whole: onnx.ModelProto, indices: Sequence[int]) -> bytes:
    """The graph of one partition, as onnxruntime fuses it."""
    graph, nodes = whole.graph, [whole.graph.node[i] for i in indices]
    rest = [node for i, node in enumerate(graph.node) if i not in indices]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    types = {value.name: value for value in (*graph.input, *graph.output, *graph.value_info)}
    inside = [name for node in nodes for name in node.output]
    read = dict.fromkeys(name for node in nodes for name in node.input)
    outside = {name for node in rest for name in node.input} | {value.name for value in graph.output}
    made = helper.make_graph(
        nodes, "npu_fused_0",
        [types[name] for name in read if name not in inside and name not in constants],
        [types[name] for name in inside if name in outside],
        [constants[name] for name in read if name in constants],
        value_info=[types[name] for name in inside if name in types],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=whole.opset_import, ir_version=10).SerializeToString()


def program(payload: bytes) -> ir.Model:
    return model_of(onnx.ModelProto.FromString(read_payload(payload)[1]))


def ends(made: ir.Model) -> tuple[list[str | None], list[str | None]]:
    return [v.name for v in made.graph.inputs], [v.name for v in made.graph.outputs]


def test_partitions_are_indices() -> None:
    whole = two()
    groups = JitCompiler().partition(whole.SerializeToString(), OPTIONS)
    kinds = [[whole.graph.node[i].op_type for i in group] for group in groups]
    assert kinds == [
        ["DequantizeLinear", "Conv", "QuantizeLinear"],
        ["DequantizeLinear", "Conv", "QuantizeLinear", "DequantizeLinear", "Add", "QuantizeLinear"],
    ]


def test_a_pair_outside_is_quantized_at_the_edge() -> None:
    """`ad` is a float where the second part reads it; its integers are those the first one wrote."""
    whole, compiler = two(), JitCompiler()
    groups = compiler.partition(whole.SerializeToString(), OPTIONS)
    made = program(compiler.lower(part(whole, groups[1]), OPTIONS))
    assert operators(made).count("QuantizeLinear") == 1
    (quantize,) = (node for node in made.graph if node.op_type == "QuantizeLinear")
    assert [value.name for value in quantize.inputs[:1] if value is not None] == ["ad"]
    add = next(node for node in made.graph if node.op_type == "Add")
    assert quantize.outputs[0] in add.inputs
    scale, zero_point = (
        value.const_value.numpy() for value in quantize.inputs[1:] if value is not None and value.const_value
    )
    assert (float(scale), int(zero_point), zero_point.dtype) == (0.5, 0, np.int8)


@pytest.mark.parametrize("style", ["stored", "pair"])
def test_a_weight_outside_is_a_constant_again(style: str) -> None:
    """The pair that two parts read is in neither: what onnxruntime computes of it is not read."""
    whole, compiler = two() if style == "stored" else with_pair(), JitCompiler()
    groups = compiler.partition(whole.SerializeToString(), OPTIONS)
    weight = "wd" if style == "stored" else "wq"
    for group, wanted in zip(groups, (["xq", weight], ["bq", weight, "ad"]), strict=True):
        made = program(compiler.lower(part(whole, group), OPTIONS))
        assert sorted(str(name) for name in ends(made)[0]) == sorted(wanted)
        conv = next(node for node in made.graph if node.op_type == "Conv")
        value = conv.inputs[1]
        assert value is not None
        assert value.const_value is not None
        np.testing.assert_array_equal(value.const_value.numpy().ravel(), [1, 2, 3, 4])


def test_both_ways_give_one_program() -> None:
    """Ahead of time and at the session's creation, where nothing is outside."""
    text = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float s = {0.5}, int8 z = {0}, int8[2,2,1,1] w = {1, 2, 3, 4}>
    { [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] wd = DequantizeLinear(w, s, z)
      [conv] a = Conv(xd, wd) [relu] r = Relu(a) [qa] aq = QuantizeLinear(r, s, z) [da] y = DequantizeLinear(aq, s, z) }"""
    given = model(text)
    infer_shapes(given)
    whole, compiler = serialize(given), JitCompiler()
    (group,) = compiler.partition(whole.SerializeToString(), OPTIONS)
    at_creation = program(compiler.lower(part(whole, group), OPTIONS))
    ahead = compile_for(given, load_target("generic_int8")).model
    (context,) = contexts(ahead)
    before = program(payload_bytes(context, ahead.meta.get(SOURCE)))
    for made in (at_creation, before):
        made.graph.name = "program"
        made.metadata_props.clear()
    assert dump(at_creation) == dump(before)


def test_threads_remember_their_own_graph() -> None:
    """Two sessions at a time, of models whose values are called alike: the scale of the weight is that of the right one."""
    compiler, barrier = JitCompiler(), threading.Barrier(2)
    shifts: dict[float, list[int]] = {}

    def create(scale: float) -> None:
        whole = two(scale)
        groups = compiler.partition(whole.SerializeToString(), OPTIONS)
        barrier.wait(timeout=PATIENCE)
        made = program(compiler.lower(part(whole, groups[0]), OPTIONS))
        shift = next(v for name, v in made.graph.initializers.items() if name.endswith("_shift"))
        assert shift.const_value is not None
        shifts[scale] = shift.const_value.numpy().tolist()

    threads = [threading.Thread(target=create, args=(scale,)) for scale in (0.25, 0.125)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shifts == {0.25: [32], 0.125: [33]}


def test_options() -> None:
    data = two().SerializeToString()
    with refusal(UsageError):
        JitCompiler().partition(data, {})
    with refusal(UsageError):
        JitCompiler().partition(data, {**OPTIONS, "boundary": "both"})
    with refusal(UsageError):
        JitCompiler().partition(data, {"target": "no_such"})
    taken = {len(JitCompiler().partition(data, {**OPTIONS, "boundary": where})[0]) for where in ("cpu", "npu")}
    assert taken == {3, 4}, "the QuantizeLinear of x"


def test_a_program_is_fresh_or_not(tmp_path: Path) -> None:
    """By what the target's file says now. The library compares the names; one that stands for no file here is enough."""
    file = tmp_path / "chip.toml"
    file.write_text(CHIP, encoding="utf-8")
    header, options = asdict(header_of(load_target(file))), {"target": str(file)}
    JitCompiler().check(header, options)
    JitCompiler().check(header, {"target": "chip"})
    JitCompiler().check(header, {})
    file.write_text(CHIP.replace('"1"', '"2"'), encoding="utf-8")
    with refusal(ModelError):
        JitCompiler().check(header, options)
    with refusal(ModelError):
        JitCompiler().check(header, OPTIONS)
    file.unlink()
    with refusal(UsageError):
        JitCompiler().check(header, options)


def test_what_may_not_fall_back_is_named() -> None:
    options = {**OPTIONS, "session.disable_cpu_ep_fallback": "1"}
    with refusal(UnsupportedError):
        JitCompiler().partition(two().SerializeToString(), options)
    relu = model("""g (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0}>
    { xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) a = Relu(xd) aq = QuantizeLinear(a, s, z)
      y = DequantizeLinear(aq, s, z) }""")
    assert JitCompiler().partition(serialize(relu).SerializeToString(), options) == [[0, 1, 2, 3, 4]]


def test_a_compiled_model_of_nothing_is_not_written() -> None:
    """onnxruntime would write no file, and say nothing."""
    none = serialize(model("g (float[4] x) => (float[4] y) { y = Neg(x) }")).SerializeToString()
    assert JitCompiler().partition(none, OPTIONS) == []
    with refusal(UnsupportedError):
        JitCompiler().partition(none, {**OPTIONS, "ep.context_enable": "1"})
    pair = """g (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0}>
    { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    with refusal(UnsupportedError):
        JitCompiler().partition(serialize(model(pair)).SerializeToString(), {**OPTIONS, "ep.context_enable": "1"})
    assert JitCompiler().partition(two().SerializeToString(), {**OPTIONS, "ep.context_enable": "1"})


def test_another_graph_than_was_asked_about() -> None:
    """A float that nothing is known of: no program, and a message that names the node."""
    whole = two()
    groups = JitCompiler().partition(whole.SerializeToString(), OPTIONS)
    with refusal(UnsupportedError):
        JitCompiler().lower(part(whole, groups[0]), OPTIONS)
